/* The drafter in virtual time: right now and then, late, silent, or an answer to something that
 * nobody asks any more. */
#include "coordinator/sim/world.h"

#include "common/base/clock.h"

#include <string.h>

#define STALE_MOST_NS (300 * NS_PER_MS)
#define FEW_PAGES 11u

struct draft_note {
    uint64_t request, serial, took_ns;
    uint32_t first_pos, n;
    int32_t tokens[DRAFT_LENGTH_MAX];
};

void draft__plan(struct world *w)
{
    static const uint32_t right[] = {0, 60, 90, 97, 100};
    static const uint64_t most_us[] = {50, 500, 3000, 30000};
    struct rng *rng = &w->draft_rng;
    if (rng_below(rng, 2)) return;
    w->cfg.draft = DRAFT_DEFAULTS;
    w->cfg.draft.kind = DRAFT_NGRAM;
    w->cfg.draft.length = 1 + (uint32_t)rng_below(rng, rng_below(rng, 3) ? 8 : DRAFT_LENGTH_MAX);
    /* Long runs, and few pages for them. */
    if (rng_below(rng, 2)) w->cfg.logits_max = w->cfg.rows_max;
    if (rng_below(rng, 2)) w->cfg.n_pages = FEW_PAGES + (uint32_t)rng_below(rng, 8);
    if (w->cfg.ctx > w->cfg.n_pages * w->cfg.page) w->cfg.ctx = w->cfg.n_pages * w->cfg.page;
    w->cfg.draft.adaptive = rng_below(rng, 2);
    w->cfg.draft.pipelined = rng_below(rng, 4) > 0;
    w->draft_right = right[rng_below(rng, 5)];
    w->draft_most_ns = 1000 * most_us[rng_below(rng, 4)];
    w->unverified = rng_below(rng, 16) == 0;
}

/* From the answer that will be given, right ones; a wrong one is any other token. */
static int32_t guess(struct world *w, const struct world_request *q, uint32_t pos)
{
    bool right = pos < q->n_oracle && rng_below(&w->draft_rng, 100) < w->draft_right;
    return right ? q->tokens[pos] : (int32_t)rng_below(&w->draft_rng, WORLD_VOCAB);
}

static void send(struct world *w, const struct draft_note *n, uint64_t in_ns)
{
    struct occurrence *o = world__schedule(w, in_ns, HAPPEN_DRAFT);
    (void)buf_append(&o->bytes, n, sizeof *n);
}

/* What no drafter of ours would say: nothing of it may count. */
static void spoil(struct world *w, struct draft_note *n)
{
    switch (rng_below(&w->draft_rng, 6)) {
    case 0: n->serial--; break;
    case 1: n->serial++; break;
    case 2: n->first_pos++; break;
    case 3: n->request = 1 + rng_below(&w->draft_rng, w->n_requests); break;
    case 4: n->tokens[0] = WORLD_VOCAB; break;
    default: n->n = 0; break;
    }
}

void draft__asked(struct world *w, const struct action *a)
{
    struct rng *rng = &w->draft_rng;
    const struct world_request *q = check__find(w, a->draft.request);
    struct draft_note n = {.request = a->draft.request,
                           .serial = a->draft.serial,
                           .first_pos = a->draft.first_pos + a->draft.n_tail};
    if (!q || q->ended || a->draft.first_pos != q->n_tokens || a->draft.want == 0 ||
        a->draft.want > DRAFT_LENGTH_MAX) {
        world__fail(w, "guesses are asked for that nobody can use");
        return;
    }
    n.n = (uint32_t)rng_below(rng, 4) ? a->draft.want : (uint32_t)rng_below(rng, a->draft.want + 1);
    for (uint32_t i = 0; i < n.n; i++) n.tokens[i] = guess(w, q, n.first_pos + i);
    n.took_ns = 1000 + rng_below(rng, w->draft_most_ns);
    uint64_t kind = rng_below(rng, 40);
    if (kind == 0) return; /* it says nothing */
    if (kind == 1) spoil(w, &n);
    if (kind == 2) send(w, &n, n.took_ns + rng_below(rng, STALE_MOST_NS)); /* once more */
    send(w, &n, kind == 3 ? rng_below(rng, STALE_MOST_NS) : n.took_ns);
}

void draft__answer(struct world *w, const struct occurrence *o)
{
    struct draft_note n;
    memcpy(&n, o->bytes.data, sizeof n);
    struct event e = {.type = EV_DRAFT,
                      .draft = {.request = n.request,
                                .serial = n.serial,
                                .first_pos = n.first_pos,
                                .n = n.n,
                                .tokens = n.tokens,
                                .took_ns = n.took_ns}};
    world__core(w, &e);
}
