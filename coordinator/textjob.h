/* Tokenising off the loop: threads that take texts and give token ids back, so that no turn of the
 * loop waits for a long prompt, no short text for a long one, and no client for another's queue.
 *
 * One thread takes short texts only; the other takes long ones first. Within each kind the clients
 * take turns, whatever number of texts each has waiting. */
#ifndef FLOTILLA_COORDINATOR_TEXTJOB_H
#define FLOTILLA_COORDINATOR_TEXTJOB_H

#include "common/base/err.h"
#include "common/io/net.h"
#include "common/text/vocab.h"

#include <stdbool.h>
#include <stdint.h>

#define TEXTJOBS_MAX 1024u /* not yet taken back by the caller */
#define TEXTJOBS_BYTES_MAX ((size_t)64 << 20)
#define TEXTJOBS_SHARE 4u /* one client may have a fourth of either waiting, and always one text   \
                           */
#define TEXTJOBS_SHORT_BYTES ((size_t)64 << 10)

struct textjob {
    uint64_t id;     /* the caller's */
    uint64_t client; /* the caller's: whose turn it is */
    char *text;      /* freed with the job */
    size_t len;
    bool special;
    bool bos; /* begin with BOS where the model wants that */
    int rc;   /* result */
    struct errmsg em;
    struct tokens tokens;
    struct textjob *next; /* private */
    bool cancelled;       /* private */
};

struct textjobs;

int textjobs_open(struct net *net, const struct vocab *v, struct textjobs **ret, struct errmsg *em);
void textjobs_close(struct textjobs *t);

/* Moves the job on success. ERR_LIMIT: too many texts wait, of this client or of all. */
int textjobs_put(struct textjobs *t, struct textjob *job, struct errmsg *em);
/* The job is not wanted any more: a waiting one is freed; one that runs is freed when its thread is
 * done with it. It may be in textjobs_next's hands already, which then still returns it. */
void textjobs_cancel(struct textjobs *t, uint64_t id);
/* Readable when textjobs_next has something. */
struct net_sock *textjobs_socket(struct textjobs *t);
/* A finished job, freed with textjob_free; NULL: none. */
struct textjob *textjobs_next(struct textjobs *t);
void textjob_free(struct textjob *job);

#endif
