/* Requests: submitted, ended, and given their tokens, each exactly once by its position. */
#include "coordinator/core/core_state.h"

#include "common/base/check.h"
#include "common/base/mem.h"

#include <inttypes.h>
#include <string.h>

#define RETRY_MS 1000u

static void refuse(struct core *c, uint64_t id, enum status status, const char *text)
{
    struct action *a = core__act(c, ACT_END);
    a->end.request = id;
    a->end.status = status;
    a->end.text = text;
    a->end.finish_reason = FINISH_NONE;
    a->end.retry_ms = status == STATUS_RESOURCE_EXHAUSTED ? RETRY_MS : 0;
}

/* Why a request cannot be taken at all, or NULL. */
static const char *check(struct core *c, const struct event *e)
{
    uint32_t ctx = c->ctx, n_prompt = e->submit.n_prompt, n_received = e->submit.n_received;
    if (n_prompt == 0) return "the prompt has no tokens";
    if (n_prompt >= ctx)
        return core__text(c, "a prompt of %" PRIu32 " tokens does not fit the context of %" PRIu32,
                          n_prompt, ctx);
    if (n_received > ctx - n_prompt)
        return core__text(c,
                          "%" PRIu32 " tokens cannot have been received: the context is %" PRIu32,
                          n_received, ctx);
    if (e->submit.embed && c->cfg.width > LIMIT_EMBEDDED)
        return core__text(c, "an embedding of %" PRIu32 " numbers: the limit is %u", c->cfg.width,
                          LIMIT_EMBEDDED);
    return NULL;
}

/* Why one more request like this is too many, or NULL. */
static const char *too_many(struct core *c, const struct event *e)
{
    const uint32_t *live = imap_get(&c->n_live, e->submit.client);
    uint32_t n = live ? *live : 0;
    if (c->n_free_slots == 0)
        return core__text(c, "%" PRIu32 " requests are live, the limit", c->cfg.max_live);
    if (n >= c->cfg.max_per_client)
        return core__text(c, "%" PRIu32 " requests of this client are live, the limit", n);
    if (e->submit.grammar && c->n_constrained == LIMIT_CONSTRAINED)
        return core__text(c, "%u requests with a format are live, the limit", LIMIT_CONSTRAINED);
    if (e->submit.embed && c->n_embeds == LIMIT_EMBEDS)
        return core__text(c, "%u requests for embeddings are live, the limit", LIMIT_EMBEDS);
    return NULL;
}

/* One live request of this client more, or less. */
static void count_live(struct core *c, uint64_t client, int more)
{
    const uint32_t *live = imap_get(&c->n_live, client);
    uint32_t n = (live ? *live : 0) + (uint32_t)more;
    if (n)
        imap_put(&c->n_live, client, n);
    else
        imap_remove(&c->n_live, client);
}

/* The request's own copies of what an event lends; at most SAMPLING_BIASES_MAX. */
static void copy_bias(struct sampling *s)
{
    if (s->n_bias == 0) {
        s->bias_ids = NULL;
        s->bias = NULL;
        return;
    }
    int32_t *ids = mem_alloc(s->n_bias * sizeof *ids);
    float *bias = mem_alloc(s->n_bias * sizeof *bias);
    memcpy(ids, s->bias_ids, s->n_bias * sizeof *ids);
    memcpy(bias, s->bias, s->n_bias * sizeof *bias);
    s->bias_ids = ids;
    s->bias = bias;
}

