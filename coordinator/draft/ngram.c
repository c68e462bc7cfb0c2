/* An owner is a tenant that has earlier outputs:
 *
 *   owners[by_tenant[tenant]] -> oldest <-> ... <-> newest */
#include "coordinator/draft/ngram.h"

#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/base/mem.h"

#include <string.h>

/* An edited copy: a match of fewer tokens than EDIT_WEAK is worth less than one of EDIT_MATCH or
 * more up to EDIT_TOKENS before. The copy goes on behind the last token, if the place that it was
 * copied from has that token within EDIT_WITHIN beyond as many; this is trusted like a match of
 * EDIT_SEEN tokens. On four texts that SmolLM2 135M rewrote this gave 4.3 tokens a run of 16
 * guesses, and 3.6 without. These constants were chosen of about 15 settings on the same four. */
#define EDIT_WEAK 3u
#define EDIT_MATCH 6u
#define EDIT_TOKENS 4u
#define EDIT_WITHIN 6u
#define EDIT_SEEN 8u

struct kept {
    uint64_t tenant;
    uint64_t serial; /* one kept later has a larger one */
    struct suffix suffix;
    struct kept *older, *newer;
};

struct owner {
    uint64_t tenant;
    struct kept *oldest, *newest;
    size_t bytes;
};

struct ngram {
    struct owner *owners; /* NGRAM_KEPT_MAX; n_owners of them, none without outputs */
    uint32_t n_owners;
    uint64_t serials;
    struct imap by_tenant;
    struct ngram_stats stats;
};

struct ngram *ngram_open(size_t bytes_max)
{
    struct ngram *g = mem_zalloc(sizeof *g);
    g->stats.bytes_max = bytes_max;
    g->owners = mem_zalloc(NGRAM_KEPT_MAX * sizeof *g->owners);
    return g;
}

static struct owner *find_owner(struct ngram *g, uint64_t tenant)
{
    const uint32_t *idx = imap_get(&g->by_tenant, tenant);
    return idx ? &g->owners[*idx] : NULL;
}

/* The last owner takes the place of one that has nothing left. */
static void drop_owner(struct ngram *g, struct owner *o)
{
    imap_remove(&g->by_tenant, o->tenant);
    struct owner *last = &g->owners[--g->n_owners];
    if (last == o) return;
    *o = *last;
    imap_put(&g->by_tenant, o->tenant, (uint32_t)(o - g->owners));
}

static void drop_oldest(struct ngram *g, struct owner *o)
{
    struct kept *k = o->oldest;
    size_t bytes = suffix_bytes(k->suffix.cap);
    o->oldest = k->newer;
    if (o->oldest)
        o->oldest->older = NULL;
    else
        o->newest = NULL;
    o->bytes -= bytes;
    g->stats.bytes -= bytes;
    g->stats.kept--;
    suffix_close(&k->suffix);
    mem_free(k);
    if (!o->oldest) drop_owner(g, o);
}

void ngram_close(struct ngram *g)
{
    if (!g) return;
    while (g->n_owners) drop_oldest(g, &g->owners[0]);
    imap_close(&g->by_tenant);
    mem_free(g->owners);
    mem_free(g);
}

/* The oldest output of a tenant that holds more than half of all, or else of all. So none pushes
 * out the others, and those go that never come back. False: there is none. */
static bool evict(struct ngram *g)
{
    struct owner *most = NULL, *oldest = NULL;
    size_t all = 0;
    for (struct owner *o = g->owners; o < g->owners + g->n_owners; o++) {
        if (!most || o->bytes > most->bytes) most = o;
        if (!oldest || o->oldest->serial < oldest->oldest->serial) oldest = o;
        all += o->bytes;
    }
    if (!most) return false;
    drop_oldest(g, most->bytes > all / 2 ? most : oldest);
    g->stats.evicted++;
    return true;
}

/* Room for so many bytes more, from earlier outputs if need be. */
static bool make_room(struct ngram *g, size_t bytes)
{
    if (bytes > g->stats.bytes_max) return false;
    while (g->stats.bytes > g->stats.bytes_max - bytes)
        if (!evict(g)) return false;
    return true;
}

/* ---- a request's text ---- */

void ngram_begin(struct ngram *g, struct ngram_text *t, uint64_t tenant)
{
    (void)g;
    *t = (struct ngram_text){.tenant = tenant};
}

