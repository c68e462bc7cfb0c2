/* A trace: requests with their times, the blocks of their prompts, and the lengths of their
 * answers. From a file in the form of the Mooncake traces (README.md of this folder), or made up.
 *
 * Owned by one thread. */
#ifndef FLOTILLA_SIM_TRACE_H
#define FLOTILLA_SIM_TRACE_H

#include "common/base/err.h"

#include <stddef.h>
#include <stdint.h>

#define TRACE_BLOCK_TOKENS 512u /* of a prompt; its last block may have fewer */

#define TRACE_LINE_BYTES ((size_t)4 << 20) /* of a file's line, with its end */
#define TRACE_REQUESTS_MAX 1000000u
#define TRACE_BLOCKS_MAX (1u << 23)        /* of all prompts */
#define TRACE_PROMPT_BLOCKS_MAX (1u << 16) /* of one */
#define TRACE_ANSWER_TOKENS_MAX 1000000u
#define TRACE_TIME_MS_MAX UINT64_C(1000000000000) /* 31 years */

struct trace_request {
    uint64_t at_us;       /* when it comes; never before the request that precedes it */
    uint32_t first_block; /* its prompt: index into trace.blocks, */
    uint32_t n_blocks;    /* and how many, at least 1 */
    uint32_t n_answer;    /* tokens of the answer, at least 1 */
};

/* Zeroed, it is empty. */
struct trace {
    struct trace_request *requests;
    uint32_t n_requests;
    uint32_t *blocks; /* the prompts' blocks. Equal numbers: equal tokens up to the block's end */
    uint32_t n_blocks;
    uint32_t n_distinct;    /* different numbers, 0..n_distinct - 1: the misses of a cache that is
                               shared by all and unlimited */
    uint32_t prompt_most;   /* blocks of the longest prompt */
    uint64_t answer_tokens; /* of all requests */
};

/* Reads a file. ERR_IO; ERR_FORMAT and ERR_LIMIT with the file's line and the key; ERR_NOMEM. */
int trace_read(const char *path, struct trace *ret, struct errmsg *em);

/* A made-up trace: each request belongs to a group, and has the group's blocks in front of its own.
 * Group g (from 1) is drawn with a weight of 1 / g^skew. */
struct trace_spec {
    uint32_t requests, groups;
    uint32_t shared; /* blocks of a group: each has between half as many and half as many more */
    uint32_t own;    /* blocks of a request alone, 1 .. 2 x own - 1; 0: none */
    uint32_t answer; /* tokens, 1 .. 2 x answer - 1 */
    double skew;
};

#define TRACE_SPEC_DEFAULT                                                                         \
    ((struct trace_spec){                                                                          \
        .requests = 4000, .groups = 64, .shared = 32, .own = 8, .answer = 200, .skew = 1.0})

/* Reads "requests=4000,groups=64" and so on into *ret, which holds the defaults. ERR_CONF names the
 * key and its limits. */
int trace_parse_spec(const char *text, struct trace_spec *ret, struct errmsg *em);
/* Requests come as a Poisson process, one a second on average. The same seed makes the same trace.
 */
int trace_make(const struct trace_spec *spec, uint64_t seed, struct trace *ret, struct errmsg *em);

void trace_close(struct trace *t);

#endif
