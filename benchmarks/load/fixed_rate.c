/* Records at a fixed rate through librdkafka, written and read back by one program: an open loop.
 *
 *   fixed_rate HOST:PORT partitions records_s seconds warmup_ms record_bytes TOPIC ...
 *
 * Record n is due at start + n / records_s and carries that instant. Two times are told for each, both from when it was
 * due, so that a broker that falls behind cannot hide it: until the producer's delivery report, and until the consumer
 * has it. Records go round over all partitions of all topics. acks=all, linger 5 ms, idempotent; the consumer waits at all ends.
 *
 * Before the clock starts, one record goes to each partition and comes back: both clients know all leaders then.
 *
 * Prints one JSON object. A failed delivery, a record that does not come back, comes twice or was sent again, or a lost
 * connection ends it with status 1.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "histogram.h"
#include "rdkafka.h"
#include "watched.h"

/* A broker that falls behind shows in its times; given up is what is lost. */
static const uint64_t PATIENCE_NS = 120000000000ull;

static struct histogram produced, consumed;
static uint64_t measure_from_ns, reported, read_back, wanted;
static volatile int over;
static rd_kafka_t *consumer;

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

static void add(struct histogram *h, const void *payload, size_t length) {
    uint64_t due_ns;
    if (length < sizeof due_ns) die("record", "too short");
    memcpy(&due_ns, payload, sizeof due_ns);
    if (due_ns >= measure_from_ns) histogram_add(h, now_ns() - due_ns);
}

static void on_report(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque) {
    (void)rk, (void)opaque;
    if (message->err) die("delivery", rd_kafka_err2str(message->err));
    add(&produced, message->payload, message->len);
    reported++;
}

static void *read_all(void *nothing) {
    while (!over) {
        rd_kafka_message_t *message = rd_kafka_consumer_poll(consumer, 100);
        if (!message) continue;
        if (message->err) die("consumer", rd_kafka_message_errstr(message));
        add(&consumed, message->payload, message->len);
        __atomic_add_fetch(&read_back, 1, __ATOMIC_RELAXED);
        rd_kafka_message_destroy(message);
    }
    return nothing;
}

static rd_kafka_t *client(rd_kafka_type_t type, const char *address) {
    char why[256];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    const char *settings[][2] = {{"bootstrap.servers", address}, {"group.id", "bench"},
                                 {"linger.ms", "5"},             {"acks", "all"},
                                 {"enable.idempotence", "true"}, /* what it sends again is no record more */
                                 {"enable.auto.commit", "false"}, {"allow.auto.create.topics", "false"}};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        int producers_only = i >= 2 && i <= 4, consumers_only = i == 1 || i >= 5;
        if (type == RD_KAFKA_PRODUCER ? consumers_only : producers_only) continue;
        if (rd_kafka_conf_set(conf, settings[i][0], settings[i][1], why, sizeof why) != RD_KAFKA_CONF_OK)
            die(settings[i][0], why);
    }
    if (type == RD_KAFKA_PRODUCER) rd_kafka_conf_set_dr_msg_cb(conf, on_report);
    watch(conf);
    rd_kafka_t *made = rd_kafka_new(type, conf, why, sizeof why);
    if (!made) die("client", why);
    return made;
}

static void put(rd_kafka_t *producer, rd_kafka_topic_t *topic, int32_t partition, void *value, size_t length) {
    while (rd_kafka_produce(topic, partition, RD_KAFKA_MSG_F_COPY, value, length, NULL, 0, NULL)) {
        if (rd_kafka_last_error() != RD_KAFKA_RESP_ERR__QUEUE_FULL)
            die("produce", rd_kafka_err2str(rd_kafka_last_error()));
        rd_kafka_poll(producer, 10);
    }
}

static void await_all(rd_kafka_t *producer, uint64_t records) {
    uint64_t until = now_ns() + PATIENCE_NS;
    while (reported < records || __atomic_load_n(&read_back, __ATOMIC_RELAXED) < records) {
        rd_kafka_poll(producer, 1);
        if (now_ns() > until) {
            fprintf(stderr, "records: of %llu in time %llu were acknowledged, %llu came back\n", (unsigned long long)records,
                    (unsigned long long)reported, (unsigned long long)__atomic_load_n(&read_back, __ATOMIC_RELAXED));
            exit(1);
        }
    }
}

