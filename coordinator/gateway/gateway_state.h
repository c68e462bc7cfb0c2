/* The inside of a gateway: what gateway.c (the thread, what is asked for), job.c (a request for
 * completions) and page.c (the others) share. All of it belongs to the gateway's thread, but for
 * what is atomic. */
#ifndef FLOTILLA_GATEWAY_GATEWAY_STATE_H
#define FLOTILLA_GATEWAY_GATEWAY_STATE_H

#include "common/base/arena.h"
#include "common/base/stats.h"
#include "common/io/httpd.h"
#include "coordinator/gateway/access.h"
#include "coordinator/gateway/ask.h"
#include "coordinator/gateway/gateway.h"

#include <pthread.h>
#include <stdatomic.h>

/* An HTTP request that is being answered; the first member of what is kept for it. */
struct exchange {
    struct gateway *g;
    struct httpd_request *http; /* NULL once its end was told */
    /* Its end: the reply was sent, or the peer is gone. Not called again; may free it. */
    void (*end)(struct exchange *e, bool gone);
};

#define GATEWAY_STATUSES 600u

struct gateway {
    struct client *client;
    struct httpd *httpd;
    pthread_t thread;
    int wakeup; /* an eventfd: one of the next three was set */
    atomic_bool stopping, draining;
    char *keys_path;                   /* of the API keys, or NULL */
    struct access *keys;               /* or NULL: everybody may ask */
    _Atomic(struct access *) new_keys; /* that take their place, or NULL */
    atomic_bool busy;                  /* gateway_busy, as of the thread's last turn */
    char *cors;                        /* the origin whose pages may ask, or NULL */
    struct httpd_field fields[3];      /* of each reply */
    char *model;                       /* the name of the one that is served; NULL: not known yet */
    uint64_t asked_ns;                 /* when it was asked for last */
    bool asking;
    uint64_t begun_s;   /* since 1970 */
    uint64_t ids;       /* the next id's number, behind a random beginning */
    uint32_t n_jobs;    /* requests for completions that are not answered, */
    struct job *jobs;   /* and the list of them */
    uint32_t n_queries; /* others that wait for the coordinator, or for their reply to leave */
    uint64_t beat_ns;   /* when streams without news were last looked at */
    struct {
        uint64_t replies[GATEWAY_STATUSES]; /* by HTTP status */
        uint64_t gone;                      /* peers that left before their reply was whole */
        uint64_t slow;                      /* readers that were given up */
        uint64_t tokens;
        struct stats first; /* ns from a request to its first token */
    } count;
};

/* ---- gateway.c ---- */

/* Replies with a document, which is freed, or with a fault. */
void gateway__reply(struct gateway *g, struct httpd_request *r, unsigned status,
                    struct json *moved);
void gateway__refuse(struct gateway *g, struct httpd_request *r, const struct fault *f);

/* ---- job.c ---- */

/* The API in whose form a request came, and is answered. */
enum job_form { JOB_COMPLETIONS, JOB_MESSAGES, JOB_RESPONSES };

void job__begin(struct gateway *g, struct httpd_request *r, enum ask_kind kind, enum job_form form);
/* A body in Anthropic's form. counts: only its tokens are to be counted. */
int job__read_anthropic(struct httpd_request *r, bool counts, struct ask *ret, struct fault *f);
/* Streams without news for a while are told that the server lives. */
void job__beat(struct gateway *g, uint64_t now);

/* How long it may take, in milliseconds, as its header says; 0: as the coordinator has it. */
int job__deadline(const struct httpd_request *r, uint64_t *ret_ms, struct fault *f);

/* ---- embed.c ---- */

void embed__begin(struct gateway *g, struct httpd_request *r);

/* ---- page.c ---- */

struct query;
/* Makes the reply of the coordinator's; NULL: f is set, and is told. */
typedef struct json *(*query_make_fn)(struct query *q, const void *body, size_t bytes,
                                      struct fault *f);

/* A request that waits for the coordinator's one reply. */
struct query {
    struct exchange e;
    bool asking;
    char name[256]; /* of the model that is asked after, or "" */
    struct arena arena;
    query_make_fn make;
};

struct query *query__new(struct gateway *g, struct httpd_request *r, query_make_fn make);
void query__ask(struct query *q, const char *method, const void *body, size_t bytes);
/* A reply that cannot be read; returns NULL. */
struct json *query__unread(struct fault *f, const struct errmsg *em);

void page__front(struct gateway *g, struct httpd_request *r);
void page__status(struct gateway *g, struct httpd_request *r);
void page__models(struct gateway *g, struct httpd_request *r, const char *name);
void page__ready(struct gateway *g, struct httpd_request *r);
void page__metrics(struct gateway *g, struct httpd_request *r);

/* ---- tokenize.c ---- */

void tokenize__text(struct gateway *g, struct httpd_request *r);
void tokenize__back(struct gateway *g, struct httpd_request *r);
void tokenize__template(struct gateway *g, struct httpd_request *r);
/* How many tokens a conversation in Anthropic's form has. */
void tokenize__count(struct gateway *g, struct httpd_request *r);

#endif
