/* Staying on one core; asks for _GNU_SOURCE. */
#ifndef BENCH_CORES_H
#define BENCH_CORES_H

#include <sched.h>
#include <stdlib.h>

/* 0, or -1 where there is no such core. */
static inline int stay_on(const char *core) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(atoi(core), &one);
    return sched_setaffinity(0, sizeof one, &one);
}

#endif
