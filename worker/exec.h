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

struct exec_options { /* the strings are borrowed until exec_close */
    unsigned threads;
    const char *isa;       /* NULL: the best */
    const char *listen;    /* host or address at which data links are received */
    const char *advertise; /* "tcp://HOST:PORT", what the stage before connects to. NULL: any port,
                            * at the address at which the coordinator sees this worker */
    const char *speeds;    /* folder where what was measured is kept; NULL: nowhere */
    const char *models; /* folder where the model file is looked for by its name. NULL: at the path
                         * that the coordinator names */
    bool off_machine; /* listen is not loopback: needs keys, or a coordinator that allows plaintext
                       */
};

struct exec;

/* Starts the thread. `net` is borrowed until exec_close. An error: no memory, no thread, or the
 * sockets of the pair could not be made. */
int exec_open(struct net *net, const struct exec_options *o, struct exec **ret_exec,
              struct errmsg *em);
/* Stops and joins the thread; a load under way is given up. May be NULL. */
void exec_close(struct exec *e);

/* The control thread's end of the pair: readable when exec_next has a message. */
struct net_sock *exec_socket(struct exec *e);
/* Passes an Assign, a Connect or a Calibrate on; copied, with the hashes. An Assign of another
 * slice than the one that is being loaded ends that load. False: too many of them wait already, and
 * this one is not taken. */
bool exec_command(struct exec *e, const struct msg_to_worker *m);
/* The next message for the coordinator, without version and instance. False: there is none. */
bool exec_next(struct exec *e, struct msg_from_worker *ret);

/* The rest is for any thread. */

/* Fills in type, epoch and what the compute thread counts of the heartbeat. */
void exec_heartbeat(struct exec *e, struct msg_from_worker *ret);
/* The slice in memory. False: there is none. */
bool exec_holding(struct exec *e, struct msg_holding *ret);
/* KV pages of the slice in memory; 0: there is none. */
uint32_t exec_pages(struct exec *e);
/* Appends the counters and the kernels' calls, as Prometheus reads them. */
void exec_metrics(struct exec *e, struct buf *out);

#endif
