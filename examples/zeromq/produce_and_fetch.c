/* Produce and fetch records over ZeroMQ, with libzmq and nothing else. docs/zeromq.md describes what is sent.
 *
 *     cc -O2 -o produce_and_fetch produce_and_fetch.c -lzmq
 *     ./produce_and_fetch ipc:///run/appliance/zeromq TOPIC VALUE...
 *
 * It prints each record of partition 0 as `offset value`. Every failure ends the program with a line that says why.
 */
#include "client.h"

static uint32_t crc32c(const uint8_t *bytes, size_t length) {
    uint32_t crc = ~0u;
    while (length--) {
        crc ^= *bytes++;
        for (int i = 0; i < 8; i++) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
    }
    return ~crc;
}

static Buffer encode_batch(char **values, int count) {
    Buffer tail = {0}, batch = {0};
    int64_t now_ms = (int64_t)time(NULL) * 1000;
    put_int(&tail, 0, 2); /* attributes */
    put_int(&tail, count - 1, 4);
    put_int(&tail, now_ms, 8);
    put_int(&tail, now_ms, 8);
    put_int(&tail, -1, 8); /* producer id, epoch, sequence: none */
    put_int(&tail, -1, 2);
    put_int(&tail, -1, 4);
    put_int(&tail, count, 4);
    for (int i = 0; i < count; i++) {
        Buffer record = {0};
        put_int(&record, 0, 1);
        put_varint(&record, 0);
        put_varint(&record, i);
        put_varint(&record, -1); /* no key */
        put_varint(&record, (int64_t)strlen(values[i]));
        put(&record, values[i], strlen(values[i]));
        put_varint(&record, 0); /* no headers */
        put_varint(&tail, (int64_t)record.length);
        put(&tail, record.bytes, record.length);
        free(record.bytes);
    }
    put_int(&batch, 0, 8);
    put_int(&batch, 9 + (int64_t)tail.length, 4);
    put_int(&batch, -1, 4);
    put_int(&batch, 2, 1);
    put_int(&batch, crc32c(tail.bytes, tail.length), 4);
    put(&batch, tail.bytes, tail.length);
    free(tail.bytes);
    return batch;
}

/* The batch travels in a frame of its own. */
static void produce(Session *session, const char *topic, char **values, int count) {
    Buffer batch = encode_batch(values, count), body = {0};
    put_int(&body, -1, 2); /* no transactional id */
    put_int(&body, -1, 2); /* acks=all */
    put_int(&body, PATIENCE_MS, 4);
    put_int(&body, 1, 4);
    put_string(&body, topic);
    put_int(&body, 1, 4);
    put_int(&body, 0, 4);
    put_int(&body, (int64_t)batch.length, 4);
    for (;;) {
        Buffer response = ask(session, PRODUCE, 8, &body, &batch);
        Reader reader = {response.bytes, response.bytes + response.length};
        skip(&reader, 4 + 4 + 2 + (int64_t)strlen(topic) + 4 + 4);
        int error = (int)get_int(&reader, 2);
        free(response.bytes);
        if (!error) break;
        if (error != 3 && error != 5 && error != 6) fail("produce: Kafka's error %d", error);
        usleep(100000); /* the topic is new and nobody leads it yet */
    }
    free(body.bytes), free(batch.bytes);
}

/* Prints the records of partition 0 from `offset` on; returns the offset behind the last one. */
static int64_t fetch(Session *session, const char *topic, int64_t offset) {
    Buffer body = {0};
    put_int(&body, -1, 4);
    put_int(&body, 1000, 4); /* wait for records, so many milliseconds */
    put_int(&body, 1, 4);
    put_int(&body, 8 << 20, 4);
    put_int(&body, 0, 1);
    put_int(&body, 1, 4);
    put_string(&body, topic);
    put_int(&body, 1, 4);
    put_int(&body, 0, 4);
    put_int(&body, offset, 8);
    put_int(&body, 8 << 20, 4);
    Buffer response = ask(session, FETCH, 4, &body, NULL);
    Reader reader = {response.bytes, response.bytes + response.length};
    int error = read_head(&reader, topic);
    if (error) fail("fetch: Kafka's error %d", error);
    int64_t left = INT64_MAX, end = print_records(&reader, offset, &left);
    free(body.bytes), free(response.bytes);
    return end;
}

int main(int count, char **arguments) {
    if (count < 3) fail("usage: %s ENDPOINT TOPIC VALUE...", arguments[0]);
    Session session = {0};
    open_session(&session, arguments[1]);
    create(&session, arguments[2]);
    if (count > 3) produce(&session, arguments[2], arguments + 3, count - 3);
    for (int64_t offset = 0, next; (next = fetch(&session, arguments[2], offset)) > offset; offset = next) {
    }
    close_session(&session);
    return 0;
}
