/* The few Kafka frames the generator sends and reads, built once and then only patched.
 *
 * Request, header v2 (flexible):
 *   | 0 size i32 | 4 key i16 | 6 version i16 | 8 correlation i32 | 12 client id i16+bytes | tags | body
 * Versions: Produce 9, Fetch 12, the first flexible ones, OffsetCommit 7, the last that is not: topics by name, served by every broker since 2.4.
 * Source of the shapes: ProduceRequest.json, FetchRequest.json, DefaultRecordBatch of Apache Kafka.
 */
#ifndef BENCH_FRAMES_H
#define BENCH_FRAMES_H

#include <endian.h>
#include <nmmintrin.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    AT_CORRELATION = 8,
    BATCH_AT_LENGTH = 8,
    BATCH_AT_CRC = 17,
    BATCH_AT_ATTRIBUTES = 21,
    BATCH_AT_LAST_OFFSET_DELTA = 23,
    BATCH_AT_COUNT = 57,
    BATCH_HEADER = 61,
    BATCH_LENGTH_FROM = 12, /* batchLength counts from the leader epoch on */
};

struct writer {
    uint8_t *bytes;
    size_t length, room;
};

static inline void put(struct writer *w, const void *bytes, size_t length) {
    while (w->length + length > w->room) {
        w->room = w->room ? w->room * 2 : 4096;
        w->bytes = realloc(w->bytes, w->room);
        if (!w->bytes) abort();
    }
    memcpy(w->bytes + w->length, bytes, length);
    w->length += length;
}
static inline void put_i8(struct writer *w, int8_t v) { put(w, &v, 1); }
static inline void put_i16(struct writer *w, int16_t v) { uint16_t b = htobe16((uint16_t)v); put(w, &b, 2); }
static inline void put_i32(struct writer *w, int32_t v) { uint32_t b = htobe32((uint32_t)v); put(w, &b, 4); }
static inline void put_i64(struct writer *w, int64_t v) { uint64_t b = htobe64((uint64_t)v); put(w, &b, 8); }
static inline void put_uvarint(struct writer *w, uint64_t v) {
    for (; v >= 0x80; v >>= 7) put_i8(w, (int8_t)(v | 0x80));
    put_i8(w, (int8_t)v);
}
static inline void put_varint(struct writer *w, int64_t v) { put_uvarint(w, ((uint64_t)v << 1) ^ (uint64_t)(v >> 63)); }
static inline void put_compact(struct writer *w, const char *text) {
    size_t length = strlen(text);
    put_uvarint(w, length + 1);
    put(w, text, length);
}

static inline void set_i32(uint8_t *at, int32_t v) { uint32_t b = htobe32((uint32_t)v); memcpy(at, &b, 4); }
static inline void set_i64(uint8_t *at, int64_t v) { uint64_t b = htobe64((uint64_t)v); memcpy(at, &b, 8); }
static inline int16_t get_i16(const uint8_t *at) { uint16_t b; memcpy(&b, at, 2); return (int16_t)be16toh(b); }
static inline int32_t get_i32(const uint8_t *at) { uint32_t b; memcpy(&b, at, 4); return (int32_t)be32toh(b); }
static inline int64_t get_i64(const uint8_t *at) { uint64_t b; memcpy(&b, at, 8); return (int64_t)be64toh(b); }

/* Reads an unsigned varint; moves *at past it; returns -1 when the bytes end first. */
static inline int64_t get_uvarint(const uint8_t **at, const uint8_t *end) {
    uint64_t value = 0;
    for (int shift = 0; *at < end && shift < 63; shift += 7) {
        uint8_t byte = *(*at)++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) return (int64_t)value;
    }
    return -1;
}

/* Built for SSE 4.2, which every x86-64 host of the last fifteen years has. */
__attribute__((target("sse4.2"))) static uint32_t crc32c(const uint8_t *bytes, size_t length) {
    uint64_t crc = 0xffffffffu;
    for (; length >= 8; bytes += 8, length -= 8) {
        uint64_t word;
        memcpy(&word, bytes, 8);
        crc = _mm_crc32_u64(crc, word);
    }
    for (; length; bytes++, length--) crc = _mm_crc32_u8((uint32_t)crc, *bytes);
    return ~(uint32_t)crc;
}

