/* All requests go over one client and are measured where their replies arrive. A prompt is a slice
 * of one long text's tokens, so that its length is exact; answers go on to their limit. */
#include "coordinator/cli/load.h"

#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/client/tools.h"
#include "coordinator/cli/gen.h"
#include "proto/wire.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define STATUS_EVERY_NS (250 * NS_PER_MS)
#define CONVOY_CLIENTS 8u /* of short requests; the long ones have one more each */
#define CONVOY_LONG_CLIENTS 2u
#define CONVOY_SHORT 100u
#define CONVOY_LONG 10u

struct load {
    const struct load_options *o;
    struct client *client;
    struct load_run *run;
    struct rng rng;
    int32_t *text; /* token ids to cut prompts from */
    uint32_t n_text;
    uint64_t start_ns, status_ns;
    bool asks_status;
    struct arena arena;  /* of the last status */
    double unused, held; /* positions of KV pages, summed over all looks */
    int rc;              /* why a request could not be begun, or 0 */
    struct errmsg why;
};

/* Sends its records one after another: each when the one before has ended. */
struct sender {
    struct load *load;
    struct load_record *record; /* under way */
    uint32_t *next, end;        /* the number of the next one, shared with other senders */
    double last;                /* when the last token came */
    double due;                 /* when it is to be sent, whenever it is; 0: at once */
};

static double now_ms(const struct load *l)
{
    return (double)(clock_ns() - l->start_ns) / (double)NS_PER_MS;
}

/* ---- prompts ---- */

static int make_text(struct load *l, uint32_t longest, struct errmsg *em)
{
    static const char *const words[] = {
        "river",   "stone",  "the",    "of",     "light", "under", "walked", "seven",
        "because", "garden", "old",    "and",    "ships", "north", "cold",   "letter",
        "she",     "were",   "music",  "never",  "table", "paper", "green",  "hours",
        "in",      "a",      "silent", "market", "again", "night", "from",   "bread"};
    struct buf text = {0};
    const int32_t *ids;
    for (uint32_t i = 0; i < 3 * longest + 64; i++) {
        const char *w = words[rng_below(&l->rng, sizeof words / sizeof words[0])];
        (void)buf_append(&text, w, strlen(w));
        (void)buf_append(&text, i % 12 == 11 ? ". " : " ", i % 12 == 11 ? 2 : 1);
    }
    int rc = client_tokenize(l->client, text.data, false, &ids, &l->n_text, em);
    buf_close(&text);
    if (rc < 0) return rc;
    if (l->n_text < longest)
        return err_set(em, ERR_LIMIT, "the text has only %u tokens", (unsigned)l->n_text);
    l->text = mem_alloc(l->n_text * sizeof *l->text);
    memcpy(l->text, ids, l->n_text * sizeof *l->text);
    return 0;
}

static void make_record(struct load *l, enum load_kind kind, uint32_t n_prompt, uint32_t n_tokens,
                        uint32_t shared)
{
    struct load_record *r = &l->run->records[l->run->n_records++];
    *r = (struct load_record){.kind = kind,
                              .prompt = mem_alloc(n_prompt * sizeof *r->prompt),
                              .n_prompt = n_prompt,
                              .n_tokens_wanted = n_tokens,
                              .first = -1.0,
                              .match = -1};
    if (shared > n_prompt) shared = n_prompt;
    memcpy(r->prompt, l->text, shared * sizeof *r->prompt);
    uint64_t at = rng_below(&l->rng, l->n_text - (n_prompt - shared) + 1);
    memcpy(r->prompt + shared, l->text + at, (n_prompt - shared) * sizeof *r->prompt);
}

/* ---- one request ---- */

static void on_reply(void *arg, struct client_call *call, const struct client_reply *reply)
{
    struct sender *s = arg;
    struct load_record *r = s->record;
    double now = now_ms(s->load);
    (void)call;
    for (uint32_t i = 0; i < reply->n_tokens; i++) {
        if (r->first < 0.0) {
            r->first = now;
            r->queued = (double)reply->queued_us / 1000.0;
        } else {
            samples_add(&r->itl, now - s->last); /* what came together has 0 between */
        }
        s->last = now;
        tokens_push(&r->tokens, reply->tokens[i]);
    }
}

static void send_next(struct sender *s);

