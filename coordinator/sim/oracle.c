/* What the answers are, and what stages read and write on the way to them. Nothing here shares code
 * with the core. */
#include "coordinator/sim/world.h"

#include <inttypes.h>
#include <string.h>

uint64_t check__mix(uint64_t a, uint64_t b)
{
    struct rng r = {a ^ (b * 0x9E3779B97F4A7C15u)};
    return rng_u64(&r) ^ b;
}

uint64_t check__root(uint64_t tenant)
{
    return 1 + tenant;
}

/* The token after a position, from the parameters that the last stage was told and the position's
 * tag. */
static int32_t choose(const struct msg_open *o, uint32_t sample, uint64_t tag)
{
    uint64_t key = check__mix(o->sampling.seed, o->boundary * 16 + sample);
    return (int32_t)(check__mix(key, tag) % WORLD_VOCAB);
}

void check__oracle(struct world *w, struct world_request *r)
{
    const struct msg_open o = {.sampling = {.seed = r->seed}, .boundary = r->n_prompt};
    uint32_t limit = r->n_prompt + r->max_new;
    if (limit > w->cfg.ctx) limit = w->cfg.ctx;
    uint64_t tag = check__root(r->tenant);
    for (uint32_t p = 0; p < limit; p++) {
        if (p >= r->n_prompt) {
            r->tokens[p] = choose(&o, r->sample, tag);
            r->eog = r->tokens[p] == WORLD_EOG && !r->ignore_eos;
            if (r->eog) break;
        }
        tag = check__mix(tag, (uint64_t)r->tokens[p] + 1);
        r->tags[p] = tag;
        r->n_oracle = p + 1;
    }
}

struct world_request *check__find(struct world *w, uint64_t id)
{
    return id >= 1 && id <= w->n_requests ? &w->requests[id - 1] : NULL;
}

uint32_t check__first_seen(const struct world *w, uint32_t pos)
{
    return pos + 1 > w->cfg.attn_window ? pos + 1 - w->cfg.attn_window : 0;
}

/* A table's pages from a position on, a page's first. */
struct table {
    const uint32_t *pages;
    uint32_t from;
};

static struct table whole_of(const struct msg_run *r)
{
    return (struct table){r->pages, 0};
}

static struct table windowed_of_run(const struct world *w, const struct msg_run *r)
{
    return (struct table){r->window_pages, r->window_first * w->cfg.page};
}

/* A position's place in the shadow of a pool. */
static uint32_t place(const struct world *w, struct table t, uint32_t pos)
{
    return t.pages[(pos - t.from) / w->cfg.page] * w->cfg.page + pos % w->cfg.page;
}

/* A row at position p reads positions from `first` on, which must be what the request's own rows
 * were fed with, or what it found computed. 6. What another request writes is read in later Steps
 * only. */
static void check_reads(struct world *w, const struct world_shadow *s, struct table t,
                        uint64_t step, const struct msg_run *r, const uint64_t *tags,
                        uint32_t first, uint32_t p)
{
    if (first < t.from) {
        world__fail(
            w, "request %" PRIu64 ": row %" PRIu32 " sees %" PRIu32 ", pages begin at %" PRIu32,
            r->request, p, first, t.from);
        return;
    }
    for (uint32_t k = first; k < p; k++) {
        uint32_t at = place(w, t, k);
        if (s->tags[at] != tags[k])
            world__fail(w, "request %" PRIu64 ": row %" PRIu32 " reads a wrong KV at %" PRIu32,
                        r->request, p, k);
        else if (s->wrote_in[at] == step && s->wrote_by[at] != r->request)
            world__fail(w, "request %" PRIu64 " reads what %" PRIu64 " writes in Step %" PRIu64,
                        r->request, s->wrote_by[at], step);
    }
}

static void write_row(struct world_shadow *s, uint32_t at, uint64_t tag, uint64_t step,
                      uint64_t request)
{
    s->tags[at] = tag;
    s->wrote_in[at] = step;
    s->wrote_by[at] = request;
}

/* 2. Shadow KV: a row finds the right tag at every position before it, and brings the right token;
 * a guess may be wrong, and finds what those before it were fed with. */
void check__run(struct world *w, struct world_worker *s, uint64_t step, const struct msg_run *r)
{
    struct world_request *q = check__find(w, r->request);
    if (!q) {
        world__fail(w, "a Step names request %" PRIu64, r->request);
        return;
    }
    uint64_t *tags = s->chains[q->id - 1].tags;
    uint32_t n_known = r->n_rows - r->n_guesses;
    if (n_known) memcpy(tags, q->tags, r->first_pos * sizeof *tags); /* all before is known too */
    for (uint32_t i = 0; i < r->n_rows && !w->failed; i++) {
        uint32_t p = r->first_pos + i;
        if (i < n_known && (p >= q->n_oracle || r->tokens[i] != q->tokens[p])) {
            world__fail(w, "request %" PRIu64 ": row %" PRIu32 " brings token %" PRId32, r->request,
                        p, r->tokens[i]);
            return;
        }
        check_reads(w, &s->whole, whole_of(r), step, r, tags, 0, p);
        tags[p] = check__mix(p ? tags[p - 1] : check__root(q->tenant), (uint64_t)r->tokens[i] + 1);
        write_row(&s->whole, place(w, whole_of(r), p), tags[p], step, r->request);
        if (!w->cfg.attn_window) continue;
        struct table t = windowed_of_run(w, r);
        check_reads(w, &s->windowed, t, step, r, tags, check__first_seen(w, p), p);
        if (!w->failed) write_row(&s->windowed, place(w, t, p), tags[p], step, r->request);
    }
}

