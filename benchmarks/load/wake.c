/* wake CORE OTHER PAIRS: µs to wake a process on another core and be woken by it, the median of PAIRS; printed.
 *
 * Between two pairs the first works a moment, so that the other's core is as idle as between two requests. Status 1
 * where it cannot be done. */
#define _GNU_SOURCE
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "cores.h"
#include "histogram.h"

enum { WORK_NS = 50000, PATIENCE_MS = 2000 };

static struct histogram took;

static int ring(int bell) {
    uint64_t once = 1;
    return write(bell, &once, sizeof once) == sizeof once;
}

static int await(int bell) {
    uint64_t times;
    return read(bell, &times, sizeof times) == sizeof times;
}

static int measure(int there, int back, int pairs) {
    for (int i = -1; i < pairs; i++) {
        uint64_t began = now_ns();
        struct pollfd answer = {.fd = back, .events = POLLIN};
        if (!ring(there)) return 0;
        if (i < 0 && poll(&answer, 1, PATIENCE_MS) != 1) return 0; /* the other one never came */
        if (!await(back)) return 0;
        if (i >= 0) histogram_add(&took, now_ns() - began);
        for (uint64_t until = now_ns() + WORK_NS; now_ns() < until;) continue;
    }
    return 1;
}

int main(int argc, char **argv) {
    int pairs = argc == 4 ? atoi(argv[3]) : 0;
    if (pairs <= 0) return 2;
    int there = eventfd(0, EFD_CLOEXEC), back = eventfd(0, EFD_CLOEXEC);
    pid_t own = getpid();
    if (there < 0 || back < 0 || stay_on(argv[1])) return 1;
    pid_t other = fork();
    if (other < 0) return 1;
    if (other == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != own || stay_on(argv[2])) _exit(1);
        while (await(there) && ring(back)) continue;
        _exit(1);
    }
    int measured = measure(there, back, pairs);
    kill(other, SIGKILL);
    waitpid(other, NULL, 0);
    if (!measured) return 1;
    printf("%.1f\n", histogram_us(&took, 0.5));
    return 0;
}