static void put_batch(struct writer *w, int records, int record_bytes) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    int64_t timestamp_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    struct writer b = {0};
    put_i64(&b, 0);  /* base offset: the broker's to set */
    put_i32(&b, 0);  /* batch length, below */
    put_i32(&b, -1); /* leader epoch */
    put_i8(&b, 2);   /* magic */
    put_i32(&b, 0);  /* CRC, below */
    put_i16(&b, 0);  /* attributes */
    put_i32(&b, records - 1);
    put_i64(&b, timestamp_ms);
    put_i64(&b, timestamp_ms);
    put_i64(&b, -1); /* producer id */
    put_i16(&b, -1); /* producer epoch */
    put_i32(&b, -1); /* base sequence */
    put_i32(&b, records);
    uint8_t *value = malloc((size_t)record_bytes + 1);
    for (int i = 0; i < record_bytes; i++) value[i] = (uint8_t)('a' + i % 26);
    for (int i = 0; i < records; i++) {
        struct writer r = {0};
        put_i8(&r, 0);              /* attributes */
        put_varint(&r, 0);          /* timestamp delta */
        put_varint(&r, i);          /* offset delta */
        put_varint(&r, -1);         /* null key */
        put_varint(&r, record_bytes);
        put(&r, value, (size_t)record_bytes);
        put_varint(&r, 0);          /* headers */
        put_varint(&b, (int64_t)r.length);
        put(&b, r.bytes, r.length);
        free(r.bytes);
    }
    free(value);
    set_i32(b.bytes + BATCH_AT_LENGTH, (int32_t)(b.length - BATCH_LENGTH_FROM));
    set_i32(b.bytes + BATCH_AT_CRC, (int32_t)crc32c(b.bytes + BATCH_AT_ATTRIBUTES, b.length - BATCH_AT_ATTRIBUTES));
    put_uvarint(w, b.length + 1);
    put(w, b.bytes, b.length);
    free(b.bytes);
}

static void put_header(struct writer *w, int16_t key, int16_t version, int flexible) {
    put_i32(w, 0); /* size, in finish_frame */
    put_i16(w, key);
    put_i16(w, version);
    put_i32(w, 0); /* correlation id, patched for each request */
    put_i16(w, 5);
    put(w, "bench", 5);
    if (flexible) put_i8(w, 0);
}
static void finish_frame(struct writer *w) { set_i32(w->bytes, (int32_t)(w->length - 4)); }

static struct writer produce_frame(const char *topic, int partition, int acks, int records, int record_bytes) {
    struct writer w = {0};
    put_header(&w, 0, 9, 1);
    put_uvarint(&w, 0); /* no transactional id */
    put_i16(&w, (int16_t)acks);
    put_i32(&w, 30000);
    put_uvarint(&w, 2);
    put_compact(&w, topic);
    put_uvarint(&w, 2);
    put_i32(&w, partition);
    put_batch(&w, records, record_bytes);
    put(&w, "\0\0\0", 3); /* tags of partition, topic, body */
    finish_frame(&w);
    return w;
}

/* Leaves in *at_offset where the fetch offset is to be patched. */
static struct writer fetch_frame(const char *topic, int partition, int max_bytes, size_t *at_offset) {
    struct writer w = {0};
    put_header(&w, 1, 12, 1);
    put_i32(&w, -1);  /* replica id: a consumer */
    put_i32(&w, 500); /* max wait ms */
    put_i32(&w, 1);   /* min bytes */
    put_i32(&w, max_bytes);
    put_i8(&w, 0);    /* read uncommitted */
    put_i32(&w, 0);   /* session id */
    put_i32(&w, -1);  /* session epoch: no session */
    put_uvarint(&w, 2);
    put_compact(&w, topic);
    put_uvarint(&w, 2);
    put_i32(&w, partition);
    put_i32(&w, -1);  /* current leader epoch */
    *at_offset = w.length;
    put_i64(&w, 0);
    put_i32(&w, -1);  /* last fetched epoch */
    put_i64(&w, -1);  /* log start offset */
    put_i32(&w, max_bytes);
    put(&w, "\0\0", 2); /* tags of partition, topic */
    put_uvarint(&w, 1); /* no forgotten topics */
    put_uvarint(&w, 1); /* empty rack id */
    put_i8(&w, 0);
    finish_frame(&w);
    return w;
}

enum { GROUP_DIGITS = 6 };

/* The offset that is committed of a partition: they differ, as offsets do. generators.py knows it, too. */
#define COMMITTED_OF(partition) (1000000 + 1009 * (int64_t)(partition))

/* OffsetCommit v7 of `partitions` partitions from `first` on, by nobody's member: what a client without a group sends.
 * Leaves in *at_group where the last digits of the group's name are to be patched, in *at_offset where the first
 * partition's offset is. */
