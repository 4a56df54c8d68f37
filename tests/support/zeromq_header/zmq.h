/* What examples/zeromq uses of libzmq's interface, for a machine that has the library (inside pyzmq) and not its header.
 * The numbers and signatures are those of libzmq 4, which have not changed since 2013; the real header comes first where
 * there is one.
 */
#ifndef APPLIANCE_TESTS_ZMQ_H
#define APPLIANCE_TESTS_ZMQ_H

#include <stddef.h>

#define ZMQ_DEALER 5
#define ZMQ_RCVMORE 13
#define ZMQ_LINGER 17
#define ZMQ_IMMEDIATE 39
#define ZMQ_SNDMORE 2
#define ZMQ_POLLIN 1

typedef struct {
    void *socket;
    int fd;
    short events;
    short revents;
} zmq_pollitem_t;

typedef struct {
    _Alignas(void *) unsigned char bytes[64];
} zmq_msg_t;

void *zmq_ctx_new(void);
int zmq_ctx_term(void *context);
void *zmq_socket(void *context, int type);
int zmq_close(void *socket);
int zmq_connect(void *socket, const char *endpoint);
int zmq_setsockopt(void *socket, int option, const void *value, size_t length);
int zmq_getsockopt(void *socket, int option, void *value, size_t *length);
int zmq_send(void *socket, const void *bytes, size_t length, int flags);
int zmq_recv(void *socket, void *bytes, size_t length, int flags);
int zmq_poll(zmq_pollitem_t *items, int count, long timeout_ms);
int zmq_msg_init(zmq_msg_t *message);
int zmq_msg_recv(zmq_msg_t *message, void *socket, int flags);
void *zmq_msg_data(zmq_msg_t *message);
size_t zmq_msg_size(const zmq_msg_t *message);
int zmq_msg_close(zmq_msg_t *message);
int zmq_errno(void);
const char *zmq_strerror(int number);

#endif
