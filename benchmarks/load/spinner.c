/* spinner CORE: keeps one core from halting, in the idle scheduling class, until it is killed or its parent dies.
 *
 * Whoever yields the core gets it back within LOOPS: without that a yield would cost a time slice of 2.5 ms, which no core
 * that is idle by itself costs (decision 0012). */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>

#include "cores.h"

enum { LOOPS = 20000 }; /* 10 µs */

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct sched_param none = {0};
    if (sched_setscheduler(0, SCHED_IDLE, &none)) return 1;
    if (stay_on(argv[1])) return 1;
    for (;;) {
        for (int i = 0; i < LOOPS; i++) __asm__ volatile("");
        sched_yield();
    }
}
