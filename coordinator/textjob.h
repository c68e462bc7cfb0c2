/* Tokenising off the loop: a thread that takes texts and gives token ids back, so that no turn of
 * the loop waits for a long prompt. */
#ifndef FLOTILLA_COORDINATOR_TEXTJOB_H
#define FLOTILLA_COORDINATOR_TEXTJOB_H

#include "common/base/err.h"
#include "common/io/net.h"
#include "common/text/vocab.h"

#include <stdbool.h>
#include <stdint.h>

struct textjob {
    uint64_t id; /* the caller's */
    char *text;  /* freed with the job */
    size_t len;
    bool special;
    bool bos; /* begin with BOS where the model wants that */
    int rc;   /* result */
    struct errmsg em;
    struct tokens tokens;
    struct textjob *next; /* private */
};

struct textjobs;

int textjobs_open(struct net *net, const struct vocab *v, struct textjobs **ret, struct errmsg *em);
void textjobs_close(struct textjobs *t);

/* Moves the job on success; false: the queue is full. */
bool textjobs_put(struct textjobs *t, struct textjob *job);
/* Readable when textjobs_next has something. */
struct net_sock *textjobs_socket(struct textjobs *t);
/* A finished job, freed with textjob_free; NULL: none. */
struct textjob *textjobs_next(struct textjobs *t);
void textjob_free(struct textjob *job);

#endif
