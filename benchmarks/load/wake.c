/* wake CORE OTHER PAIRS: µs to wake a process on another core and be woken by it, the median of PAIRS; printed.
 *
 * Between two pairs the first works a moment, so that the other's core is as idle as between two requests. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

enum { WORK_NS = 20000 };

static int64_t now_ns(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * INT64_C(1000000000) + at.tv_nsec;
}

static int by_size(const void *one, const void *other) {
    int64_t a = *(const int64_t *)one, b = *(const int64_t *)other;
    return (a > b) - (a < b);
}

static int stay_on(const char *core) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(atoi(core), &one);
    return sched_setaffinity(0, sizeof one, &one);
}

static int ring(int bell) {
    uint64_t once = 1;
    return write(bell, &once, sizeof once) == sizeof once;
}

static int await(int bell) {
    uint64_t times;
    return read(bell, &times, sizeof times) == sizeof times;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    int pairs = atoi(argv[3]);
    int there = eventfd(0, EFD_CLOEXEC), back = eventfd(0, EFD_CLOEXEC);
    int64_t *took = calloc(pairs > 0 ? pairs : 1, sizeof *took);
    if (pairs <= 0 || there < 0 || back < 0 || !took) return 2;
    pid_t other = fork();
    if (other < 0) return 1;
    if (other == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (stay_on(argv[2])) _exit(1);
        while (await(there) && ring(back)) continue;
        _exit(1);
    }
    if (stay_on(argv[1])) return 1;
    for (int i = 0; i < pairs; i++) {
        int64_t began = now_ns();
        if (!ring(there) || !await(back)) return 1;
        took[i] = now_ns() - began;
        for (int64_t until = now_ns() + WORK_NS; now_ns() < until;) continue;
    }
    kill(other, SIGKILL);
    qsort(took, pairs, sizeof *took, by_size);
    printf("%.1f\n", took[pairs / 2] / 1e3);
    return 0;
}