void request__submit(struct core *c, const struct event *e)
{
    uint64_t id = e->submit.request;
    uint32_t n_prompt = e->submit.n_prompt, n_received = e->submit.n_received;
    uint32_t max_new = e->submit.max_new;
    const char *why = check(c, e); /* the context never exceeds the pool */
    if (why) {
        refuse(c, id, STATUS_INVALID_ARGUMENT, why);
        return;
    }
    why = too_many(c, e);
    if (why) {
        refuse(c, id, STATUS_RESOURCE_EXHAUSTED, why);
        return;
    }
    bool open_ended = max_new > room__known_ctx(c, n_prompt + n_received) - n_prompt;
    if (open_ended) max_new = room__open_ctx(c, n_prompt + n_received) - n_prompt;
    size_t room = (size_t)n_prompt + (max_new > n_received ? max_new : n_received);
    int32_t *tokens = mem_try(room * sizeof *tokens);
    uint32_t *pages = mem_try((room / c->cfg.page + 1) * sizeof *pages), *windowed = NULL;
    if (c->cfg.attn_window) windowed = mem_try((room / c->cfg.page + 1) * sizeof *windowed);
    if (!tokens || !pages || (c->cfg.attn_window && !windowed)) {
        mem_free(tokens);
        mem_free(pages);
        mem_free(windowed);
        refuse(c, id, STATUS_RESOURCE_EXHAUSTED, "out of memory");
        return;
    }
    memcpy(tokens, e->submit.tokens, ((size_t)n_prompt + n_received) * sizeof *tokens);
    struct sampling sampling = e->submit.sampling;
    copy_bias(&sampling);
    CHECK(c->n_free_slots > 0); /* admission has counted */
    uint32_t slot = c->free_slots[--c->n_free_slots];
    struct request *r = &c->requests[slot];
    *r = (struct request){.used = true,
                          .asked = e->submit.priority,
                          .arrival = c->arrivals++,
                          .id = id,
                          .client = e->submit.client,
                          .tenant = e->submit.tenant,
                          .sample = e->submit.sample,
                          .pages = pages,
                          .windowed = windowed,
                          .deadline_ns = c->now_ns + (e->submit.deadline_ns ? e->submit.deadline_ns
                                                                            : c->cfg.deadline_ns),
                          .wait_since_ns = c->now_ns,
                          .submitted_ns = c->now_ns,
                          .attempt = 1,
                          .ignore_eos = e->submit.ignore_eos,
                          .embed = e->submit.embed,
                          .tokens = tokens,
                          .n_prompt = n_prompt,
                          .n_tokens = n_prompt + n_received,
                          .n_guessed = n_prompt + n_received,
                          .max_new = max_new,
                          .open_ended = open_ended,
                          .sampling = sampling,
                          .grammar = blob_share(e->submit.grammar)};
    c->n_constrained += r->grammar != NULL;
    c->n_embeds += r->embed;
    spec__submit(c, r, e);
    queue__enter(c, r);
    imap_put(&c->by_id, id, slot);
    count_live(c, r->client, 1);
    if (n_received >= max_new && !r->embed) {
        request__end(c, r, STATUS_OK, FINISH_LENGTH, "");
        return;
    }
    router__send(c, r);
    if (!r->replica && c->cfg.replica_wait_ns == 0)
        request__end(c, r, STATUS_UNAVAILABLE, FINISH_NONE, core__no_replica(c));
}

bool request__on_trial(const struct request *r)
{
    return r->suspected + 1 >= SUSPECTED_MAX;
}

/* The last stage that has its sampling parameters may drop them; nothing, if none has. */
static void close_samplers(struct core *c, struct request *r)
{
    struct replica *rep = r->opened;
    if (!rep) return;
    CHECK(rep->n_closed < 2 * c->cfg.max_live);
    rep->closed[rep->n_closed++] = r->id;
    r->opened = NULL;
}

void request__move_in(struct core *c, struct request *r, struct replica *rep)
{
    if (r->opened == rep) return;
    close_samplers(c, r); /* it ran elsewhere before */
    /* It was here before that, and the last stage has not been told that it left. One Step cannot
     * tell that and have it begin anew. */
    for (uint32_t i = 0; i < rep->n_closed; i++) {
        if (rep->closed[i] != r->id) continue;
        rep->closed[i] = rep->closed[--rep->n_closed];
        r->opened = rep;
        return;
    }
}

void request__end(struct core *c, struct request *r, enum status status, enum finish_reason reason,
                  const char *text)
{
    struct action *a = core__act(c, ACT_END);
    a->end.request = r->id;
    a->end.accept = r->accept;
    a->end.status = status;
    a->end.text = text;
    a->end.finish_reason = reason;
    close_samplers(c, r);
    if (r->begun_ns && !r->embed) router__ended(c); /* whatever ended it, it took that time */
    if (request__on_trial(r)) {
        CHECK(c->n_trials > 0);
        c->n_trials--;
    }
    queue__release(r);
    queue__leave(c, r);
    router__set(c, r, NULL);
    imap_remove(&c->by_id, r->id);
    count_live(c, r->client, -1);
    c->free_slots[c->n_free_slots++] = (uint32_t)(r - c->requests);
    mem_free(r->tokens);
    mem_free(r->pages);
    mem_free(r->windowed);
    mem_free((void *)(uintptr_t)r->sampling.bias_ids);
    mem_free((void *)(uintptr_t)r->sampling.bias);
    c->n_constrained -= r->grammar != NULL;
    c->n_embeds -= r->embed;
    blob_drop(r->grammar);
    *r = (struct request){0};
}

struct request *request__find(struct core *c, uint64_t id)
{
    const uint32_t *slot = imap_get(&c->by_id, id);
    return slot ? &c->requests[*slot] : NULL;
}

