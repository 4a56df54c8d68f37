/* spinner CORE: keeps one core from halting, in the idle scheduling class, until it is killed or its parent dies. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct sched_param none = {0};
    if (sched_setscheduler(0, SCHED_IDLE, &none)) return 1;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(atoi(argv[1]), &one);
    if (sched_setaffinity(0, sizeof one, &one)) return 1;
    for (;;) __asm__ volatile("");
}