/* A text for which there is no room is given up. */
static void give_up(struct ngram *g, struct ngram_text *t)
{
    g->stats.bytes -= suffix_bytes(t->suffix.cap);
    g->stats.unindexed++;
    suffix_close(&t->suffix);
    t->full = true;
}

/* The most tokens of a text: a power of two, so that its memory is what they take. */
static uint32_t text_most(const struct ngram *g)
{
    uint32_t n = 1u << 20;
    while (n > 1024 && suffix_bytes(n) > g->stats.bytes_max / 8) n /= 2;
    return n;
}

void ngram_add(struct ngram *g, struct ngram_text *t, const int32_t *tokens, uint32_t n)
{
    uint32_t most = text_most(g);
    if (t->full || n == 0) return;
    if (n >= most) {
        suffix_drop(&t->suffix, 0);
        tokens += n - most / 2;
        n = most / 2;
    } else if (t->suffix.n + n > most) {
        suffix_drop(&t->suffix, most / 2 < most - n ? most / 2 : most - n);
    }
    size_t before = suffix_bytes(t->suffix.cap);
    uint32_t then = t->suffix.n + n;
    size_t after = then > t->suffix.cap ? suffix_bytes(then) : before;
    if (!make_room(g, after - before) || suffix_add(&t->suffix, tokens, n) < 0) {
        give_up(g, t);
        return;
    }
    g->stats.bytes += after - before;
}

static void keep(struct ngram *g, uint64_t tenant, struct suffix *s)
{
    struct owner *o = find_owner(g, tenant);
    if (!o) {
        CHECK(g->n_owners < NGRAM_KEPT_MAX);
        o = &g->owners[g->n_owners];
        *o = (struct owner){.tenant = tenant};
        imap_put(&g->by_tenant, tenant, g->n_owners++);
    }
    struct kept *k = mem_zalloc(sizeof *k);
    *k = (struct kept){.tenant = tenant, .serial = g->serials++, .suffix = *s, .older = o->newest};
    if (o->newest)
        o->newest->newer = k;
    else
        o->oldest = k;
    o->newest = k;
    o->bytes += suffix_bytes(s->cap);
    g->stats.kept++;
}

void ngram_end(struct ngram *g, struct ngram_text *t, const int32_t *output, uint32_t n)
{
    struct suffix s = {0};
    uint32_t most = text_most(g);
    g->stats.bytes -= suffix_bytes(t->suffix.cap);
    suffix_close(&t->suffix);
    if (n < NGRAM_KEPT_LEAST) return;
    if (n > most) {
        output += n - most;
        n = most;
    }
    if (g->stats.kept == NGRAM_KEPT_MAX) (void)evict(g);
    if (!make_room(g, suffix_bytes(n)) || suffix_add(&s, output, n) < 0) return;
    g->stats.bytes += suffix_bytes(n);
    keep(g, t->tenant, &s);
}

/* ---- drafts ---- */

/* A place where the match occurred, and what is behind it. */
struct place {
    const struct suffix *text;
    uint32_t at;
};

struct places {
    struct place items[2 * SUFFIX_FOUND_MAX]; /* the most recent first */
    uint32_t n, len; /* the length of the match; shorter ones are left out */
};

static void look_into(struct places *p, const struct suffix *text, const int32_t *context,
                      uint32_t n)
{
    uint32_t at[SUFFIX_FOUND_MAX], len;
    uint32_t found = suffix_find(text, context, n, UINT32_MAX, at, &len);
    if (!found || len < p->len) return;
    if (len > p->len) p->n = 0;
    p->len = len;
    for (uint32_t i = 0; i < found && p->n < sizeof p->items / sizeof p->items[0]; i++)
        p->items[p->n++] = (struct place){text, at[i]};
}

static void find_places(struct ngram *g, const struct ngram_text *t, const int32_t *context,
                        uint32_t n, struct places *ret)
{
    look_into(ret, &t->suffix, context, n);
    const struct owner *o = find_owner(g, t->tenant);
    const struct kept *k = o ? o->newest : NULL;
    for (uint32_t i = 0; k && i < NGRAM_SEARCHED_MAX; i++, k = k->older) {
        if (k->tenant != t->tenant)
            g->stats.foreign++;
        else
            look_into(ret, &k->suffix, context, n);
    }
}

/* What an own text goes on with behind its end: the guesses that follow it. */
struct more {
    const struct suffix *own;
    const int32_t *tail, *drafted;
    uint32_t n_tail, n_drafted;
};

