/* One record at a time through a real client, librdkafka: linger.ms=0, the next record only after the last one's report.
 *
 *   client_latency HOST:PORT TOPIC seconds warmup_ms record_bytes acks
 *
 * Prints one JSON object of percentiles in µs, from the produce call to the delivery report in the same thread: two thread
 * switches inside the client are part of it, as they are for its users. A failed delivery, a lost connection or a record that
 * was sent again ends the run with status 1.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "clock.h"
#include "histogram.h"
#include "rdkafka.h"
#include "watched.h"

static struct histogram latency;
static int delivered;

static void die(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static double cpu_seconds(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void on_report(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque) {
    (void)rk, (void)opaque;
    if (message->err) die("delivery", rd_kafka_err2str(message->err));
    delivered = 1;
}

static void set(rd_kafka_conf_t *conf, const char *name, const char *value) {
    char why[256];
    if (rd_kafka_conf_set(conf, name, value, why, sizeof why) != RD_KAFKA_CONF_OK) die(name, why);
}

int main(int argc, char **argv) {
    if (argc != 7) die("client_latency", "HOST:PORT TOPIC seconds warmup_ms record_bytes acks");
    double seconds = strtod(argv[3], NULL), warmup_ms = strtod(argv[4], NULL);
    size_t record_bytes = strtoul(argv[5], NULL, 10);
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    set(conf, "bootstrap.servers", argv[1]);
    set(conf, "linger.ms", "0");
    set(conf, "acks", argv[6]);
    rd_kafka_conf_set_dr_msg_cb(conf, on_report);
    watch(conf);
    char why[256];
    rd_kafka_t *rk = rd_kafka_new(RD_KAFKA_PRODUCER, conf, why, sizeof why);
    if (!rk) die("producer", why);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(rk, argv[2], NULL);
    char *value = malloc(record_bytes + 1);
    memset(value, 'x', record_bytes);

    uint64_t sent = 0, from = 0, to = 0, now = 0;
    double cpu = 0;
    for (;;) {
        uint64_t asked = now_ns();
        delivered = 0;
        if (rd_kafka_produce(topic, 0, RD_KAFKA_MSG_F_COPY, value, record_bytes, NULL, 0, NULL))
            die("produce", rd_kafka_err2str(rd_kafka_last_error()));
        while (!delivered) rd_kafka_poll(rk, 1000);
        now = now_ns();
        if (!sent++) { /* the first one also looked up the topic: the clock starts behind it */
            from = now + (uint64_t)(warmup_ms * 1e6);
            to = from + (uint64_t)(seconds * 1e9);
        } else if (asked >= from) {
            if (!latency.count) cpu = cpu_seconds();
            histogram_add(&latency, now - asked);
        }
        if (now >= to) break;
    }
    cpu = cpu_seconds() - cpu;
    double measured = (double)(now - from) / 1e9;
    check_sent_once(rk, sent);
    stop_watching();
    printf("{\"requests\": %llu, \"acked_records\": %llu, \"seconds\": %.6f, \"requests_s\": %.1f, \"p50_us\": %.2f, "
           "\"p99_us\": %.2f, \"p999_us\": %.2f, \"max_us\": %.2f, \"cpu_share\": %.4f}\n",
           (unsigned long long)latency.count, (unsigned long long)sent, measured, (double)latency.count / measured,
           histogram_us(&latency, 0.5), histogram_us(&latency, 0.99), histogram_us(&latency, 0.999),
           (double)latency.highest_ns / 1000.0, cpu / measured);
    rd_kafka_topic_destroy(topic);
    rd_kafka_destroy(rk);
    free(value);
    return 0;
}