int main(int argc, char **argv) {
    if (argc < 8) die("fixed_rate", "HOST:PORT partitions records_s seconds warmup_ms record_bytes TOPIC ...");
    int partitions = atoi(argv[2]), topics = argc - 7;
    double records_s = strtod(argv[3], NULL), seconds = strtod(argv[4], NULL), warmup_ms = strtod(argv[5], NULL);
    size_t record_bytes = strtoul(argv[6], NULL, 10);
    if (record_bytes < sizeof(uint64_t)) die("record_bytes", "at least 8");
    uint64_t opened = now_ns();
    rd_kafka_t *producer = client(RD_KAFKA_PRODUCER, argv[1]);
    consumer = client(RD_KAFKA_CONSUMER, argv[1]);
    rd_kafka_poll_set_consumer(consumer);
    rd_kafka_topic_t **handles = calloc((size_t)topics, sizeof *handles);
    rd_kafka_topic_partition_list_t *all = rd_kafka_topic_partition_list_new(topics * partitions);
    for (int t = 0; t < topics; t++) {
        handles[t] = rd_kafka_topic_new(producer, argv[7 + t], NULL);
        for (int p = 0; p < partitions; p++)
            rd_kafka_topic_partition_list_add(all, argv[7 + t], p)->offset = 0; /* the topics are empty */
    }
    if (rd_kafka_assign(consumer, all)) die("assign", "refused");
    pthread_t reader;
    pthread_create(&reader, NULL, read_all, NULL);

    uint64_t step_ns = (uint64_t)(1e9 / records_s);
    uint64_t places = (uint64_t)topics * (uint64_t)partitions;
    uint64_t timed = (uint64_t)(records_s * (seconds + warmup_ms / 1000.0));
    char *value = malloc(record_bytes);
    memset(value, 'x', record_bytes);
    measure_from_ns = UINT64_MAX;
    for (uint64_t place = 0; place < places; place++) {
        memset(value, 0, sizeof(uint64_t));
        put(producer, handles[place / (uint64_t)partitions], (int32_t)(place % (uint64_t)partitions), value, record_bytes);
    }
    await_all(producer, places);
    double first_round = (double)(now_ns() - opened) / 1e9;
    wanted = places + timed;
    uint64_t from = now_ns() + 100000000ull;
    measure_from_ns = from + (uint64_t)(warmup_ms * 1e6);
    double cpu = cpu_seconds();
    uint64_t began = now_ns();
    for (uint64_t n = 0; n < timed; n++) {
        uint64_t due_ns = from + n * step_ns, now;
        while ((now = now_ns()) < due_ns) {
            if (rd_kafka_poll(producer, 0)) continue;
            uint64_t rest = due_ns - now;
            if (rest > 100000) rest = 100000;
            struct timespec pause = {.tv_nsec = (long)rest};
            nanosleep(&pause, NULL);
        }
        memcpy(value, &due_ns, sizeof due_ns);
        uint64_t place = n % places;
        put(producer, handles[place / (uint64_t)partitions], (int32_t)(place % (uint64_t)partitions), value, record_bytes);
        if (n % 8 == 0) rd_kafka_poll(producer, 0);
    }
    await_all(producer, wanted);
    double whole = (double)(now_ns() - began) / 1e9;
    cpu = cpu_seconds() - cpu;
    over = 1;
    pthread_join(reader, NULL);
    if (read_back != wanted) die("records", "more came back than were sent");
    check_sent_once(producer, wanted);
    stop_watching();
    printf("{\"records\": %llu, \"first_round_seconds\": %.6f, \"whole_seconds\": %.6f, \"produce_p50_us\": %.2f, \"produce_p99_us\": %.2f, "
           "\"produce_p999_us\": %.2f, \"end_p50_us\": %.2f, \"end_p99_us\": %.2f, \"end_p999_us\": %.2f, "
           "\"cpu_share\": %.4f}\n",
           (unsigned long long)wanted, first_round, whole, histogram_us(&produced, 0.5), histogram_us(&produced, 0.99),
           histogram_us(&produced, 0.999), histogram_us(&consumed, 0.5), histogram_us(&consumed, 0.99),
           histogram_us(&consumed, 0.999), cpu / whole);
    fflush(stdout);
    _exit(0); /* clients' own good-byes are no part of it */
}