static void on_end(void *arg, struct client_call *call, const struct client_end *end)
{
    struct sender *s = arg;
    struct load_record *r = s->record;
    (void)call;
    r->done = true;
    r->ended = now_ms(s->load);
    r->retry_ms = end->retry_ms;
    r->failed = end->lost || end->status != STATUS_OK;
    if (r->failed)
        (void)snprintf(r->status, sizeof r->status, "%d: %.80s", (int)end->status, end->text);
    send_next(s);
}

/* Nothing, once all its records are sent. A client that begins no more calls is told by load_run.
 */
static void send_next(struct sender *s)
{
    struct load *l = s->load;
    struct client_request q;
    if (l->rc < 0 || *s->next >= s->end) return;
    s->record = &l->run->records[(*s->next)++];
    client_request_init(&q);
    q.prompt_tokens = s->record->prompt;
    q.n_prompt_tokens = s->record->n_prompt;
    q.ignore_eos = true;
    q.max_tokens = s->record->n_tokens_wanted;
    s->record->sent = s->due > 0.0 ? s->due : now_ms(l);
    l->rc = client_start(l->client, &q, NULL, on_reply, on_end, s, &l->why);
}

/* What the caches of all replicas together have done up to now, and what they hold. */
static struct msg_cache_status sum_of(const struct msg_status *s)
{
    struct msg_cache_status sum = {0};
    for (uint32_t i = 0; i < s->n_replicas; i++) {
        const struct msg_cache_status *x = &s->replicas[i].cache;
        sum.positions_unused += x->positions_unused;
        sum.pages_held += x->pages_held;
        sum.hits += x->hits;
        sum.lookups += x->lookups;
    }
    return sum;
}

static int look(struct load *l, struct msg_cache_status *ret, struct errmsg *em)
{
    struct msg_status s;
    int rc = client_status(l->client, &s, em);
    if (rc == 0) *ret = sum_of(&s);
    return rc;
}

static void on_status(void *arg, const struct client_end *end, const void *body, size_t bytes)
{
    struct load *l = arg;
    struct msg_status s;
    l->asks_status = false;
    if (end->lost || end->status != STATUS_OK) return;
    if (wire_get_status(body, bytes, &l->arena, &s, NULL) < 0) return;
    struct msg_cache_status now = sum_of(&s);
    l->unused += (double)now.positions_unused;
    l->held += (double)now.pages_held * LIMIT_PAGE;
}

/* Now and then: asks how many positions of KV pages are held, and how many of them are unused.
 * Never waits for that, since requests are due meanwhile. */
static void watch(struct load *l)
{
    if (l->asks_status || clock_ns() - l->status_ns < STATUS_EVERY_NS) return;
    l->status_ns = clock_ns();
    l->asks_status = client_ask(l->client, "Status", "", 0, on_status, l, NULL) == 0;
}

/* ---- scenarios ---- */

/* Until no request runs. */
static void run_to_end(struct load *l)
{
    while (client_turn(l->client, 20)) watch(l);
}

/* n senders take the records [*next, end) in turn; a refused one counts as failed. */
static void begin_closed(struct load *l, struct sender *senders, uint32_t n, uint32_t *next,
                         uint32_t end)
{
    for (uint32_t i = 0; i < n; i++) {
        senders[i] = (struct sender){.load = l, .next = next, .end = end};
        send_next(&senders[i]);
    }
}

static void run_closed(struct load *l, uint32_t clients, uint32_t next, uint32_t end)
{
    struct sender *senders = mem_zalloc(clients * sizeof *senders);
    begin_closed(l, senders, clients, &next, end);
    run_to_end(l);
    mem_free(senders);
}

static void run_poisson(struct load *l)
{
    uint32_t n = l->run->n_records, next = 0;
    struct sender *senders = mem_zalloc(n * sizeof *senders);
    double due = 0.0;
    while (next < n && l->rc == 0) {
        while (next < n && now_ms(l) >= due && l->rc == 0) {
            senders[next] = (struct sender){.load = l, .next = &next, .end = next + 1, .due = due};
            send_next(&senders[next]);
            double u = ((double)(rng_u64(&l->rng) >> 11) + 1.0) / 9007199254740993.0;
            due -= log(u) * 1000.0 / l->o->rate;
        }
        double wait = due - now_ms(l);
        (void)client_turn(l->client, wait < 1.0 ? 1 : wait > 20.0 ? 20 : (int)wait);
        watch(l);
    }
    run_to_end(l);
    mem_free(senders);
}

