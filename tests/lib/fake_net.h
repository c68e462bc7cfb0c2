/* A network and a clock in the test's hands. It defines the functions of common/io/net.h, so that a
 * client or a program's loop that is linked with it runs in virtual time against a scripted peer.
 * Needs --wrap=clock_gettime, and for a program's loop --wrap=process_end_within, since the test's
 * own process must not end with the loop. Only the test makes anything be lost, late or refused. */
#ifndef FLOTILLA_TESTS_FAKE_NET_H
#define FLOTILLA_TESTS_FAKE_NET_H

#include "common/io/net.h"

#define FAKE_SOCKETS 256

struct fake_net {
    uint64_t now_ns, reading_ns; /* the time, and how long one reading of it takes */
    /* Called for each message that is sent, and returns what net_send does. NULL: all are taken. */
    int (*on_send)(uint32_t sock, const struct net_frame *frames, unsigned n);
    /* Called before each net_poll waits. May send a signal to this process, answer, move the clock.
     */
    void (*on_poll)(void);
    uint32_t n_sockets; /* opened so far; a socket's number is its place in that order, from 0 */
    uint32_t n_sends, n_recvs;
    bool full;        /* no socket has room for a message, as net_poll and net_ready say */
    uint64_t next_ns; /* when the next message arrives at a socket that net_ready was asked of */
    uint32_t fail_send, fail_recv; /* the call of n_sends, n_recvs that fails, once; 0: none */
    int send_error, recv_error;    /* the code with which it fails */
    int lookup_rc;                 /* what net_lookup returns */
    int connect_rc;                /* what net_connect returns */
    uint64_t files_max;
    bool secure;                /* net_secure was called */
    struct key key;             /* of messages that arrive, */
    uint32_t roles;             /* and its roles */
    struct key_list allowed;    /* of net_allow, copied */
    struct net_refusal refusal; /* what net_refusal tells next, if count is not 0 */
    unsigned end_within_s;      /* what process_end_within was called with; 0: it was not */
};

extern struct fake_net fake;

/* Forgets everything; the clock begins at 1,000 s. */
void fake_reset(void);
/* A message arrives at a socket after delay_ns. Copied. */
void fake_arrive(uint32_t sock, uint64_t delay_ns, const struct net_frame *frames, unsigned n);
/* The socket's monitor will tell this event. */
void fake_event(uint32_t sock, enum net_event event);
bool fake_is_open(uint32_t sock);
enum net_kind fake_kind(uint32_t sock);
int fake_fd(uint32_t sock); /* what net_fd says: an eventfd that the test may make readable */
/* Whom it admits and which key it expects. */
struct net_rule fake_rule(uint32_t sock);
struct key fake_expected(uint32_t sock);
/* To which it was bound or connected last; valid until fake_reset. */
const char *fake_endpoint(uint32_t sock);
const struct net_limits *fake_limits(uint32_t sock);

#endif
