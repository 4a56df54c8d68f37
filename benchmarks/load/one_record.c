/* Load generator: many connections, prebuilt Kafka frames, each response checked.
 *
 *   one_record produce HOST:PORT TOPIC [options]   closed loop, one epoll thread
 *   one_record latency HOST:PORT TOPIC [options]   one connection, one request at a time, blocking socket
 *   one_record fetch   HOST:PORT TOPIC [options]   each connection reads the log from the start, again and again
 *   one_record commit  HOST:PORT TOPIC [options]   offsets of `records` partitions a request, of connection i's own in
 *                                                  one group, the first's growing by one each time, so that the last
 *                                                  commit can be told; or of the same in one of `groups` after the other
 *   one_record idle    HOST:PORT       [options]   opens connections, says so, holds them until stdin ends
 *   one_record first   HOST:PORT TOPIC [options]   knocks until one record is acknowledged: start time
 *   one_record loaded  HOST:PORT TOPIC [options]   knocks until commits of `groups` groups are taken: coordinator's start
 *
 * Options, each a name and a number:
 *   connections 1 · depth 1 (requests in flight on a connection) · seconds 3 · warmup_ms 500
 *   records 1 (a request) · record_bytes 100 · partitions 1 (connection i writes to i mod n) · acks 1
 *   max_bytes 1048576 (of a fetch) · groups 1 (of commits)
 *   requests 0 (not 0: so many, without warm-up, in at most `seconds`)
 *
 * Prints one JSON object. Any error code, wrong correlation id, malformed answer or lost connection ends the run with
 * exit status 1 and its reason on standard error: a figure with an error in it is no figure.
 * Times are of a closed loop: a slow answer delays the next question, so they are not those of a fixed rate.
 * Never: a buffer per request, a lookup per response, a thread.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"
#include "frames.h"
#include "histogram.h"

enum { SEND_AT_ONCE_BYTES = 1 << 20, READY_AT_ONCE = 256, STUCK_MS = 10000 };

static struct {
    long connections, depth, seconds, warmup_ms, records, record_bytes, partitions, acks, max_bytes, groups, requests;
} option = {1, 1, 3, 500, 1, 100, 1, 1, 1 << 20, 1, 0};

static struct sockaddr_in broker;
static const char *topic = "";
static size_t topic_length;
static enum { PRODUCE, FETCH, COMMIT } asking;
static struct histogram latency;
static uint64_t groups_asked, requests_asked;
static uint64_t acked, fetched_records, fetched_bytes; /* the whole run, warm-up too: what the log must hold */

struct connection {
    int socket, wants_write;
    uint8_t *frames; /* depth copies of the request, used in turn */
    size_t frame_bytes, at_offset, at_group;
    uint64_t asked, answered; /* requests, also the correlation ids */
    size_t unsent_bytes;      /* of the frames asked so far */
    size_t sent_at;           /* where in `frames` the next byte to send lies */
    uint64_t *asked_at_ns;
    uint8_t *input;
    size_t input_length, input_room;
    int64_t fetch_offset, first_commit;
};

static void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    exit(1);
}

static double cpu_seconds(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static int try_connect(void) {
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s < 0) die("socket: %s", strerror(errno));
    if (connect(s, (struct sockaddr *)&broker, sizeof broker) < 0) {
        close(s);
        return -1;
    }
    int on = 1;
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return s;
}

static int must_connect(void) {
    int s = try_connect();
    if (s < 0) die("connect: %s", strerror(errno));
    return s;
}

static void send_all(int s, const uint8_t *bytes, size_t length) {
    while (length) {
        ssize_t sent = send(s, bytes, length, MSG_NOSIGNAL);
        if (sent <= 0) die("send: %s", strerror(errno));
        bytes += sent;
        length -= (size_t)sent;
    }
}

/* Reads one whole answer into `into`, without its size; returns its length. */
static size_t receive_frame(int s, uint8_t *into, size_t room) {
    size_t have = 0, want = 4;
    uint8_t size[4];
    while (have < want) {
        ssize_t got = recv(s, have < 4 ? size + have : into + have - 4, want - have, 0);
        if (got == 0) die("the broker closed the connection");
        if (got < 0) die("recv: %s", strerror(errno));
        have += (size_t)got;
        if (want == 4 && have == 4) {
            int32_t length = get_i32(size);
            if (length < 4 || (size_t)length > room) die("an answer of %d bytes", length);
            want = 4 + (size_t)length;
        }
    }
    return want - 4;
}

