/* Clients: what they ask, when they give up, and that they ask again. */
#include "coordinator/sim/world.h"

#include "common/base/clock.h"

#include <inttypes.h>
#include <string.h>

#define FAR_NS (1000 * NS_PER_S) /* beyond the end of every world */
#define WITNESS_TRIES 3u

/* Another answer to an earlier prompt, or a prompt that begins like others, or goes on from an
 * earlier answer, or is all its own. */
static void make_prompt(struct world *w, struct world_request *r)
{
    const struct world_request *other = &w->requests[rng_below(&w->rng, w->n_requests)];
    uint64_t kind = rng_below(&w->rng, 8);
    uint32_t begin = 0;
    r->seed = rng_u64(&w->rng);
    r->n_prompt = (uint32_t)(1 + rng_below(&w->rng, rng_below(&w->rng, 10) ? 100 : 180));
    r->max_new = (uint32_t)rng_below(&w->rng, 60);
    if (kind == 0 && other->made && other != r) {
        r->seed = other->seed;
        r->sample = other->sample + 1;
        begin = r->n_prompt = other->n_prompt;
        memcpy(r->tokens, other->tokens, begin * sizeof *r->tokens);
    } else if (kind == 1 && other->made && other != r) {
        begin = other->n_tokens < r->n_prompt ? other->n_tokens : r->n_prompt;
        memcpy(r->tokens, other->tokens, begin * sizeof *r->tokens);
    } else if (kind < 6) {
        const uint8_t *family = w->families[rng_below(&w->rng, WORLD_FAMILIES)];
        begin = (uint32_t)rng_below(&w->rng, r->n_prompt + 1);
        for (uint32_t i = 0; i < begin; i++)
            r->tokens[i] = w->blocks[family[i / LIMIT_PAGE]][i % LIMIT_PAGE];
    }
    for (uint32_t i = begin; i < r->n_prompt; i++)
        r->tokens[i] = (int32_t)rng_below(&w->rng, WORLD_VOCAB);
    if (!r->witness) return;
    r->n_prompt = r->n_prompt % 60 + 1;
    r->max_new = 5 + r->max_new % 10;
}

/* Draws a request. The deadline of some lies beyond every fault: those must be answered. */
static void make(struct world *w, uint32_t idx)
{
    struct world_request *r = &w->requests[idx];
    r->id = idx + 1;
    r->client = r->witness ? 100 : rng_below(&w->rng, 4);
    r->tenant = rng_below(&w->rng, WORLD_TENANTS);
    r->class = (enum priority)rng_below(&w->rng, 4);
    r->ignore_eos = rng_below(&w->rng, 4) == 0;
    r->deadline_at_ns = w->now_ns + (rng_below(&w->rng, 2) || r->witness
                                         ? FAR_NS
                                         : NS_PER_MS * (200 + rng_below(&w->rng, 20000)));
    make_prompt(w, r);
    r->embed = !r->witness && rng_below(&w->embed_rng, 6) == 0;
    if (r->embed) r->max_new = 0;
    r->sampling = (struct sampling){.seed = r->seed, .repetition = 1.0f};
    if (rng_below(&w->rng, 4) == 0)
        r->sampling = (struct sampling){.seed = r->seed,
                                        .temp = 0.5f,
                                        .top_k = 40,
                                        .top_p = 0.75f,
                                        .min_p = 0.125f,
                                        .repetition = 1.25f,
                                        .presence = 0.5f,
                                        .frequency = 0.25f};
    check__oracle(w, r);
    r->drafts = w->cfg.draft.kind != DRAFT_OFF && rng_below(&w->draft_rng, 8) > 0 && !r->embed;
    r->made = true;
    uint32_t n_new = r->n_oracle > r->n_prompt ? r->n_oracle - r->n_prompt : 0;
    uint32_t n_received = rng_below(&w->rng, 6) ? 0 : (uint32_t)rng_below(&w->rng, n_new + 1);
    r->n_tokens = r->n_prompt + (r->witness ? 0 : n_received);
    if (rng_below(&w->rng, 6) || r->witness) return;
    struct occurrence *o = world__schedule(w, NS_PER_MS * rng_below(&w->rng, 300), HAPPEN_CANCEL);
    o->who = idx;
}

void client__submit(struct world *w, uint32_t idx)
{
    struct world_request *r = &w->requests[idx];
    if (!r->made) make(w, idx);
    if (r->submitted || r->ended) return; /* it was given up in the meantime */
    r->submitted = true;
    r->submitted_ns = w->now_ns;
    r->arrival = w->arrivals++;
    r->queued_ns = w->now_ns;
    r->running = false;
    r->with = CORE_NO_REPLICA;
    uint64_t left_ns = r->deadline_at_ns > w->now_ns ? r->deadline_at_ns - w->now_ns : 1;
    r->deadline_at_ns = w->now_ns + left_ns;
    struct event e = {.type = EV_SUBMIT,
                      .submit = {.request = r->id,
                                 .client = r->client,
                                 .tenant = r->tenant,
                                 .priority = r->class,
                                 .tokens = r->tokens,
                                 .n_prompt = r->n_prompt,
                                 .n_received = r->n_tokens - r->n_prompt,
                                 .sample = r->sample,
                                 .max_new = r->max_new,
                                 .ignore_eos = r->ignore_eos,
                                 .embed = r->embed,
                                 .drafts = r->drafts,
                                 .sampling = r->sampling,
                                 .deadline_ns = left_ns}};
    world__core(w, &e);
}

/* A client ends its request: the core must end it at once, with the right status. */
void client__end(struct world *w, uint32_t idx, enum event_type type)
{
    struct world_request *r = &w->requests[idx];
    bool live = r->submitted && !r->ended;
    if (r->made && !r->submitted) r->ended = true; /* it will not ask again */
    if (live && type == EV_CANCEL) r->cancelled = true;
    if (live && type == EV_STOP) r->stopped_by_us = true;
    struct event e = {.type = type, .request = {r->id, "cancelled"}};
    world__core(w, &e);
    if (w->failed || !live) return;
    enum status due = type == EV_CANCEL ? STATUS_CANCELLED : STATUS_OK;
    if (!r->ended || r->status != due)
        world__fail(w, "request %" PRIu64 " goes on although its client ended it", r->id);
}

void client__reconnect(struct world *w)
{
    for (uint32_t i = 0; i < w->n_requests; i++) {
        struct world_request *r = &w->requests[i];
        if (!r->submitted || r->ended) continue;
        r->submitted = r->erred = false;
        r->lost = r->lost_in_flight = 0;
        r->waited_ns = r->begun_ns = 0;
        world__schedule(w, NS_PER_MS * (1 + rng_below(&w->rng, 300)), HAPPEN_SUBMIT)->who = i;
    }
}

static bool all_ended(const struct world *w)
{
    for (uint32_t i = 0; i < w->n_requests; i++)
        if (!w->requests[i].ended) return false;
    return true;
}

/* A witness may meet the last of the faults: then it is asked again. */
void client__witness(struct world *w)
{
    if (w->failed || w->done || !all_ended(w) || !world__ready(w)) return;
    const struct world_request *last = &w->requests[w->n_requests - 1];
    bool wanted = w->n_witnesses == 0 || last->status != STATUS_OK;
    if (!wanted) {
        w->done = true;
    } else if (w->n_witnesses == WITNESS_TRIES) {
        world__fail(w, "faults have stopped, but request %" PRIu64 " ends with status %d", last->id,
                    (int)last->status);
    } else {
        w->n_witnesses++;
        w->requests[w->n_requests++].witness = true;
        client__submit(w, w->n_requests - 1);
    }
}
