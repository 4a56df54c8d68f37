/* A plugin for rdkafka_performance: as its producer ends, says on standard error `sent N`, records with those sent again.
 *
 * That program carries librdkafka within itself and this one comes with its shared library: both of one build, so that
 * one can read what the other has laid out.
 */
#include "watched.h"

static rd_kafka_resp_err_t on_destroy(rd_kafka_t *rk, void *opaque) {
    (void)opaque;
    fprintf(stderr, "sent %llu\n", (unsigned long long)records_sent(rk));
    return RD_KAFKA_RESP_ERR_NO_ERROR;
}

static rd_kafka_resp_err_t on_new(rd_kafka_t *rk, const rd_kafka_conf_t *conf, void *opaque, char *why, size_t room) {
    (void)conf, (void)opaque, (void)why, (void)room;
    return rd_kafka_interceptor_add_on_destroy(rk, "count_sent", on_destroy, NULL);
}

rd_kafka_resp_err_t conf_init(rd_kafka_conf_t *conf, void **opaque, char *why, size_t room) {
    (void)opaque, (void)why, (void)room;
    return rd_kafka_conf_interceptor_add_on_new(conf, "count_sent", on_new, NULL);
}