static void check_answer(struct connection *c, const uint8_t *answer, size_t length) {
    if (length < 4) die("an answer of %zu bytes", length);
    int32_t expected = (int32_t)(c->answered & 0x7fffffff);
    if (get_i32(answer) != expected) die("correlation id %d, expected %d", get_i32(answer), expected);
    int error = asking == FETCH ? fetch_read(answer, length, topic_length, &c->fetch_offset, &fetched_records, &fetched_bytes)
                : asking == COMMIT ? commit_error(answer, length, topic_length)
                                   : produce_error(answer, length, topic_length);
    if (error == MALFORMED) die("a malformed answer of %zu bytes", length);
    if (error) die("error code %d", error);
}

static void set_group(uint8_t *digits, uint64_t number) {
    for (int i = GROUP_DIGITS; i--; number /= 10) digits[i] = (uint8_t)('0' + number % 10);
}

static int is_enough(void) { return option.requests && requests_asked >= (uint64_t)option.requests; }

static void ask(struct connection *c) {
    requests_asked++;
    uint64_t slot = c->asked % (uint64_t)option.depth;
    uint8_t *frame = c->frames + slot * c->frame_bytes;
    set_i32(frame + AT_CORRELATION, (int32_t)(c->asked & 0x7fffffff));
    if (asking == FETCH) set_i64(frame + c->at_offset, c->fetch_offset);
    if (asking == COMMIT && option.groups > 1) set_group(frame + c->at_group, groups_asked++ % (uint64_t)option.groups);
    if (asking == COMMIT && option.groups == 1) set_i64(frame + c->at_offset, c->first_commit + (int64_t)c->asked);
    c->asked_at_ns[slot] = now_ns();
    c->asked++;
    c->unsent_bytes += c->frame_bytes;
}

static void send_asked(struct connection *c, int poller) {
    size_t ring_bytes = c->frame_bytes * (size_t)option.depth;
    while (c->unsent_bytes) {
        size_t run = ring_bytes - c->sent_at;
        if (run > c->unsent_bytes) run = c->unsent_bytes;
        if (run > SEND_AT_ONCE_BYTES) run = SEND_AT_ONCE_BYTES;
        ssize_t sent = send(c->socket, c->frames + c->sent_at, run, MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno != EAGAIN) die("send: %s", strerror(errno));
            break;
        }
        c->unsent_bytes -= (size_t)sent;
        c->sent_at = (c->sent_at + (size_t)sent) % ring_bytes;
    }
    int wants_write = c->unsent_bytes != 0;
    if (wants_write != c->wants_write) {
        struct epoll_event event = {.events = EPOLLIN | (wants_write ? EPOLLOUT : 0), .data.ptr = c};
        epoll_ctl(poller, EPOLL_CTL_MOD, c->socket, &event);
        c->wants_write = wants_write;
    }
}

/* Reads what is there, checks each whole answer, asks anew unless the time is up. */
static void read_answers(struct connection *c, int poller, uint64_t measure_from_ns, uint64_t measure_to_ns) {
    ssize_t got = recv(c->socket, c->input + c->input_length, c->input_room - c->input_length, 0);
    if (got == 0) die("the broker closed the connection");
    if (got < 0) {
        if (errno == EAGAIN) return;
        die("recv: %s", strerror(errno));
    }
    c->input_length += (size_t)got;
    size_t at = 0;
    uint64_t now = now_ns();
    while (c->input_length - at >= 4) {
        int32_t length = get_i32(c->input + at);
        if (length < 4 || (size_t)length + 4 > c->input_room) die("an answer of %d bytes", length);
        if (c->input_length - at < 4 + (size_t)length) break;
        if (c->answered == c->asked) die("an answer nobody asked for");
        check_answer(c, c->input + at + 4, (size_t)length);
        if (now >= measure_from_ns && now < measure_to_ns)
            histogram_add(&latency, now - c->asked_at_ns[c->answered % (uint64_t)option.depth]);
        c->answered++;
        acked++;
        at += 4 + (size_t)length;
        if (now < measure_to_ns && !is_enough()) ask(c);
    }
    if (at) {
        c->input_length -= at;
        memmove(c->input, c->input + at, c->input_length);
    }
    if (c->unsent_bytes) send_asked(c, poller);
}

