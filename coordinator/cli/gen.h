/* One generation as the command line asks for it, and its two ways to run: in this process (the
 * engine alone, the oracle for "one answer") or by a cluster. */
#ifndef FLOTILLA_CLI_GEN_H
#define FLOTILLA_CLI_GEN_H

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/opts.h"
#include "common/client/client.h"
#include "common/text/masks.h"
#include "common/text/sample.h"
#include "common/text/vocab.h"
#include "proto/msg.h"

#include <stdbool.h>
#include <stdint.h>

struct gen_options {
    const char *model;         /* path; NULL: the cluster */
    const char *cluster;       /* address */
    struct client_keys keys;   /* of the connection to it */
    const char *file;          /* holds the prompt; read into `prompt` */
    const char *prompt;        /* NULL: its token ids are in gen_result.prompt already */
    const char *prompt_tokens; /* from which those were parsed: "1,2,3" */
    bool chat;                 /* the prompt is a user's message, */
    const char *system;        /* behind this one of the system's; or NULL */
    const char *conversation;  /* made of the two, in JSON as client.proto says; or NULL */
    const char *schema;        /* the file of a JSON schema that the answer must be valid by, */
    const char *grammar;       /* or of a grammar in GBNF; read into `format` */
    const char *format;        /* in JSON, as client.proto says under Formats; NULL: any */
    bool special;              /* names of control tokens in the prompt are those tokens */
    bool ignore_eos;
    uint32_t tokens;          /* most tokens to generate */
    struct sampling sampling; /* its seed counts with seed_given, its bias is parsed from biases */
    bool seed_given;
    struct opt_list biases; /* "ID=VALUE" */
    struct opt_list stops;
    /* of the engine alone */
    uint32_t threads, ctx, chunk;
    const char *isa, *kv, *pre;
    bool (*interrupted)(void *arg); /* asked before each step: whether to end; NULL: no */
    void *interrupted_arg;
    uint32_t sample;       /* which of several answers this is, of the engine alone */
    uint32_t deadline_s;   /* of a cluster's request, like what follows */
    uint32_t priority;     /* one more than the enum priority; 0: not given */
    uint32_t samples;      /* answers to the one prompt; 0: one */
    const char *draft;     /* how tokens are guessed ahead; NULL: as the cluster does */
    uint32_t draft_length; /* 0: as the cluster does */
};

struct gen_result {
    struct tokens prompt, tokens;
    struct buf chosen, top;     /* log-probabilities of `tokens`: floats; struct sample_candidate */
    uint32_t n_top;             /* of the latter, for each token */
    struct masks_counts counts; /* what the format cost; of the engine alone */
    struct buf text;
    enum finish_reason finish_reason;
    uint32_t cached;   /* of a chat: tokens of the prompt that were found computed, */
    bool open_thought; /* the prompt ended within <think>, */
    bool interrupted;  /* and the answer was not to go on */
    const char *isa;   /* of the engine alone */
    uint64_t seed;
    double prompt_ms, ttft_ms, decode_ms, tokens_per_s;
    bool has_drafts; /* of a cluster: tokens were guessed, in runs of which so many were right */
    uint64_t draft_runs, drafted, accepted;
    struct gen_result *more; /* the other answers of a cluster: tokens, text and reason only */
    uint32_t n_more;
};

/* Called with each piece of text as it comes. */
typedef void (*gen_text_fn)(void *arg, const char *text, size_t len);

/* Both wait for the end of the answer. on_text may be NULL. *ret begins as zeros, but for the
 * prompt's ids where they are given, and is closed with gen_result_close, also after an error. */
int gen_local(const struct gen_options *o, gen_text_fn on_text, void *arg, struct gen_result *ret,
              struct errmsg *em);
int gen_cluster(const struct gen_options *o, gen_text_fn on_text, void *arg, struct gen_result *ret,
                struct errmsg *em);
/* The engine alone, for one generation after the other: rows of a prompt that begins as what was
 * computed last are not computed again. One thread. */
struct gen_local;

/* Loads the model. Of *o what is the engine's is read, and ctx, up to which there is room. */
int gen_local_open(const struct gen_options *o, struct gen_local **ret, struct errmsg *em);
/* NULL is allowed. */
void gen_local_close(struct gen_local *l);
/* As gen_local, with the same settings of the engine in *o; ret->isa is not told. */
int gen_local_next(struct gen_local *l, const struct gen_options *o, gen_text_fn on_text, void *arg,
                   struct gen_result *ret, struct errmsg *em);

/* The figures of an answer whose tokens are in r: when it was asked for, and when its first and its
 * last token came. */
void gen_result_times(struct gen_result *r, uint64_t asked_ns, uint64_t first_ns, uint64_t last_ns);
void gen_result_close(struct gen_result *r);

#endif
