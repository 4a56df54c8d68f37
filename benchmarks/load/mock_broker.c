/* librdkafka's in-memory mock cluster of one broker, as a process of its own: an upper bound for any broker.
 *
 * Prints `ready HOST:PORT`, then reads commands from standard input until it ends:
 *   topic NAME PARTITIONS    creates a topic, answers `created NAME`
 *   fail KEY CODE            the next request of this API gets this error code, or with -195 loses its connection; answers
 *                            `failing KEY`: for tests of the generators
 *
 * The mock forgets all but the last 5 MB of a partition; reading a backlog back needs more, so each topic created here is
 * given KEPT_BYTES. The field is private to librdkafka, hence its inner header and a build against its source tree.
 * What it never does: check a CRC, write a file, answer a fetch with more than one batch.
 */
#include "rd.h"
#include "rdkafka_int.h"
#include "rdkafka_mock.h"
#include "rdkafka_mock_int.h"

#include <stdio.h>
#include <string.h>

static const size_t KEPT_BYTES = (size_t)12 << 30;
static const size_t KEPT_BATCHES = (size_t)1 << 40;

static void keep_more(rd_kafka_mock_cluster_t *cluster, const char *name) {
    rd_kafka_mock_topic_t *topic;
    TAILQ_FOREACH(topic, &cluster->topics, link) {
        if (strcmp(topic->name, name)) continue;
        for (int i = 0; i < topic->partition_cnt; i++) {
            topic->partitions[i].max_size = KEPT_BYTES;
            topic->partitions[i].max_cnt = KEPT_BATCHES;
        }
    }
}

int main(void) {
    char why[256];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    if (rd_kafka_conf_set(conf, "test.mock.num.brokers", "1", why, sizeof why) != RD_KAFKA_CONF_OK) return 1;
    rd_kafka_t *rk = rd_kafka_new(RD_KAFKA_PRODUCER, conf, why, sizeof why);
    if (!rk) {
        fprintf(stderr, "%s\n", why);
        return 1;
    }
    rd_kafka_mock_cluster_t *cluster = rd_kafka_handle_mock_cluster(rk);
    printf("ready %s\n", rd_kafka_mock_cluster_bootstraps(cluster));
    fflush(stdout);
    char line[512], name[256];
    int partitions, key, code;
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "fail %d %d", &key, &code) == 2) {
            rd_kafka_mock_push_request_errors(cluster, (int16_t)key, 1, (rd_kafka_resp_err_t)code);
            printf("failing %d\n", key);
        } else if (sscanf(line, "topic %255s %d", name, &partitions) != 2) {
            printf("not understood\n");
        } else {
            rd_kafka_resp_err_t error = rd_kafka_mock_topic_create(cluster, name, partitions, 1);
            if (error) {
                printf("%s\n", rd_kafka_err2str(error));
            } else {
                keep_more(cluster, name);
                printf("created %s\n", name);
            }
        }
        fflush(stdout);
    }
    rd_kafka_destroy(rk);
    return 0;
}