/* A broker with a short queue of connections drops those that come too fast, and the kernel tries such a one again after a
 * second: so the next one comes when this one has been accepted, which an answer to ApiVersions shows. */
static int must_be_accepted(void) {
    static struct writer hello;
    static uint8_t answer[1 << 20];
    if (!hello.length) hello = api_versions_frame();
    int s = must_connect();
    send_all(s, hello.bytes, hello.length);
    size_t length = receive_frame(s, answer, sizeof answer);
    if (length < 6 || get_i16(answer + 4)) die("ApiVersions answered with an error");
    return s;
}

static void prepare(struct connection *c, int number) {
    int partition = number % (int)option.partitions;
    struct writer frame;
    if (asking == FETCH) frame = fetch_frame(topic, partition, (int)option.max_bytes, &c->at_offset);
    else if (asking == COMMIT) {
        int first = option.groups > 1 ? 0 : number * (int)option.records;
        frame = commit_frame(topic, first, (int)option.records, &c->at_group, &c->at_offset);
        c->first_commit = COMMITTED_OF(first);
    } else frame = produce_frame(topic, partition, (int)option.acks, (int)option.records, (int)option.record_bytes);
    c->frame_bytes = frame.length;
    c->frames = malloc(frame.length * (size_t)option.depth);
    c->asked_at_ns = calloc((size_t)option.depth, sizeof *c->asked_at_ns);
    c->input_room = asking == FETCH ? (size_t)option.max_bytes + (4 << 20) : 64 << 10;
    c->input = malloc(c->input_room);
    if (!c->frames || !c->input || !c->asked_at_ns) die("out of memory");
    for (long i = 0; i < option.depth; i++) memcpy(c->frames + (size_t)i * frame.length, frame.bytes, frame.length);
    free(frame.bytes);
    c->socket = option.connections > 1 ? must_be_accepted() : must_connect();
}

static void report(double seconds, double cpu, uint64_t records_before, uint64_t bytes_before,
                   const struct connection *all) {
    printf("{\"requests\": %llu, \"acked_requests\": %llu, \"acked_records\": %llu, \"seconds\": %.6f, "
           "\"requests_s\": %.1f, \"p50_us\": %.2f, \"p99_us\": %.2f, \"p999_us\": %.2f, \"max_us\": %.2f, "
           "\"records_read\": %llu, \"bytes_read\": %llu, \"cpu_share\": %.4f, \"answered\": [",
           (unsigned long long)latency.count, (unsigned long long)acked,
           (unsigned long long)(asking == FETCH ? 0 : acked * (uint64_t)option.records), seconds,
           (double)latency.count / seconds, histogram_us(&latency, 0.5), histogram_us(&latency, 0.99),
           histogram_us(&latency, 0.999), (double)latency.highest_ns / 1000.0,
           (unsigned long long)(fetched_records - records_before),
           (unsigned long long)(fetched_bytes - bytes_before), cpu / seconds);
    for (long i = 0; i < option.connections; i++) printf("%s%llu", i ? ", " : "", (unsigned long long)all[i].answered);
    printf("]}\n");
}

