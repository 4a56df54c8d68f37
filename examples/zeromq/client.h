/* One session with broker 0, and Kafka's formats as short as they can be. docs/zeromq.md describes what is sent. */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#define SHARED static inline

enum { HELLO = 1, WELCOME, OPEN, OPENED, REQUEST, RESPONSE, CREDIT, HEARTBEAT, CLOSE, ERROR };
enum { PRODUCE = 0, FETCH = 1, METADATA = 3 };
enum { HEADER_BYTES = 24, TOKEN_BYTES = 16, MORE = 1, WINDOW = 4 << 20 };
enum { PATIENCE_MS = 30000, HEARTBEAT_MS = 2000 };

SHARED void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    exit(1);
}

/* A buffer that grows; integers go in as big-endian. */
typedef struct {
    uint8_t *bytes;
    size_t length, room;
} Buffer;

SHARED void put(Buffer *to, const void *bytes, size_t length) {
    if (to->length + length > to->room) {
        to->room = 2 * (to->length + length) + 64;
        to->bytes = realloc(to->bytes, to->room);
        if (!to->bytes) fail("out of memory");
    }
    if (length) memcpy(to->bytes + to->length, bytes, length);
    to->length += length;
}

SHARED void put_int(Buffer *to, int64_t number, int width) {
    uint8_t bytes[8];
    for (int i = width; i--; number >>= 8) bytes[i] = (uint8_t)number;
    put(to, bytes, (size_t)width);
}

SHARED void put_string(Buffer *to, const char *text) {
    put_int(to, (int64_t)strlen(text), 2);
    put(to, text, strlen(text));
}

SHARED void put_varint(Buffer *to, int64_t number) {
    uint64_t left = (uint64_t)number << 1 ^ (uint64_t)(number >> 63);
    for (; left > 127; left >>= 7) put_int(to, (int64_t)(left & 127) | 128, 1);
    put_int(to, (int64_t)left, 1);
}

/* A place in received bytes; reading beyond their end fails. */
typedef struct {
    const uint8_t *at, *end;
} Reader;

SHARED const uint8_t *skip(Reader *from, int64_t length) {
    if (length < 0 || length > from->end - from->at) fail("the response ends too early");
    from->at += length;
    return from->at - length;
}

SHARED int64_t get_int(Reader *from, int width) {
    const uint8_t *bytes = skip(from, width);
    uint64_t number = bytes[0] & 0x80 ? UINT64_MAX : 0;
    for (int i = 0; i < width; i++) number = number << 8 | bytes[i];
    return (int64_t)number;
}

SHARED int64_t get_varint(Reader *from) {
    uint64_t number = 0, byte = 128;
    for (int shift = 0; byte & 128 && shift < 64; shift += 7) {
        byte = *skip(from, 1);
        number |= (byte & 127) << shift;
    }
    return (int64_t)(number >> 1 ^ -(number & 1));
}

/* The session. */
typedef struct {
    void *context, *socket;
    uint8_t token[TOKEN_BYTES];
    int32_t broker_id, correlation_id;
    int is_open;
    uint8_t heartbeat_mark[8]; /* of the last heartbeat that has arrived */
} Session;

SHARED void *dealer(void *context, const char *endpoint) {
    int linger = 1000, immediate = 1;
    void *socket = zmq_socket(context, ZMQ_DEALER);
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
    zmq_setsockopt(socket, ZMQ_IMMEDIATE, &immediate, sizeof immediate);
    if (zmq_connect(socket, endpoint)) fail("cannot connect to %s: %s", endpoint, zmq_strerror(zmq_errno()));
    return socket;
}

/* Sends a message of one body frame, and a second one where `records` are given. */
SHARED void send_message(Session *session, int kind, const Buffer *body, const Buffer *records) {
    uint8_t header[HEADER_BYTES] = {0x4B, 0x5A, 1, (uint8_t)kind};
    memcpy(header + 8, session->token, TOKEN_BYTES);
    zmq_send(session->socket, header, sizeof header, ZMQ_SNDMORE);
    zmq_send(session->socket, body->bytes, body->length, records ? ZMQ_SNDMORE : 0);
    if (records) zmq_send(session->socket, records->bytes, records->length, 0);
}

/* Waits for the next message; sends heartbeats while nothing comes. */
SHARED void wait_for_message(Session *session) {
    zmq_pollitem_t item = {session->socket, 0, ZMQ_POLLIN, 0};
    for (int waited_ms = 0; zmq_poll(&item, 1, HEARTBEAT_MS) < 1; waited_ms += HEARTBEAT_MS) {
        if (waited_ms >= PATIENCE_MS) fail("the broker does not answer");
        if (!session->is_open) continue;
        Buffer mark = {0};
        put(&mark, session->heartbeat_mark, sizeof session->heartbeat_mark);
        send_message(session, HEARTBEAT, &mark, NULL);
        free(mark.bytes);
    }
}

