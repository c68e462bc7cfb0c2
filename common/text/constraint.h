/* A grammar that holds for one answer, and where the answer is in it. The state is found from the
 * answer's tokens, whoever chose them, and so is right after a replay, and for a token that is
 * chosen behind guesses: a state is kept from CONSTRAINT_BACK tokens ago, and one from the latest
 * token, so that an answer that takes back as many tokens is not read anew.
 *
 * Plain memory, embedded by its owner; one thread. */
#ifndef FLOTILLA_TEXT_CONSTRAINT_H
#define FLOTILLA_TEXT_CONSTRAINT_H

#include "common/text/masks.h"

#define CONSTRAINT_BACK 128u
/* Operations of the grammar's code that a token may take for long, and CONSTRAINT_BACK times that
 * now and then. A replay reads a whole answer anew while others wait. */
#define CONSTRAINT_WORK 8192u

/* The sequence's tokens from position `pos` on, as many as lie side by side: *ret_n, at least 1. */
typedef const int32_t *(*constraint_said_fn)(const void *arg, uint32_t pos, uint32_t *ret_n);

/* A state, and how many of the answer's tokens are behind it. */
struct constraint_at {
    uint32_t n;
    struct grammar_state state;
};

/* All private. */
struct constraint {
    struct grammar grammar; /* of `bytes` */
    struct constraint_at old, now;
    int32_t told[2 * CONSTRAINT_BACK]; /* tokens between the two */
    uint8_t bytes[GRAMMAR_BYTES_MAX];
};

/* Keeps a copy of the grammar. ERR_FORMAT: it is none. */
int constraint_open(struct constraint *c, const void *grammar, size_t bytes, struct errmsg *em);
/* The state before the token at `pos`, in an answer that begins at `boundary`; valid until the next
 * call. It is dead where the tokens are none of the grammar's: guesses may be, until they are
 * refuted. */
const struct grammar_state *constraint_seek(struct constraint *c, const struct masks *m,
                                            uint32_t boundary, uint32_t pos,
                                            constraint_said_fn said, const void *arg);
/* Whether reading the answer up to there took more than it may, and was given up: the same whenever
 * it is read. */
bool constraint_is_dear(const struct constraint *c);

#endif