/* The short requests alone; then as many beside long ones. */
static void run_convoy(struct load *l)
{
    struct sender shorts[CONVOY_CLIENTS], longs[CONVOY_LONG_CLIENTS];
    uint32_t next = CONVOY_SHORT, next_long = 2 * CONVOY_SHORT;
    run_closed(l, CONVOY_CLIENTS, 0, CONVOY_SHORT);
    begin_closed(l, longs, CONVOY_LONG_CLIENTS, &next_long, next_long + CONVOY_LONG);
    begin_closed(l, shorts, CONVOY_CLIENTS, &next, 2 * CONVOY_SHORT);
    run_to_end(l);
}

static void make_records(struct load *l)
{
    const struct load_options *o = l->o;
    if (o->scenario != LOAD_CONVOY) {
        uint32_t n = o->requests ? o->requests : 4 * o->clients;
        l->run->records = mem_zalloc(n * sizeof *l->run->records);
        for (uint32_t i = 0; i < n; i++)
            make_record(l, LOAD_PLAIN, o->prompt, o->tokens, o->shared);
        return;
    }
    l->run->records = mem_zalloc((2 * CONVOY_SHORT + CONVOY_LONG) * sizeof *l->run->records);
    for (uint32_t i = 0; i < 2 * CONVOY_SHORT; i++)
        make_record(l, i < CONVOY_SHORT ? LOAD_BASELINE : LOAD_SHORT, 32, 64, 0);
    for (uint32_t i = 0; i < CONVOY_LONG; i++) make_record(l, LOAD_LONG, 2048, 512, 0);
}

/* ---- checks ---- */

/* A sample of the answers, spread over the run, against the engine alone. */
static int check(const struct load *l, struct errmsg *em)
{
    const struct load_options *o = l->o;
    uint32_t n = l->run->n_records, n_checks = o->checks && o->checks < n ? o->checks : n;
    for (uint32_t i = 0; i < n_checks && o->model; i++) {
        struct load_record *r = &l->run->records[(uint64_t)i * n / n_checks];
        if (r->failed) continue;
        struct gen_options g = {.model = o->model,
                                .kv = o->kv,
                                .ignore_eos = true,
                                .tokens = r->n_tokens_wanted,
                                .chunk = 512,
                                .sampling = SAMPLING_PLAIN};
        struct gen_result alone = {0};
        for (uint32_t k = 0; k < r->n_prompt; k++) tokens_push(&alone.prompt, r->prompt[k]);
        int rc = gen_local(&g, NULL, NULL, &alone, em);
        if (rc == 0) load_compare(r, &alone.tokens);
        gen_result_close(&alone);
        if (rc < 0) return rc;
    }
    return 0;
}

static int run_scenario(struct load *l, struct errmsg *em)
{
    const struct load_options *o = l->o;
    l->start_ns = clock_ns();
    if (o->scenario == LOAD_CONVOY)
        run_convoy(l);
    else if (o->scenario == LOAD_POISSON)
        run_poisson(l);
    else
        run_closed(l, o->clients, 0, l->run->n_records);
    l->run->wall_ms = now_ms(l);
    l->run->waste_percent = l->held > 0.0 ? 100.0 * l->unused / l->held : 0.0;
    return l->rc < 0 ? err_set(em, l->rc, "%s", l->why.text) : 0;
}

int load_run(const struct load_options *o, struct load_run *ret, struct errmsg *em)
{
    struct load l = {.o = o, .run = ret, .rng = {o->seed}};
    struct msg_cache_status before = {0}, after;
    uint32_t longest = o->scenario == LOAD_CONVOY ? 2048 : o->prompt;
    *ret = (struct load_run){0};
    int rc = client_open_keys(o->cluster, &o->keys, &l.client, em);
    if (rc == 0) rc = make_text(&l, longest, em);
    if (rc == 0) rc = look(&l, &before, em);
    if (rc == 0) make_records(&l);
    if (rc == 0) rc = run_scenario(&l, em);
    if (rc == 0) rc = look(&l, &after, em);
    /* A coordinator that was started again meanwhile counts from 0. */
    if (rc == 0 && after.lookups >= before.lookups && after.hits >= before.hits) {
        ret->hits = after.hits - before.hits;
        ret->lookups = after.lookups - before.lookups;
    }
    if (rc == 0) rc = check(&l, em);
    client_close(l.client);
    arena_close(&l.arena);
    mem_free(l.text);
    return rc;
}
