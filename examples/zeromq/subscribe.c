/* Print the records of partition 0 as they are committed, with libzmq and nothing else.
 *
 *     cc -O2 -o subscribe subscribe.c -lzmq
 *     ./subscribe ipc:///run/appliance/zeromq TOPIC COUNT
 *
 * It ends after COUNT records.
 */
#include "client.h"

enum { SUBSCRIBE = 16, PUSH = 18, NUMBER = 1, PUSH_BYTES = 1 << 20 };

static void subscribe(Session *session, const char *topic, int64_t offset) {
    Buffer body = {0};
    put_int(&body, NUMBER, 8);
    put_int(&body, 0, 4); /* partition */
    put_int(&body, offset, 8);
    put_int(&body, 0, 1); /* read_uncommitted */
    put_int(&body, PUSH_BYTES, 4);
    put_string(&body, topic);
    send_message(session, SUBSCRIBE, &body, NULL);
    free(body.bytes);
}

/* Returns the next push, joined of its parts. */
static Buffer next_push(Session *session) {
    Buffer push = {0};
    for (int flags = MORE; flags & MORE;) {
        size_t length = push.length;
        if (receive(session, &push, &flags) == PUSH) continue;
        push.length = length; /* a confirmation, a heartbeat */
        flags = MORE;
    }
    return push;
}

int main(int count, char **arguments) {
    if (count != 4) fail("usage: %s ENDPOINT TOPIC COUNT", arguments[0]);
    const char *topic = arguments[2];
    int64_t offset = 0, left = atoll(arguments[3]);
    Session session = {0};
    open_session(&session, arguments[1]);
    create(&session, topic);
    subscribe(&session, topic, offset);
    while (left > 0) {
        Buffer push = next_push(&session);
        Reader reader = {push.bytes, push.bytes + push.length};
        int error = read_head(&reader, topic);
        if (error == 3 || error == 5 || error == 6) subscribe(&session, topic, offset); /* nobody leads it yet */
        else if (error) fail("push: Kafka's error %d", error);
        offset = print_records(&reader, offset, &left);
        free(push.bytes);
    }
    close_session(&session);
    return 0;
}
