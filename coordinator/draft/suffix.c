/* Positions in the tables count from 1, so that 0 is none:
 *
 *   heads[hash of the g tokens that end at i] -> i + 1, the most recent; chain[i] -> the one before
 *
 * A chain holds all that share the bucket: each occurrence is compared with the context anyway. */
#include "coordinator/draft/suffix.h"

#include "common/base/check.h"
#include "common/base/mem.h"

#include <string.h>

#define CAP_LEAST 64u

/* Tokens of the two tables, the longer first. */
static const uint32_t gram[2] = {4, 2};

void suffix_close(struct suffix *s)
{
    mem_free(s->tokens);
    *s = (struct suffix){0};
}

static uint32_t cap_for(uint32_t n)
{
    uint32_t cap = CAP_LEAST;
    while (cap < n) cap *= 2;
    return cap;
}

size_t suffix_bytes(uint32_t n)
{
    return n ? (size_t)cap_for(n) * 5 * sizeof(uint32_t) : 0;
}

/* A bucket for the `g` tokens that end at *last. */
static uint32_t bucket(const struct suffix *s, const int32_t *last, uint32_t g)
{
    uint64_t h = 0;
    for (uint32_t i = 0; i < g; i++) h = (h ^ (uint32_t) * (last - i)) * 0x9E3779B97F4A7C15u;
    return (uint32_t)(h >> 32) & (s->cap - 1);
}

static void enter(struct suffix *s, uint32_t i)
{
    for (uint32_t t = 0; t < 2; t++) {
        if (i + 1 < gram[t]) continue;
        uint32_t *head = &s->table[2 * t][bucket(s, s->tokens + i, gram[t])];
        s->table[2 * t + 1][i] = *head;
        *head = i + 1;
    }
}

static void enter_all(struct suffix *s)
{
    for (uint32_t t = 0; t < 4; t++) memset(s->table[t], 0, s->cap * sizeof *s->table[t]);
    for (uint32_t i = 0; i < s->n; i++) enter(s, i);
}

static int reserve(struct suffix *s, uint32_t n)
{
    if (n <= s->cap) return 0;
    uint32_t cap = cap_for(n);
    int32_t *block = mem_try(suffix_bytes(n));
    if (!block) return ERR_NOMEM;
    if (s->n) memcpy(block, s->tokens, s->n * sizeof *block);
    mem_free(s->tokens);
    s->tokens = block;
    s->cap = cap;
    for (uint32_t t = 0; t < 4; t++) s->table[t] = (uint32_t *)block + (size_t)(t + 1) * cap;
    enter_all(s);
    return 0;
}

int suffix_add(struct suffix *s, const int32_t *tokens, uint32_t n)
{
    CHECK(n < (1u << 30) - s->n);
    int rc = reserve(s, s->n + n);
    for (uint32_t i = 0; i < n && rc == 0; i++) {
        s->tokens[s->n] = tokens[i];
        enter(s, s->n++);
    }
    return rc;
}

void suffix_drop(struct suffix *s, uint32_t keep)
{
    if (s->n <= keep) return;
    memmove(s->tokens, s->tokens + (s->n - keep), keep * sizeof *s->tokens);
    s->n = keep;
    enter_all(s);
}

/* How many of the last tokens before position `at` are the context's last. */
static uint32_t match(const struct suffix *s, uint32_t at, const int32_t *end, uint32_t n)
{
    uint32_t most = at < n ? at : n, len = 0;
    while (len < most && s->tokens[at - 1 - len] == *(end - 1 - len)) len++;
    return len;
}

uint32_t suffix_find(const struct suffix *s, const int32_t *context, uint32_t n, uint32_t limit,
                     uint32_t ret_at[static SUFFIX_FOUND_MAX], uint32_t *ret_len)
{
    const int32_t *end = context + n;
    uint32_t found = 0, best = 0;
    *ret_len = 0;
    if (n > SUFFIX_CONTEXT_MAX) n = SUFFIX_CONTEXT_MAX;
    if (limit > s->n) limit = s->n; /* a token is behind it */
    for (uint32_t t = 0; t < 2 && !found && s->n; t++) {
        if (n < gram[t]) continue;
        best = gram[t]; /* a bucket has other grams too; shorter matches are the next table's */
        uint32_t at = s->table[2 * t][bucket(s, end - 1, gram[t])];
        for (uint32_t i = 0; at && i < SUFFIX_WALK; i++, at = s->table[2 * t + 1][at - 1]) {
            uint32_t len = at < limit ? match(s, at, end, n) : 0;
            if (len < best) continue;
            if (len > best) found = 0;
            best = len;
            if (found < SUFFIX_FOUND_MAX) ret_at[found++] = at;
        }
    }
    if (found) *ret_len = best;
    return found;
}
