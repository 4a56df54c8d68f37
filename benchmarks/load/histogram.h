/* A log-linear histogram of nanoseconds: 128 steps in each power of two, so a reading is off by less than 1 %.
 *
 *   value   0 ........ 255 | 256 .. 511 | 512 .. 1023 | ...
 *   step          1        |     2      |      4      | ...
 */
#ifndef BENCH_HISTOGRAM_H
#define BENCH_HISTOGRAM_H

#include <stdint.h>

enum { STEPS_BITS = 7, STEPS = 1 << STEPS_BITS, BUCKETS = (64 - STEPS_BITS + 1) * STEPS };

struct histogram {
    uint64_t count;
    uint64_t highest_ns;
    uint64_t buckets[BUCKETS];
};

static inline unsigned histogram_bucket(uint64_t ns) {
    if (ns < 2 * STEPS) return (unsigned)ns;
    unsigned shift = 63u - (unsigned)__builtin_clzll(ns) - STEPS_BITS;
    return (shift + 1) * STEPS + (unsigned)(ns >> shift) - STEPS;
}

static inline uint64_t histogram_middle(unsigned bucket) {
    if (bucket < 2 * STEPS) return bucket;
    unsigned shift = bucket / STEPS - 1;
    return ((uint64_t)(bucket % STEPS + STEPS) << shift) + ((1ull << shift) >> 1);
}

static inline void histogram_add(struct histogram *h, uint64_t ns) {
    h->count++;
    if (ns > h->highest_ns) h->highest_ns = ns;
    h->buckets[histogram_bucket(ns)]++;
}

static inline double histogram_us(const struct histogram *h, double quantile) {
    uint64_t wanted = (uint64_t)(quantile * (double)h->count);
    uint64_t seen = 0;
    for (unsigned i = 0; i < BUCKETS; i++) {
        seen += h->buckets[i];
        if (seen > wanted) return (double)histogram_middle(i) / 1000.0;
    }
    return (double)h->highest_ns / 1000.0;
}

#endif
