/* A librdkafka client that passes over nothing: what it would mend in silence ends the program with status 1.
 *
 * A lost connection, a request that timed out, a broker that refuses: librdkafka logs it, perhaps calls the error callback
 * (only where no broker is left, or where it could not connect), tries again, and the record counts as delivered. A healthy
 * client logs nothing at the level it has by default but CONFWARN, about settings.
 * What it sends again because an answer had an error code is not even logged: that is counted, `check_sent_once`.
 */
#ifndef BENCH_WATCHED_H
#define BENCH_WATCHED_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rdkafka.h"

static int watched_no_more; /* set before the clients say good-bye: what they say then is no error */

/* From any thread of a client. The first error speaks; _exit, since others may be under way. */
static inline void end_watched(const char *what, const char *why) {
    static int said;
    if (__atomic_load_n(&watched_no_more, __ATOMIC_SEQ_CST) || __atomic_exchange_n(&said, 1, __ATOMIC_SEQ_CST)) return;
    fprintf(stderr, "%s: %s\n", what, why);
    _exit(1);
}

static inline void on_error(rd_kafka_t *rk, int error, const char *reason, void *opaque) {
    (void)rk, (void)opaque;
    end_watched(rd_kafka_err2name((rd_kafka_resp_err_t)error), reason);
}

static inline void on_log(const rd_kafka_t *rk, int level, const char *name, const char *text) {
    (void)rk, (void)level;
    if (strcmp(name, "CONFWARN")) end_watched(name, text);
}

static inline void watch(rd_kafka_conf_t *conf) {
    rd_kafka_conf_set_error_cb(conf, on_error);
    rd_kafka_conf_set_log_cb(conf, on_log);
}

static inline void stop_watching(void) { __atomic_store_n(&watched_no_more, 1, __ATOMIC_SEQ_CST); }

/* What a producer has sent over all partitions, in records; each counts as often as it was sent. Only rd_kafka_dump tells
 * (and statistics at an interval, which would come while the clock runs). */
static inline uint64_t records_sent(rd_kafka_t *producer) {
    char *text = NULL;
    size_t length = 0;
    FILE *into = open_memstream(&text, &length);
    if (!into) abort();
    rd_kafka_dump(into, producer);
    fclose(into);
    char *end = strstr(text, "\n cgrp:"); /* each partition stands under its broker, and perhaps once more behind */
    if (end) *end = 0;
    uint64_t sent = 0;
    for (const char *at = text; (at = strstr(at, "total:")); at++) sent += strtoull(at + strlen("total:"), NULL, 10);
    free(text);
    return sent;
}

/* Once all its records are acknowledged. */
static inline void check_sent_once(rd_kafka_t *producer, uint64_t records) {
    char why[128];
    uint64_t sent = records_sent(producer);
    snprintf(why, sizeof why, "%llu records were sent for %llu: some more than once", (unsigned long long)sent,
             (unsigned long long)records);
    if (sent != records) end_watched("sent", why);
}

#endif