static bool token_at(const struct more *m, const struct place *p, uint32_t i, int32_t *ret)
{
    uint32_t at = p->at + i;
    if (at < p->text->n) {
        *ret = p->text->tokens[at];
        return true;
    }
    at -= p->text->n;
    if (p->text != m->own || at >= m->n_tail + m->n_drafted) return false;
    *ret = at < m->n_tail ? m->tail[at] : m->drafted[at - m->n_tail];
    return true;
}

/* The token that most places have next; they alone are left. False: none has any. */
static bool vote(const struct more *m, struct places *p, uint32_t i, int32_t *ret)
{
    int32_t token[2 * SUFFIX_FOUND_MAX];
    uint32_t alive = 0, best = 0, best_votes = 0, left = 0;
    for (uint32_t k = 0; k < p->n; k++)
        if (token_at(m, &p->items[k], i, &token[alive])) p->items[alive++] = p->items[k];
    for (uint32_t k = 0; k < alive; k++) {
        uint32_t votes = 0;
        for (uint32_t j = 0; j < alive; j++) votes += token[j] == token[k];
        if (votes <= best_votes) continue;
        best = k;
        best_votes = votes;
    }
    p->n = 0;
    if (!alive) return false;
    *ret = token[best];
    for (uint32_t k = 0; k < alive; k++)
        if (token[k] == *ret) p->items[left++] = p->items[k];
    p->n = left;
    return true;
}

/* Where an edited copy goes on, if all but the last n_edited tokens of the context occurred before.
 */
static bool behind_edit(const struct suffix *s, const int32_t *context, uint32_t n,
                        uint32_t n_edited, uint32_t limit, struct places *ret)
{
    uint32_t at[SUFFIX_FOUND_MAX], len, end, last = n - 1;
    if (n <= n_edited || !suffix_find(s, context, n - n_edited, limit, at, &len)) return false;
    if (len < EDIT_MATCH) return false;
    /* As many tokens are others, unless the last of them is found nearby. */
    *ret = (struct places){.items = {{s, at[0] + n_edited}}, .n = 1, .len = 1};
    end = at[0] + n_edited + EDIT_WITHIN;
    for (uint32_t i = at[0]; i < s->n && i < end; i++) {
        if (s->tokens[i] != context[last]) continue;
        *ret = (struct places){.items = {{s, i + 1}}, .n = 1, .len = EDIT_SEEN};
        break;
    }
    return true;
}

static void find_edit(const struct suffix *s, const int32_t *context, uint32_t n, uint32_t n_tail,
                      struct places *p)
{
    for (uint32_t k = 1; k <= EDIT_TOKENS; k++) {
        uint32_t own = k > n_tail ? k - n_tail : 0; /* of the edited tokens, those of the text */
        if (own > s->n) return;
        /* The text's own end is no earlier occurrence. */
        if (behind_edit(s, context, n, k, own ? s->n - own : UINT32_MAX, p)) return;
    }
}

uint32_t ngram_draft(struct ngram *g, const struct ngram_text *t, const int32_t *tail,
                     uint32_t n_tail, uint32_t want, int32_t *ret)
{
    int32_t context[SUFFIX_CONTEXT_MAX];
    uint32_t of_tail = n_tail < SUFFIX_CONTEXT_MAX ? n_tail : SUFFIX_CONTEXT_MAX;
    uint32_t of_text = SUFFIX_CONTEXT_MAX - of_tail;
    if (of_text > t->suffix.n) of_text = t->suffix.n;
    if (t->full || of_text + of_tail < SUFFIX_LEAST) return 0;
    if (of_text)
        memcpy(context, t->suffix.tokens + (t->suffix.n - of_text), of_text * sizeof *context);
    if (of_tail) memcpy(context + of_text, tail + (n_tail - of_tail), of_tail * sizeof *context);
    struct places p = {.n = 0};
    find_places(g, t, context, of_text + of_tail, &p);
    if (p.len < EDIT_WEAK) find_edit(&t->suffix, context, of_text + of_tail, n_tail, &p);
    if (want > NGRAM_FACTOR * p.len) want = NGRAM_FACTOR * p.len;
    struct more m = {.own = &t->suffix, .tail = tail, .drafted = ret, .n_tail = n_tail};
    while (m.n_drafted < want && vote(&m, &p, m.n_drafted, &ret[m.n_drafted])) m.n_drafted++;
    return m.n_drafted;
}

struct ngram_stats ngram_stats(const struct ngram *g)
{
    return g->stats;
}