static struct writer commit_frame(const char *topic, int first, int partitions, size_t *at_group, size_t *at_offset) {
    static const char group[] = "bench-group-000000";
    struct writer w = {0};
    put_header(&w, 8, 7, 0);
    put_i16(&w, (int16_t)strlen(group));
    put(&w, group, strlen(group));
    *at_group = w.length - GROUP_DIGITS;
    put_i32(&w, -1); /* generation */
    put_i16(&w, 0);  /* member id */
    put_i16(&w, -1); /* instance id */
    put_i32(&w, 1);
    put_i16(&w, (int16_t)strlen(topic));
    put(&w, topic, strlen(topic));
    put_i32(&w, partitions);
    *at_offset = w.length + 4;
    for (int i = 0; i < partitions; i++) {
        put_i32(&w, first + i);
        put_i64(&w, COMMITTED_OF(first + i));
        put_i32(&w, -1); /* leader epoch */
        put_i16(&w, 0);  /* metadata */
    }
    finish_frame(&w);
    return w;
}

/* FindCoordinator v0 of a group whose name ends in zeros. */
static struct writer coordinator_frame(void) {
    struct writer w = {0};
    put_header(&w, 10, 0, 0);
    put_i16(&w, 18);
    put(&w, "bench-group-000000", 18);
    finish_frame(&w);
    return w;
}

/* Metadata v4 of one topic, created when it is not there. */
static struct writer metadata_frame(const char *topic) {
    struct writer w = {0};
    put_header(&w, 3, 4, 0);
    put_i32(&w, 1);
    put_i16(&w, (int16_t)strlen(topic));
    put(&w, topic, strlen(topic));
    put_i8(&w, 1);
    finish_frame(&w);
    return w;
}

static struct writer api_versions_frame(void) {
    struct writer w = {0};
    put_header(&w, 18, 0, 0);
    finish_frame(&w);
    return w;
}

enum { MALFORMED = -1000 };

/* Of a Produce v9 response of one topic and one partition (behind the size): its error code, or MALFORMED. */
static int produce_error(const uint8_t *at, size_t length, size_t topic_length) {
    const uint8_t *end = at + length;
    at += 5; /* correlation id, header tags */
    if (get_uvarint(&at, end) != 2 || get_uvarint(&at, end) != (int64_t)topic_length + 1) return MALFORMED;
    at += topic_length;
    if (get_uvarint(&at, end) != 2 || at + 4 + 2 + 8 > end) return MALFORMED;
    return get_i16(at + 4);
}

/* Of an OffsetCommit v7 response of one topic: the first error code of its partitions, or MALFORMED. */
static int commit_error(const uint8_t *at, size_t length, size_t topic_length) {
    const uint8_t *end = at + length;
    at += 4 + 4; /* correlation id, throttle time */
    if (at + 4 + 2 > end || get_i32(at) != 1 || get_i16(at + 4) != (int16_t)topic_length) return MALFORMED;
    at += 4 + 2 + topic_length;
    if (at + 4 > end) return MALFORMED;
    int32_t partitions = get_i32(at);
    at += 4;
    if (partitions < 1 || end - at != 6 * (int64_t)partitions) return MALFORMED;
    for (; at < end; at += 6)
        if (get_i16(at + 4)) return get_i16(at + 4);
    return 0;
}

/* Of a Fetch v12 response: its error code or MALFORMED; counts records and bytes; *offset moves to the next record
 * wanted, or back to 0 at the high watermark. A batch cut short by max bytes is not counted. */
static int fetch_read(const uint8_t *at, size_t length, size_t topic_length, int64_t *offset, uint64_t *records,
                      uint64_t *bytes) {
    const uint8_t *end = at + length;
    at += 5 + 4; /* correlation id, header tags, throttle time */
    if (at + 6 > end) return MALFORMED;
    int error = get_i16(at);
    if (error) return error;
    at += 2 + 4; /* error, session id */
    if (get_uvarint(&at, end) != 2 || get_uvarint(&at, end) != (int64_t)topic_length + 1) return MALFORMED;
    at += topic_length;
    if (get_uvarint(&at, end) != 2 || at + 30 > end) return MALFORMED;
    error = get_i16(at + 4);
    if (error) return error;
    int64_t high_watermark = get_i64(at + 6);
    at += 4 + 2 + 8 + 8 + 8;
    int64_t aborted = get_uvarint(&at, end);
    if (aborted > 1) return MALFORMED; /* none are written here */
    at += 4;                           /* preferred read replica */
    int64_t size = get_uvarint(&at, end) - 1;
    if (size < 0 || at + size > end) return MALFORMED;
    end = at + size;
    while (at + BATCH_HEADER <= end) {
        int64_t batch = BATCH_LENGTH_FROM + (int64_t)get_i32(at + BATCH_AT_LENGTH);
        if (batch < BATCH_HEADER || at + batch > end) break;
        int64_t next = get_i64(at) + get_i32(at + BATCH_AT_LAST_OFFSET_DELTA) + 1;
        if (next > *offset) {
            *records += (uint64_t)get_i32(at + BATCH_AT_COUNT);
            *bytes += (uint64_t)batch;
            *offset = next;
        }
        at += batch;
    }
    if (*offset >= high_watermark) *offset = 0;
    return 0;
}

#endif