/* A probe writes its page like any row. */
void check__probe(struct world *w, struct world_worker *s, const struct msg_run *r)
{
    uint64_t tag = rng_u64(&w->rng);
    s->whole.tags[place(w, whole_of(r), 0)] = tag;
    if (w->cfg.attn_window) s->windowed.tags[place(w, windowed_of_run(w, r), 0)] = tag;
}

/* By the law: a row is live if its token is known, or is the one that was chosen there after a row
 * that was live. What the tags say of it must be the same. */
void check__verify(struct world *w, struct world_worker *s, const struct msg_run *r,
                   int32_t *tokens, struct msg_run_result *ret)
{
    const struct world_request *q = check__find(w, r->request);
    struct world_chain *c = &s->chains[q->id - 1];
    uint32_t from = r->n_rows - r->n_logits;
    *ret = (struct msg_run_result){.request = r->request,
                                   .attempt = r->attempt,
                                   .sample = r->sample,
                                   .first_pos = r->first_pos + from + 1,
                                   .tokens = tokens};
    for (uint32_t i = from; i < r->n_rows; i++) {
        uint32_t p = r->first_pos + i;
        bool known = i < r->n_rows - r->n_guesses;
        if (!known && (c->next != p || c->chosen != r->tokens[i])) break;
        if (p >= q->n_oracle) break; /* behind the answer's end */
        if (s->whole.tags[place(w, whole_of(r), p)] != q->tags[p])
            world__fail(w, "request %" PRIu64 ": row %" PRIu32 " is live with another history",
                        q->id, p);
        c->next = p + 1;
        c->chosen = choose(&s->told[q->id - 1], r->sample, q->tags[p]);
        tokens[ret->n_tokens++] = c->chosen;
    }
    ret->dead = ret->n_tokens == 0;
}

/* An embedding depends on the tags of all rows and on their order. */
static uint64_t add_row(uint64_t sum, uint64_t tag)
{
    return check__mix(sum, tag);
}

static float number(uint64_t sum, uint32_t i)
{
    return (float)(check__mix(sum, i) >> 40);
}

bool check__is_embedding(const struct world_request *r, const float *values, uint32_t n)
{
    uint64_t sum = 0;
    for (uint32_t p = 0; p < r->n_prompt; p++) sum = add_row(sum, r->tags[p]);
    for (uint32_t i = 0; i < n; i++)
        if (values[i] != number(sum, i)) return false;
    return n == WORLD_WIDTH;
}

bool check__embed(struct world *w, struct world_worker *s, const struct msg_run *r, float *values,
                  struct msg_run_result *ret)
{
    const struct world_request *q = check__find(w, r->request);
    struct world_sum *x = &s->sums[q->id - 1];
    if (r->first_pos == 0) *x = (struct world_sum){0};
    if (x->next != r->first_pos)
        world__fail(w, "request %" PRIu64 ": rows from %" PRIu32 " are added behind %" PRIu32,
                    q->id, r->first_pos, x->next);
    for (uint32_t i = 0; i < r->n_rows; i++)
        x->value = add_row(x->value, s->whole.tags[place(w, whole_of(r), r->first_pos + i)]);
    x->next += r->n_rows;
    if (!msg_run_embeds(r)) return false;
    for (uint32_t i = 0; i < WORLD_WIDTH; i++) values[i] = number(x->value, i);
    *ret = (struct msg_run_result){.request = r->request,
                                   .attempt = r->attempt,
                                   .sample = r->sample,
                                   .first_pos = r->first_pos + r->n_rows + 1,
                                   .embedding = values,
                                   .n_embedding = WORLD_WIDTH};
    return true;
}

static bool same_sampling(const struct sampling *a, const struct sampling *b)
{
    return a->seed == b->seed && a->temp == b->temp && a->top_k == b->top_k &&
           a->top_p == b->top_p && a->min_p == b->min_p && a->repetition == b->repetition &&
           a->presence == b->presence && a->frequency == b->frequency;
}

void check__open(struct world *w, struct world_worker *s, const struct msg_step *m)
{
    for (uint32_t i = 0; i < m->n_runs; i++) {
        const struct msg_run *x = &m->runs[i];
        const struct world_request *q = check__find(w, x->request);
        if (q && x->embed) s->open[q->id - 1] = true;
        if (!q || !x->n_logits) continue;
        if (x->has_open == s->open[q->id - 1])
            world__fail(w, "request %" PRIu64 ": parameters %s", q->id,
                        x->has_open ? "told twice" : "never told");
        else if (x->has_open && (!same_sampling(&x->open.sampling, &q->sampling) ||
                                 x->open.boundary != q->n_prompt))
            world__fail(w, "request %" PRIu64 ": other parameters than asked for", q->id);
        s->open[q->id - 1] = true;
        if (x->has_open) s->told[q->id - 1] = x->open;
    }
    for (uint32_t i = 0; i < m->n_closed; i++) {
        const struct world_request *q = check__find(w, m->closed[i]);
        if (!q || !s->open[q->id - 1])
            world__fail(w, "request %" PRIu64 " is closed, but was not open", m->closed[i]);
        else
            s->open[q->id - 1] = false;
    }
}