void request__by_id(struct core *c, uint64_t id, enum status status, enum finish_reason reason,
                    const char *text)
{
    struct request *r = request__find(c, id);
    if (r) request__end(c, r, status, reason, text);
}

bool request__is_end(const struct core *c, int32_t token)
{
    for (uint32_t i = 0; i < c->cfg.n_eog; i++)
        if (c->eog[i] == token) return true;
    return false;
}

/* The log-probabilities of token k, kept until the next event. */
static struct msg_logprobs logprobs_of(struct core *c, const struct msg_logprobs *l, uint32_t k)
{
    if (!l->chosen) return (struct msg_logprobs){0};
    float *chosen = core__alloc(c, sizeof *chosen),
          *top = core__alloc(c, l->n_top * sizeof *top + 1);
    int32_t *ids = core__alloc(c, l->n_top * sizeof *ids + 1);
    *chosen = l->chosen[k];
    if (l->n_top) {
        memcpy(top, l->top + (size_t)k * l->n_top, l->n_top * sizeof *top);
        memcpy(ids, l->top_ids + (size_t)k * l->n_top, l->n_top * sizeof *ids);
    }
    return (struct msg_logprobs){chosen, l->n_top, ids, top};
}

/* The very rows that were lost with it have come back. */
static void acquit(struct core *c, struct request *r)
{
    if (request__on_trial(r)) {
        CHECK(c->n_trials > 0);
        c->n_trials--;
    }
    r->suspected = 0;
}

/* Takes token k of a run's result, if it is the request's next. Returns whether the request lives
 * on. */
static bool take_token(struct core *c, struct request *r, const struct msg_run_result *x,
                       uint32_t k)
{
    uint32_t pos = x->first_pos + k;
    int32_t token = x->tokens[k];
    if (pos != r->n_tokens) return true;
    if (request__is_end(c, token) && !r->ignore_eos) {
        request__end(c, r, STATUS_OK, FINISH_STOP, "");
        return false;
    }
    acquit(c, r);
    int32_t *out = core__alloc(c, sizeof *out);
    *out = token;
    CHECK(r->n_tokens < r->n_prompt + r->max_new);
    spec__token(c, r, token);
    if (r->running) sched__enter_pages(c, r);
    struct action *a = core__act(c, ACT_TOKENS);
    a->tokens.request = r->id;
    a->tokens.first_index = r->n_tokens - 1 - r->n_prompt;
    a->tokens.n = 1;
    a->tokens.tokens = out;
    a->tokens.logprobs = logprobs_of(c, &x->logprobs, k);
    a->tokens.queued_ns = r->begun_ns - r->submitted_ns;
    a->tokens.cached = r->n_found;
    if (r->n_tokens < r->n_prompt + r->max_new) return true;
    request__end(c, r, STATUS_OK, FINISH_LENGTH, "");
    return false;
}

/* The request's one answer, kept until the next event; it ends with it. */
static void take_embedding(struct core *c, struct request *r, const struct msg_run_result *x)
{
    float *values = core__alloc(c, x->n_embedding * sizeof *values);
    memcpy(values, x->embedding, x->n_embedding * sizeof *values);
    struct action *a = core__act(c, ACT_EMBEDDING);
    a->embedding.request = r->id;
    a->embedding.values = values;
    a->embedding.n = x->n_embedding;
    request__end(c, r, STATUS_OK, FINISH_NONE, "");
}

/* The tokens of a run. What a run of guesses brought is noted before the request may end with it.
 */
static void take_run(struct core *c, struct replica *rep, const struct asked *a,
                     const struct msg_run_result *x)
{
    struct request *r = request__find(c, x->request);
    bool counts = r && x->attempt == r->attempt, failed = x->error && x->error[0];
    uint32_t n = failed && !a->n_guesses ? 0 : x->n_tokens;
    if (a->n_guesses) spec__verified(c, rep, counts ? r : NULL, a, x);
    uint32_t before = r ? r->n_tokens : 0;
    for (uint32_t k = 0; k < n && counts; k++) counts = take_token(c, r, x, k);
    if (counts && failed) {
        request__end(c, r, STATUS_INTERNAL, FINISH_NONE, core__text(c, "%s", x->error));
        return;
    }
    if (counts && a->embeds)
        take_embedding(c, r, x);
    else if (counts && r->running)
        spec__spoke(c, rep, r, r->n_tokens - before);
}

