/* A compiled grammar: which bytes an answer may consist of, as a pushdown automaton over bytes. It
 * runs on the last stage, where the grammar is what a peer sent, so that every byte of it is
 * checked and every walk through it is bounded. grammar_tree.h compiles one.
 *
 * Layout: 'F' 'G' 1, number of sets (1 byte), bytes of code (2, low byte first), one more than the
 * address of the rule that is any character of a JSON string (2; 0: there is none), sets (32 bytes
 * each, a bit for each byte value), code. Targets are 2 bytes, low byte first, counted from the
 * code's begin. An answer begins at 0 with an empty stack.
 *
 *   0x20..0x7e         that byte
 *   BYTE b             the byte b
 *   RANGE lo hi        a byte of lo..hi
 *   SET i              a byte of set i
 *   SPLIT t            both: what follows, and t
 *   JUMP t
 *   CALL t             pushes what follows, goes to t
 *   RET                goes to what was pushed; the answer may end where the stack is empty
 *   BEGIN t            pushes a count of 0 for the LOOP at t
 *   LOOP t min max     one more time is done: again from t while it is below max, or (from min on)
 * drops the count and goes on. min, max: 2 bytes; max 0xffff: any number PEEK n (lo hi t)n  goes to
 * the t whose range holds the next byte, without taking it ROOM k             only while the stack
 * has room for k more
 */
#ifndef FLOTILLA_TEXT_GRAMMAR_H
#define FLOTILLA_TEXT_GRAMMAR_H

#include "common/base/err.h"
#include "common/base/hash.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GRAMMAR_BYTES_MAX 32768u
#define GRAMMAR_HEAD_BYTES 8u
#define GRAMMAR_SET_BYTES 32u
#define GRAMMAR_DEPTH_MAX 96u     /* words of a stack */
#define GRAMMAR_STATE_WORDS 1024u /* of all positions that an answer may be at */
#define GRAMMAR_COUNT_MAX 65000u  /* of a LOOP */
#define GRAMMAR_NO_MAX 0xffffu

enum grammar_op {
    GRAMMAR_BYTE = 1,
    GRAMMAR_RANGE,
    GRAMMAR_SET,
    GRAMMAR_SPLIT,
    GRAMMAR_JUMP,
    GRAMMAR_CALL,
    GRAMMAR_RET,
    GRAMMAR_BEGIN,
    GRAMMAR_LOOP,
    GRAMMAR_PEEK,
    GRAMMAR_ROOM,
};

struct grammar {
    const uint8_t *code; /* borrowed */
    const uint8_t *sets;
    uint32_t n_code, n_sets;
    uint32_t character;  /* the address of that rule; n_code: there is none */
    struct hash128 hash; /* of all its bytes */
    uint8_t class[256];  /* bytes of one class are all the same to it */
};

/* Checks the bytes, which are borrowed as long as *ret is used. ERR_FORMAT: they are no grammar. */
int grammar_open(const void *data, size_t bytes, struct grammar *ret, struct errmsg *em);

/* Where an answer is: one position or several, each with its stack. A position is a word (address
 * << 8 | depth) and its stack's words, the bottom first: an address to return to, or a count (1 <<
 * 31 | address of its LOOP << 16 | count). Positions beyond GRAMMAR_STATE_WORDS are dropped: what
 * is left still leads to answers of the grammar. Plain memory: copy it freely. */
struct grammar_state {
    uint16_t n_words;
    bool may_end;  /* the answer may end here */
    uint64_t work; /* operations of the steps that led here; tells no two states apart */
    uint32_t words[GRAMMAR_STATE_WORDS];
};

void grammar_start(const struct grammar *g, struct grammar_state *ret);
/* The state behind one more byte; `from` and `ret` may not be the same. False: no answer has this
 * byte here, and *ret is dead. */
bool grammar_step(const struct grammar *g, const struct grammar_state *from, uint8_t byte,
                  struct grammar_state *ret);
/* Nothing can follow, and the answer cannot end either. */
static inline bool grammar_is_dead(const struct grammar_state *s)
{
    return s->n_words == 0 && !s->may_end;
}

/* How many characters, of those that stand in a JSON string as they are, may follow in any case:
 * UINT32_MAX: any number; 0: who knows. */
uint32_t grammar_free_characters(const struct grammar *g, const struct grammar_state *s);

/* The same state as far as the next n_bytes bytes can tell: counts that stay away from their bounds
 * are made alike, so that few different states are left. What leads from a state so changed is
 * right for n_bytes bytes. */
void grammar_blur(const struct grammar *g, struct grammar_state *s, uint32_t n_bytes);

#endif