static void run_many(void) {
    struct connection *all = calloc((size_t)option.connections, sizeof *all);
    int poller = epoll_create1(EPOLL_CLOEXEC);
    for (long i = 0; i < option.connections; i++) {
        prepare(&all[i], (int)i);
        fcntl(all[i].socket, F_SETFL, O_NONBLOCK);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &all[i]};
        if (epoll_ctl(poller, EPOLL_CTL_ADD, all[i].socket, &event) < 0) die("epoll: %s", strerror(errno));
    }
    uint64_t from = now_ns() + (option.requests ? 0 : (uint64_t)option.warmup_ms * 1000000ull);
    uint64_t to = from + (uint64_t)option.seconds * 1000000000ull, now;
    for (long i = 0; i < option.connections; i++) {
        for (long d = 0; d < option.depth && !is_enough(); d++) ask(&all[i]);
        send_asked(&all[i], poller);
    }
    struct epoll_event ready[READY_AT_ONCE];
    double cpu = -1, cpu_end = -1;
    uint64_t records_before = 0, bytes_before = 0;
    for (;;) {
        int n = epoll_wait(poller, ready, READY_AT_ONCE, STUCK_MS);
        if (n < 0 && errno != EINTR) die("epoll: %s", strerror(errno));
        if (n == 0) die("no answer within %d ms", STUCK_MS);
        now = now_ns();
        if (cpu < 0 && now >= from) {
            cpu = cpu_seconds();
            records_before = fetched_records;
            bytes_before = fetched_bytes;
        }
        if (cpu_end < 0 && now >= to) cpu_end = cpu_seconds();
        for (int i = 0; i < n; i++) {
            struct connection *c = ready[i].data.ptr;
            if (ready[i].events & EPOLLOUT) send_asked(c, poller);
            if (ready[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) read_answers(c, poller, from, to);
        }
        /* By a clock as late as that of the answers: one that came when the time was just up asks for no more. */
        if (now_ns() >= to || is_enough()) {
            int waiting = 0;
            for (long i = 0; i < option.connections && !waiting; i++) waiting = all[i].asked != all[i].answered;
            if (!waiting) break;
        }
    }
    if (option.requests && !is_enough()) die("%llu requests in time", (unsigned long long)requests_asked);
    report(option.requests ? (double)(now - from) / 1e9 : (double)option.seconds,
           (cpu_end < 0 ? cpu_seconds() : cpu_end) - cpu, records_before, bytes_before, all);
}

static void run_one_at_a_time(void) {
    struct connection c = {0};
    option.depth = option.connections = 1;
    prepare(&c, 0);
    uint64_t from = now_ns() + (uint64_t)option.warmup_ms * 1000000ull;
    uint64_t to = from + (uint64_t)option.seconds * 1000000000ull, now = 0;
    double cpu = -1;
    do {
        ask(&c);
        send_all(c.socket, c.frames, c.frame_bytes);
        c.unsent_bytes = 0;
        size_t length = receive_frame(c.socket, c.input, c.input_room);
        now = now_ns();
        check_answer(&c, c.input, length);
        c.answered++;
        acked++;
        if (now >= from) {
            if (cpu < 0) cpu = cpu_seconds();
            histogram_add(&latency, now - c.asked_at_ns[0]);
        }
    } while (now < to);
    report((double)(now - from) / 1e9, cpu_seconds() - cpu, 0, 0, &c);
}

static void run_idle(void) {
    int *open = malloc((size_t)option.connections * sizeof *open);
    uint64_t from = now_ns();
    for (long i = 0; i < option.connections; i++) open[i] = must_be_accepted();
    double seconds = (double)(now_ns() - from) / 1e9;
    printf("{\"connections\": %ld, \"connects_s\": %.1f}\n", option.connections, (double)option.connections / seconds);
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0) continue;
    long gone = 0;
    for (long i = 0; i < option.connections; i++) {
        ssize_t got = recv(open[i], &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        gone += got >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
    }
    if (gone) die("%ld of %ld idle connections were closed", gone, option.connections);
}

static int knock_until(uint64_t until) {
    const struct timespec pause = {.tv_nsec = 500000};
    int s;
    while ((s = try_connect()) < 0) {
        if (now_ns() > until) die("nobody listens");
        nanosleep(&pause, NULL);
    }
    return s;
}

/* A coordinator makes its topic when it is first asked for, and reads it after a start: until then it says so. */
static void run_loaded(long seconds) {
    enum { LOADING = 14, NOT_AVAILABLE = 15, NOT_COORDINATOR = 16 };
    const struct timespec pause = {.tv_nsec = 2000000};
    uint64_t until = now_ns() + (uint64_t)seconds * 1000000000ull;
    int s = knock_until(until);
    struct writer find = coordinator_frame();
    size_t at_group, at_offset;
    struct writer commit = commit_frame(topic, 0, 1, &at_group, &at_offset);
    uint8_t *answer = malloc(1 << 16);
    for (long group = 0; group < option.groups;) {
        set_group(commit.bytes + at_group, (uint64_t)group);
        send_all(s, find.bytes, find.length);
        size_t length = receive_frame(s, answer, 1 << 16);
        int error = length < 6 ? MALFORMED : get_i16(answer + 4);
        if (!error) {
            send_all(s, commit.bytes, commit.length);
            length = receive_frame(s, answer, 1 << 16);
            error = commit_error(answer, length, topic_length);
        }
        if (!error) {
            group++;
            continue;
        }
        if (error != LOADING && error != NOT_AVAILABLE && error != NOT_COORDINATOR) die("error code %d", error);
        if (now_ns() > until) die("no coordinator in time, error code %d", error);
        nanosleep(&pause, NULL);
    }
    close(s);
}