void request__results(struct core *c, const struct msg_result *m)
{
    struct replica *rep = replica__of(c, m->epoch);
    CHECK(rep != NULL); /* flight.c has compared the result with a Step of it */
    const struct asked *a = flight__asked(c, &rep->flight, m->number);
    for (uint32_t i = 0; i < m->n_runs; i++, a++) {
        while (!a->n_tokens && !a->embeds) a++; /* it wanted nothing */
        take_run(c, rep, a, &m->runs[i]);
    }
}

/* Ends a request whose time is over. */
static void check_time(struct core *c, struct request *r)
{
    if (c->now_ns >= r->deadline_ns)
        request__end(c, r, STATUS_DEADLINE_EXCEEDED, FINISH_NONE,
                     "the request's deadline has passed");
    else if (!r->replica && c->now_ns - r->wait_since_ns >= c->cfg.replica_wait_ns)
        request__end(c, r, STATUS_UNAVAILABLE, FINISH_NONE, core__no_replica(c));
}

/* From the last to the first, since requests may end on the way. */
void request__tick(struct core *c)
{
    for (uint32_t k = c->cfg.n_replicas; k-- > 0;) {
        struct replica *rep = &c->replicas[k];
        for (uint32_t i = rep->n_running; i-- > 0;) check_time(c, &c->requests[rep->running[i]]);
        for (uint32_t i = rep->n_queued; i-- > 0;) check_time(c, &c->requests[rep->queued[i]]);
    }
    for (uint32_t i = c->n_queued; i-- > 0;) check_time(c, &c->requests[c->queued[i]]);
}

/* ---- lost generations ---- */

static bool suspected_of(const struct request *r, uint32_t generation)
{
    for (uint32_t i = 0; i < r->suspected; i++)
        if (r->suspected_in[i] == generation) return true;
    return false;
}

void request__pardon(struct core *c, uint32_t generation)
{
    for (uint32_t i = 0; i < c->cfg.max_live; i++) {
        struct request *r = &c->requests[i];
        if (!suspected_of(r, generation)) continue;
        bool before = request__on_trial(r);
        uint32_t n = 0;
        for (uint32_t k = 0; k < r->suspected; k++)
            if (r->suspected_in[k] != generation) r->suspected_in[n++] = r->suspected_in[k];
        r->suspected = n;
        c->n_trials -= before && !request__on_trial(r);
    }
}

/* Those that have rows in a Step that was in flight may be what ended the generation. Where one on
 * trial runs, the others have shown that they are not. */
static void suspect(struct core *c, const struct replica *rep)
{
    bool trial = false;
    for (uint32_t i = 0; i < rep->n_running && c->n_trials; i++)
        trial |= request__on_trial(&c->requests[rep->running[i]]);
    for (uint32_t k = 0; k < rep->flight.n; k++) {
        const struct in_flight *f = &rep->flight.steps[k];
        const struct asked *asked = flight__asked(c, &rep->flight, f->number);
        for (uint32_t i = 0; i < f->n_asked; i++) {
            struct request *x = request__find(c, asked[i].request);
            if (!x || !x->running || x->replica != rep || suspected_of(x, rep->generation))
                continue;
            if (trial && !request__on_trial(x)) continue;
            bool before = request__on_trial(x);
            CHECK(x->suspected < SUSPECTED_MAX);
            x->suspected_in[x->suspected++] = rep->generation;
            c->n_trials += !before && request__on_trial(x);
        }
    }
}

/* Its stages no longer have the parameters of any request. */
static void forget_opened(struct core *c, struct replica *rep)
{
    rep->n_closed = 0;
    for (uint32_t i = 0; i < c->cfg.max_live; i++)
        if (c->requests[i].opened == rep) c->requests[i].opened = NULL;
}

void request__generation_lost(struct core *c, struct replica *rep, bool suspicious, const char *why)
{
    if (suspicious) suspect(c, rep);
    forget_opened(c, rep);
    while (rep->n_running) {
        struct request *r = &c->requests[rep->running[rep->n_running - 1]];
        queue__again(c, r);
        r->attempt++;
    }
    pages_clear(rep->pages);
    while (rep->n_queued) { /* each to another replica, at once */
        struct request *r = &c->requests[rep->queued[0]];
        if (r->suspected >= SUSPECTED_MAX) {
            request__end(c, r, STATUS_INTERNAL, FINISH_NONE,
                         core__text(c, "in flight at %u lost generations, one after the other: %s",
                                    SUSPECTED_MAX, why));
            continue;
        }
        router__send(c, r);
        if (r->replica != rep) continue;
        queue__move(c, r, NULL);
        r->wait_since_ns = c->now_ns;
        if (c->cfg.replica_wait_ns == 0)
            request__end(c, r, STATUS_UNAVAILABLE, FINISH_NONE, core__text(c, "%s", why));
    }
}
