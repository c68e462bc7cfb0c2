/* The worker's compute thread. It owns the engine and the data links of the present epoch: it takes
 * Steps from the stage before, runs them, and hands activations to the stage after, or, on the last
 * stage, chooses tokens and sends the result to the coordinator.
 *
 * The control thread (loop.c) talks to it through a pair of sockets inside the process, and reads
 * its counters through exec_heartbeat. */
#ifndef FLOTILLA_WORKER_EXEC_H
#define FLOTILLA_WORKER_EXEC_H

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/io/net.h"
#include "proto/msg.h"

#include <stdbool.h>

struct exec_options {
    unsigned threads;
    const char *isa;       /* NULL: the best; borrowed, like all strings here */
    const char *listen;    /* address at which data links are received */
    const char *advertise; /* "tcp://HOST:PORT", or NULL: any port, where the coordinator sees us */
    const char *models;    /* folder in which model files are looked for by their names, or NULL */
    bool off_machine;      /* listen is not loopback: needs a coordinator that allows plaintext */
};

struct exec;

/* Starts the thread. */
int exec_open(struct net *net, const struct exec_options *o, struct exec **ret_exec,
              struct errmsg *em);
/* Stops and joins it; a load under way is given up. */
void exec_close(struct exec *e);

/* The control thread's end: readable when exec_next has something. */
struct net_sock *exec_socket(struct exec *e);
/* Assign and Connect are passed on; false: the thread does not take it (it is far behind). */
bool exec_command(struct exec *e, const struct msg_to_worker *m);
/* The next message for the coordinator (its version and instance are not filled in). */
bool exec_next(struct exec *e, struct msg_from_worker *ret);

/* Counters of the present epoch, and what is held. Any thread. */
void exec_heartbeat(struct exec *e, struct msg_from_worker *ret);
bool exec_holding(struct exec *e, struct msg_holding *ret);
uint32_t exec_pages(struct exec *e); /* KV pages of what is held; 0: nothing is */
/* The same and the engine's kernel calls, as Prometheus reads them. Any thread. */
void exec_metrics(struct exec *e, struct buf *out);

#endif
