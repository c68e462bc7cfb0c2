/* Blocks are numbered as nodes of a tree: a node is a block behind the blocks before it, so that
 * equal numbers mean equal prefixes whatever ids a file uses. */
#include "coordinator/sim/trace.h"

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/text/json.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROOT UINT32_MAX /* the parent of first blocks */

struct builder {
    struct trace trace;
    size_t cap_requests, cap_blocks;
    struct imap ids;   /* id of the file -> a number below 2^32 */
    struct imap nodes; /* (parent's node, number of the id) -> node */
    uint32_t n_ids;
};

/* ---- building ---- */

/* Room for n items; false: there is no memory, and the old ones stay. */
static bool grow(void **items, size_t *cap, size_t n, size_t size)
{
    if (n <= *cap) return true;
    size_t new_cap = n + n / 2 + 64;
    void *p = mem_try(new_cap * size);
    if (!p) return false;
    if (*cap) memcpy(p, *items, *cap * size);
    mem_free(*items);
    *items = p;
    *cap = new_cap;
    return true;
}

/* The value of a key, or the next one from *n, which is then put in. There is room for it. */
static uint32_t number_of(struct imap *m, uint64_t key, uint32_t *n)
{
    const uint32_t *known = imap_get(m, key);
    if (known) return *known;
    imap_put(m, key, *n);
    return (*n)++;
}

/* Room for one request with n blocks. */
static int reserve(struct builder *b, uint32_t n, struct errmsg *em)
{
    struct trace *t = &b->trace;
    if (t->n_requests == TRACE_REQUESTS_MAX)
        return err_set(em, ERR_LIMIT, "more than %u requests", TRACE_REQUESTS_MAX);
    if (n > TRACE_BLOCKS_MAX - t->n_blocks)
        return err_set(em, ERR_LIMIT, "more than %u blocks of all prompts", TRACE_BLOCKS_MAX);
    void *requests = t->requests, *blocks = t->blocks;
    bool ok = grow(&requests, &b->cap_requests, (size_t)t->n_requests + 1, sizeof *t->requests);
    ok = grow(&blocks, &b->cap_blocks, (size_t)t->n_blocks + n, sizeof *t->blocks) && ok;
    t->requests = requests;
    t->blocks = blocks;
    if (!ok || imap_reserve(&b->ids, (size_t)b->n_ids + n) < 0 ||
        imap_reserve(&b->nodes, (size_t)t->n_distinct + n) < 0)
        return err_set(em, ERR_NOMEM, "no memory for the trace");
    return 0;
}

static void begin_request(struct builder *b, uint64_t at_us, uint32_t n_answer)
{
    struct trace *t = &b->trace;
    t->requests[t->n_requests++] =
        (struct trace_request){.at_us = at_us, .first_block = t->n_blocks, .n_answer = n_answer};
    t->answer_tokens += n_answer;
}

/* One more block of the last request, for which there is room. */
static void add_block(struct builder *b, uint64_t id)
{
    struct trace *t = &b->trace;
    struct trace_request *r = &t->requests[t->n_requests - 1];
    uint64_t parent = r->n_blocks ? t->blocks[t->n_blocks - 1] : ROOT;
    uint64_t key = parent << 32 | number_of(&b->ids, id, &b->n_ids);
    t->blocks[t->n_blocks++] = number_of(&b->nodes, key, &t->n_distinct);
    if (++r->n_blocks > t->prompt_most) t->prompt_most = r->n_blocks;
}

/* Hands the trace over; after an error, frees it. */
static int finish(struct builder *b, int rc, struct trace *ret)
{
    imap_close(&b->ids);
    imap_close(&b->nodes);
    if (rc < 0)
        trace_close(&b->trace);
    else
        *ret = b->trace;
    return rc;
}

void trace_close(struct trace *t)
{
    mem_free(t->requests);
    mem_free(t->blocks);
    *t = (struct trace){0};
}

/* ---- files ---- */

static int get_number(const struct json *object, const char *key, uint64_t least, uint64_t most,
                      uint64_t *ret, struct errmsg *em)
{
    const struct json *v = json_get(object, key);
    if (!v) return err_set(em, ERR_FORMAT, "'%s' is missing", key);
    if (json_as_u64(v, ret) && *ret >= least && *ret <= most) return 0;
    return err_set(em, ERR_FORMAT, "'%s' is not a whole number in %" PRIu64 "..%" PRIu64, key,
                   least, most);
}

