/* A whole model in this process, for the commands that need no cluster. */
#ifndef FLOTILLA_CLI_WHOLE_H
#define FLOTILLA_CLI_WHOLE_H

#include "common/base/err.h"
#include "coordinator/model_file.h"

#include <stdint.h>

struct whole_options {
    const char *isa, *kv; /* NULL: the best; f16 */
    uint32_t threads;     /* 0: as many as pool_cores has */
    uint32_t positions;   /* for which there is room */
    uint32_t context;     /* most positions of one sequence; 0: all of them */
    uint32_t chunk;       /* most rows of a step */
    uint32_t logits;      /* rows of a step that may want logits; 0: one */
};

struct whole {
    struct engine *engine;
    uint32_t *pages; /* the identity: a table of one sequence, or of several that share them out */
};

/* Loads all layers of an open file, with a progress display. ERR_CONF for an unknown KV type;
 * ERR_NOMEM, and nothing is read, where weights and positions need more than this process can have.
 */
int whole_open(const struct model_file *f, const struct whole_options *o, struct whole *ret,
               struct errmsg *em);
void whole_close(struct whole *w);

/* Runs n consecutive rows; the last n_logits of them have logits. *ret_logits: the first one's;
 * eng_logits has those of all. */
int whole_step(struct whole *w, uint32_t first_pos, const int32_t *tokens, uint32_t n,
               uint32_t n_logits, const float **ret_logits, struct errmsg *em);

struct whole_work {
    uint32_t prompt, tokens; /* rows of a prompt, then tokens that are decoded, */
    uint32_t prompt_at;      /* the rows from this position on, */
    uint32_t depth;          /* the tokens from this one on */
    uint32_t chunk;          /* rows of the prompt in one step, at least 1 */
};

/* How fast the model computes such work, after a first row that does not count: in tokens a second,
 * of the prompt and of what is decoded; where there is none of it the rate stays as it was. */
int whole_measure(struct whole *w, const struct whole_work *work, double *ret_prompt,
                  double *ret_decode, struct errmsg *em);

#endif
