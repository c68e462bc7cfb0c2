/* What a cluster file, a command line or a request says about speculation, and the checks of it.
 * Pure. */
#ifndef FLOTILLA_DRAFT_SETTINGS_H
#define FLOTILLA_DRAFT_SETTINGS_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stdint.h>

#define DRAFT_LENGTH_MAX 32u  /* tokens of a draft */
#define DRAFT_THREADS_MAX 64u /* of a draft model's engine */

enum draft_kind {
    DRAFT_OFF,
    DRAFT_NGRAM, /* what followed the same tokens before: in the request, or the tenant's outputs */
    DRAFT_MODEL, /* a small model of the same vocabulary */
    DRAFT_RECORDED, /* texts of a file */
    DRAFT_AUTO,     /* for each request what gains most: the model, if there is one, or ngram */
    DRAFT_N_KINDS
};

/* "off", "ngram", "model", "recorded", "auto". */
const char *draft_kind_name(enum draft_kind kind);
/* The same names, as a request gives them. ERR_CONF names what is known. */
int draft_kind_parse(const char *name, enum draft_kind *ret, struct errmsg *em);

struct draft_settings {
    enum draft_kind kind;
    const char *path; /* borrowed: of the model (DRAFT_MODEL, DRAFT_AUTO: or NULL) or the texts */
    uint32_t length;  /* tokens of a draft, 1..DRAFT_LENGTH_MAX: to begin with, where adaptive */
    bool adaptive;    /* the length follows the acceptance, and speculation ends where it loses */
    bool pipelined;   /* the next run is sent before the answer to the last has come */
    uint32_t length_max;   /* of an adaptive length: length..DRAFT_LENGTH_MAX */
    float low, high;       /* below and above these acceptances the length falls and rises */
    uint32_t threads;      /* of the draft model's engine; 0: all but one of the process's cores */
    uint64_t memory_bytes; /* of all that drafting holds; 0: DRAFT_MEMORY_BYTES */
};

#define DRAFT_MEMORY_BYTES (UINT64_C(1) << 30)
#define DRAFT_MEMORY_LEAST (UINT64_C(1) << 20)

/* Off; adaptive and pipelined; a length of 4, from 1 to 32, by 0.5 and 0.8. */
#define DRAFT_DEFAULTS                                                                             \
    ((struct draft_settings){.length = 4,                                                          \
                             .adaptive = true,                                                     \
                             .pipelined = true,                                                    \
                             .length_max = DRAFT_LENGTH_MAX,                                       \
                             .low = 0.5f,                                                          \
                             .high = 0.8f})

/* "off", "ngram", "auto", "auto:FILE", "recorded:FILE", or a model's path that ends with ".gguf":
 * kind and path, which is borrowed from the text. ERR_CONF names what is known. */
int draft_settings_source(struct draft_settings *s, const char *text, struct errmsg *em);
/* "auto", or a number, which makes the length constant. ERR_RANGE names the number and the limit.
 */
int draft_settings_length(struct draft_settings *s, const char *text, struct errmsg *em);
/* ERR_RANGE names the field, its value and its limits; ERR_CONF: a kind lacks its file. */
int draft_settings_check(const struct draft_settings *s, struct errmsg *em);

#endif