/* The blocks' ids; there must be one for each 512 tokens of the prompt. */
static int add_blocks(struct builder *b, const struct json *ids, uint64_t n_tokens, uint64_t at_us,
                      uint32_t n_answer, struct errmsg *em)
{
    size_t n;
    if (!json_count(ids, &n)) return err_set(em, ERR_FORMAT, "'hash_ids' is not a list");
    uint64_t want = (n_tokens + TRACE_BLOCK_TOKENS - 1) / TRACE_BLOCK_TOKENS;
    if (n != want)
        return err_set(em, ERR_FORMAT,
                       "'hash_ids' has %zu blocks, but 'input_length' %" PRIu64 " is %" PRIu64
                       " blocks of %u tokens",
                       n, n_tokens, want, TRACE_BLOCK_TOKENS);
    int rc = reserve(b, (uint32_t)n, em);
    if (rc < 0) return rc;
    begin_request(b, at_us, n_answer);
    for (size_t i = 0; i < n; i++) {
        uint64_t id;
        if (!json_as_u64(json_at(ids, i), &id))
            return err_set(em, ERR_FORMAT, "'hash_ids': number %zu is no whole number from 0 on",
                           i + 1);
        add_block(b, id);
    }
    return 0;
}

static int read_request(struct builder *b, const struct json *line, struct errmsg *em)
{
    const struct trace *t = &b->trace;
    uint64_t at_ms, n_prompt, n_answer;
    int rc = get_number(line, "timestamp", 0, TRACE_TIME_MS_MAX, &at_ms, em);
    if (rc == 0)
        rc = get_number(line, "input_length", 1,
                        (uint64_t)TRACE_PROMPT_BLOCKS_MAX * TRACE_BLOCK_TOKENS, &n_prompt, em);
    if (rc == 0) rc = get_number(line, "output_length", 1, TRACE_ANSWER_TOKENS_MAX, &n_answer, em);
    if (rc < 0) return rc;
    uint64_t before_ms = t->n_requests ? t->requests[t->n_requests - 1].at_us / 1000 : 0;
    if (at_ms < before_ms)
        return err_set(em, ERR_FORMAT,
                       "'timestamp' %" PRIu64 " is before %" PRIu64 " of the request above", at_ms,
                       before_ms);
    return add_blocks(b, json_get(line, "hash_ids"), n_prompt, at_ms * 1000, (uint32_t)n_answer,
                      em);
}

/* A line's text without its end; 1: there is one, 0: the file ends. */
static int next_line(FILE *f, char *line, struct errmsg *em)
{
    if (!fgets(line, (int)TRACE_LINE_BYTES, f))
        return ferror(f) ? err_set(em, ERR_IO, "%s", strerror(errno)) : 0;
    size_t n = strlen(line);
    if (n && line[n - 1] == '\n')
        line[n - 1] = 0;
    else if (!feof(f))
        return err_set(em, ERR_LIMIT, "a zero byte, or more than %zu bytes", TRACE_LINE_BYTES - 2);
    return 1;
}

static int read_lines(struct builder *b, const char *path, FILE *f, char *line, struct errmsg *em)
{
    for (uint64_t at = 1;; at++) {
        struct json *j = NULL;
        int rc = next_line(f, line, em);
        if (rc == 0) return 0;
        if (rc > 0 && line[0] == 0) continue; /* an empty line */
        if (rc > 0) rc = json_read(line, strlen(line), &j, em);
        if (rc == 0) rc = read_request(b, j, em);
        json_free(j);
        if (rc < 0) return err_wrap(em, rc, "%s:%" PRIu64, path, at);
    }
}

int trace_read(const char *path, struct trace *ret, struct errmsg *em)
{
    struct builder b = {0};
    FILE *f = fopen(path, "r");
    if (!f) return err_set(em, ERR_IO, "%s: %s", path, strerror(errno));
    char *line = mem_try(TRACE_LINE_BYTES);
    int rc =
        line ? read_lines(&b, path, f, line, em) : err_set(em, ERR_NOMEM, "%s: no memory", path);
    if (rc == 0 && b.trace.n_requests == 0) rc = err_set(em, ERR_FORMAT, "%s: no requests", path);
    mem_free(line);
    (void)fclose(f);
    return finish(&b, rc, ret);
}

/* ---- made-up traces ---- */