/* Receives a message; its body is added to `body`. Returns its kind; sets MORE in `flags`. */
SHARED int receive(Session *session, Buffer *body, int *flags) {
    uint8_t header[HEADER_BYTES];
    wait_for_message(session);
    if (zmq_recv(session->socket, header, sizeof header, 0) != HEADER_BYTES) fail("not a header");
    int more, kind = header[3];
    size_t size = sizeof more, start = body->length;
    while (zmq_getsockopt(session->socket, ZMQ_RCVMORE, &more, &size), more) {
        zmq_msg_t frame;
        zmq_msg_init(&frame);
        zmq_msg_recv(&frame, session->socket, 0);
        put(body, zmq_msg_data(&frame), zmq_msg_size(&frame));
        zmq_msg_close(&frame);
    }
    if (kind == ERROR && body->length - start >= 4)
        fail("error %d: %.*s", body->bytes[start + 1], (int)(body->length - start - 4), body->bytes + start + 4);
    static const uint8_t no_mark[8];
    if (kind == HEARTBEAT) {
        memcpy(session->heartbeat_mark, header + 8, sizeof session->heartbeat_mark);
    } else if (memcmp(header + 8, no_mark, sizeof no_mark)) {
        /* It is consumed at once, so it is acknowledged at once. */
        Buffer credit = {0};
        put(&credit, header + 8, 8);
        put_int(&credit, WINDOW, 8);
        send_message(session, CREDIT, &credit, NULL);
        free(credit.bytes);
    }
    *flags = header[7];
    return kind;
}

SHARED void open_session(Session *session, const char *listener) {
    Buffer hello = {0}, welcome = {0}, opening = {0}, opened = {0};
    int flags;
    session->context = zmq_ctx_new();
    session->socket = dealer(session->context, listener);
    put_int(&hello, 1, 1);
    put_int(&hello, -1, 4);
    put_string(&hello, "example");
    send_message(session, HELLO, &hello, NULL);
    if (receive(session, &welcome, &flags) != WELCOME) fail("no WELCOME");
    zmq_close(session->socket);
    Reader reader = {welcome.bytes, welcome.bytes + welcome.length};
    skip(&reader, 1);
    session->broker_id = (int32_t)get_int(&reader, 4);
    int64_t length = get_int(&reader, 2);
    char *endpoint = strndup((const char *)skip(&reader, length), (size_t)length);
    session->socket = dealer(session->context, endpoint);
    put_int(&opening, session->broker_id, 4);
    put_int(&opening, WINDOW, 8);
    put_string(&opening, "example");
    send_message(session, OPEN, &opening, NULL);
    if (receive(session, &opened, &flags) != OPENED || opened.length < TOKEN_BYTES) fail("no OPENED");
    memcpy(session->token, opened.bytes, TOKEN_BYTES);
    session->is_open = 1;
    free(hello.bytes), free(welcome.bytes), free(opening.bytes), free(opened.bytes), free(endpoint);
}

/* Sends a Kafka request and returns the body of its response. */
SHARED Buffer ask(Session *session, int api_key, int version, const Buffer *body, const Buffer *records) {
    Buffer request = {0}, response = {0};
    int flags = MORE;
    put_int(&request, api_key, 2);
    put_int(&request, version, 2);
    put_int(&request, ++session->correlation_id, 4);
    put_string(&request, "example");
    put(&request, body->bytes, body->length);
    send_message(session, REQUEST, &request, records);
    free(request.bytes);
    while (flags & MORE)
        if (receive(session, &response, &flags) != RESPONSE) flags = MORE;
    Reader reader = {response.bytes, response.bytes + response.length};
    if (get_int(&reader, 4) != session->correlation_id) fail("a response to another request");
    return response;
}

/* Kafka's formats, as short as they can be: Metadata v4, Produce v8, Fetch v4, record batches v2. */
SHARED void create(Session *session, const char *topic) {
    Buffer body = {0};
    put_int(&body, 1, 4);
    put_string(&body, topic);
    put_int(&body, 1, 1); /* create it where the broker allows that */
    free(ask(session, METADATA, 4, &body, NULL).bytes);
    free(body.bytes);
}

/* Reads a Fetch response of one partition up to its records; returns its error. */
SHARED int read_head(Reader *from, const char *topic) {
    skip(from, 4 + 8 + 2 + (int64_t)strlen(topic) + 4 + 4);
    int error = (int)get_int(from, 2);
    skip(from, 16);
    int64_t aborted = get_int(from, 4);
    skip(from, aborted > 0 ? 16 * aborted : 0);
    get_int(from, 4);
    return error;
}

/* Prints the records from `offset` on, at most `*left`; returns the offset behind the last one printed. */
SHARED int64_t print_records(Reader *from, int64_t offset, int64_t *left) {
    while (from->end - from->at > 61) {
        int64_t base = get_int(from, 8), length = get_int(from, 4);
        if (length > from->end - from->at) break; /* a batch that is cut off */
        Reader batch = {from->at, from->at + length};
        skip(from, length);
        skip(&batch, 45);
        for (int64_t count = get_int(&batch, 4); count > 0; count--) {
            int64_t size = get_varint(&batch);
            Reader record = {batch.at, batch.at + size};
            skip(&batch, size);
            skip(&record, 1);
            get_varint(&record);
            int64_t at = base + get_varint(&record), key = get_varint(&record);
            skip(&record, key > 0 ? key : 0);
            int64_t value = get_varint(&record);
            const uint8_t *bytes = skip(&record, value > 0 ? value : 0);
            if (at < offset || *left <= 0) continue;
            printf("%lld %.*s\n", (long long)at, value > 0 ? (int)value : 0, (const char *)bytes);
            offset = at + 1;
            --*left;
        }
    }
    fflush(stdout);
    return offset;
}

SHARED void close_session(Session *session) {
    Buffer nothing = {0};
    send_message(session, CLOSE, &nothing, NULL);
    zmq_close(session->socket);
    zmq_ctx_term(session->context);
}