/* The broker may not listen yet, and its topic may be on its way: knock again on those errors, and on no others. */
static void run_first(void) {
    enum { UNKNOWN_TOPIC = 3, LEADER_NOT_AVAILABLE = 5, NOT_LEADER = 6 };
    const struct timespec pause = {.tv_nsec = 500000};
    uint64_t until = now_ns() + (uint64_t)option.seconds * 1000000000ull;
    int s = knock_until(until);
    struct writer metadata = metadata_frame(topic);
    struct writer record = produce_frame(topic, 0, (int)option.acks, 1, (int)option.record_bytes);
    uint8_t *answer = malloc(1 << 20);
    for (int error = UNKNOWN_TOPIC;;) {
        if (error == UNKNOWN_TOPIC) {
            send_all(s, metadata.bytes, metadata.length);
            receive_frame(s, answer, 1 << 20);
        }
        send_all(s, record.bytes, record.length);
        size_t length = receive_frame(s, answer, 1 << 20);
        error = produce_error(answer, length, topic_length);
        if (!error) break;
        if (error != UNKNOWN_TOPIC && error != LEADER_NOT_AVAILABLE && error != NOT_LEADER) die("error code %d", error);
        if (now_ns() > until) die("no record acknowledged in time");
        nanosleep(&pause, NULL);
    }
    printf("{\"acked_at_ns\": %llu}\n", (unsigned long long)now_ns());
}

static void set_option(const char *name, const char *value) {
    struct { const char *name; long *value; } options[] = {
        {"connections", &option.connections}, {"depth", &option.depth},
        {"seconds", &option.seconds},         {"warmup_ms", &option.warmup_ms},
        {"records", &option.records},         {"record_bytes", &option.record_bytes},
        {"partitions", &option.partitions},   {"acks", &option.acks},
        {"max_bytes", &option.max_bytes},     {"groups", &option.groups},
        {"requests", &option.requests},
    };
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (!strcmp(options[i].name, name)) {
            *options[i].value = strtol(value, NULL, 10);
            return;
        }
    die("no option %s", name);
}

int main(int argc, char **argv) {
    if (argc < 3) die("one_record MODE HOST:PORT [TOPIC] [option value ...]");
    const char *mode = argv[1];
    char host[64];
    int port = 0;
    if (sscanf(argv[2], "%63[^:]:%d", host, &port) != 2) die("an address is HOST:PORT");
    broker.sin_family = AF_INET;
    broker.sin_port = htons((uint16_t)port);
    if (inet_pton(AF_INET, host, &broker.sin_addr) != 1) die("the host must be an IPv4 address");
    int at = 3;
    if (strcmp(mode, "idle")) {
        if (argc < 4) die("no topic");
        topic = argv[at++];
        topic_length = strlen(topic);
        if (topic_length > 120) die("the topic's name is too long for one length byte");
    }
    for (; at + 1 < argc; at += 2) set_option(argv[at], argv[at + 1]);
    if (at != argc) die("option %s has no value", argv[at]);
    if (option.acks == 0) die("acks 0 has no answer to check");
    struct rlimit descriptors;
    getrlimit(RLIMIT_NOFILE, &descriptors);
    descriptors.rlim_cur = descriptors.rlim_max;
    setrlimit(RLIMIT_NOFILE, &descriptors);

    asking = !strcmp(mode, "fetch") ? FETCH : !strcmp(mode, "commit") ? COMMIT : PRODUCE;
    if (asking == FETCH && option.depth != 1) die("fetch has depth 1: each request needs the offset of the last answer");
    if (asking == COMMIT) run_loaded(STUCK_MS / 1000);
    if (!strcmp(mode, "produce") || asking != PRODUCE) run_many();
    else if (!strcmp(mode, "latency")) run_one_at_a_time();
    else if (!strcmp(mode, "idle")) run_idle();
    else if (!strcmp(mode, "first")) run_first();
    else if (!strcmp(mode, "loaded")) {
        run_loaded(option.seconds);
        printf("{\"acked_at_ns\": %llu}\n", (unsigned long long)now_ns());
    }
    else die("no mode %s", mode);
    return 0;
}