static int set_key(const char *key, const char *value, struct trace_spec *s, struct errmsg *em)
{
    const struct {
        const char *name;
        uint32_t *to; /* NULL: the skew */
        uint32_t least, most;
    } keys[] = {{"requests", &s->requests, 1, TRACE_REQUESTS_MAX},
                {"groups", &s->groups, 1, TRACE_REQUESTS_MAX},
                {"shared", &s->shared, 0, TRACE_PROMPT_BLOCKS_MAX / 4},
                {"own", &s->own, 0, TRACE_PROMPT_BLOCKS_MAX / 4},
                {"answer", &s->answer, 1, TRACE_ANSWER_TOKENS_MAX / 2},
                {"skew", NULL, 0, 4}};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (strcmp(key, keys[i].name) != 0) continue;
        char *end;
        double v = strtod(value, &end);
        bool whole = !keys[i].to || v == floor(v);
        if (end == value || *end || !(v >= keys[i].least && v <= keys[i].most) || !whole)
            return err_set(em, ERR_CONF, "%s=%s: not a %s in %" PRIu32 "..%" PRIu32, key, value,
                           keys[i].to ? "whole number" : "number", keys[i].least, keys[i].most);
        if (keys[i].to)
            *keys[i].to = (uint32_t)v;
        else
            s->skew = v;
        return 0;
    }
    return err_set(em, ERR_CONF, "'%s' is unknown (requests, groups, shared, own, answer, skew)",
                   key);
}

int trace_parse_spec(const char *text, struct trace_spec *ret, struct errmsg *em)
{
    while (*text) {
        char pair[64];
        size_t n = strcspn(text, ",");
        if (n >= sizeof pair) return err_set(em, ERR_CONF, "'%.32s...' is too long", text);
        memcpy(pair, text, n);
        pair[n] = 0;
        text += n + (text[n] == ',');
        char *equals = strchr(pair, '=');
        if (!equals) return err_set(em, ERR_CONF, "'%s' is not KEY=VALUE", pair);
        *equals = 0;
        int rc = set_key(pair, equals + 1, ret, em);
        if (rc < 0) return rc;
    }
    if (ret->shared == 0 && ret->own == 0)
        return err_set(em, ERR_CONF, "shared=0 and own=0: the prompts have no blocks");
    return 0;
}

/* Uniform in [0, 1). */
static double draw(struct rng *rng)
{
    return (double)(rng_u64(rng) >> 11) * 0x1p-53;
}

/* Uniform in 1 .. 2 x mean - 1; 0 where the mean is. */
static uint32_t draw_about(struct rng *rng, uint32_t mean)
{
    return mean ? 1 + (uint32_t)rng_below(rng, 2 * (uint64_t)mean - 1) : 0;
}

struct group {
    double share;    /* of the requests, with all groups before it */
    uint64_t first;  /* id of its first block */
    uint32_t blocks; /* how many */
};

static void draw_groups(const struct trace_spec *spec, struct rng *rng, struct group *groups)
{
    double sum = 0.0;
    uint64_t next = 0;
    for (uint32_t g = 0; g < spec->groups; g++) {
        uint32_t least = (spec->shared + 1) / 2, most = spec->shared + spec->shared / 2;
        sum += pow(g + 1.0, -spec->skew);
        groups[g].share = sum;
        groups[g].first = next;
        groups[g].blocks = least + (uint32_t)rng_below(rng, (uint64_t)most - least + 1);
        next += groups[g].blocks;
    }
    for (uint32_t g = 0; g < spec->groups; g++) groups[g].share /= sum;
}

/* The first group whose share is above x. */
static const struct group *group_at(const struct group *groups, uint32_t n, double x)
{
    uint32_t low = 0, high = n - 1;
    while (low < high) {
        uint32_t mid = (low + high) / 2;
        if (groups[mid].share > x)
            high = mid;
        else
            low = mid + 1;
    }
    return &groups[low];
}

int trace_make(const struct trace_spec *spec, uint64_t seed, struct trace *ret, struct errmsg *em)
{
    struct builder b = {0};
    struct rng rng = {seed};
    struct group *groups = mem_try(spec->groups * sizeof *groups);
    if (!groups) return err_set(em, ERR_NOMEM, "no memory for %" PRIu32 " groups", spec->groups);
    draw_groups(spec, &rng, groups);
    uint64_t own_id = groups[spec->groups - 1].first + groups[spec->groups - 1].blocks;
    double at_us = 0.0;
    int rc = 0;
    for (uint32_t i = 0; i < spec->requests && rc == 0; i++) {
        const struct group *g = group_at(groups, spec->groups, draw(&rng));
        uint32_t own = draw_about(&rng, spec->own), answer = draw_about(&rng, spec->answer);
        at_us -= log(1.0 - draw(&rng)) * 1e6;
        rc = reserve(&b, g->blocks + own, em);
        if (rc < 0) break;
        begin_request(&b, (uint64_t)at_us, answer);
        for (uint32_t k = 0; k < g->blocks; k++) add_block(&b, g->first + k);
        for (uint32_t k = 0; k < own; k++) add_block(&b, own_id++);
    }
    mem_free(groups);
    return finish(&b, rc, ret);
}
