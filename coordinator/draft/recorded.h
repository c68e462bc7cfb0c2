/* Drafts from a file of texts: the perfect draft where a request's answer is among them, for tests
 * and benchmarks. README.md has the file's form. Immutable once open. */
#ifndef FLOTILLA_DRAFT_RECORDED_H
#define FLOTILLA_DRAFT_RECORDED_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RECORDED_TEXTS_MAX 65536u

struct recorded;

/* ERR_FORMAT names the file, the line and what is wrong: no number, a token that a vocabulary of
 * `vocab` tokens lacks. ERR_LIMIT: more texts than RECORDED_TEXTS_MAX, or more than bytes_max in
 * memory. ERR_NOTFOUND, ERR_IO: the file cannot be read. */
int recorded_open(const char *path, uint32_t vocab, size_t bytes_max, struct recorded **ret,
                  struct errmsg *em);
/* May be NULL. */
void recorded_close(struct recorded *r);

/* Which text a request follows. Zeroed, it is not chosen yet; it belongs to one request. */
struct recorded_choice {
    uint32_t text, agreed; /* private, like all here; text counts from 1 */
    bool final;
};

/* Tokens from position `from` on, of the text that begins with the prompt (n_prompt tokens) and
 * agrees with the answer for longest; the first of the file among equals. Once chosen, a text is
 * followed by position, whether the answer agrees with it or not. `tokens`: the n confirmed ones,
 * of which earlier calls have seen the first. from >= n. Returns how many there are. */
uint32_t recorded_draft(const struct recorded *r, struct recorded_choice *c, const int32_t *tokens,
                        uint32_t n, uint32_t n_prompt, uint32_t from, uint32_t want, int32_t *ret);

#endif
