/* All requests go over one client and are measured where their replies arrive. A prompt is a slice
 * of one long text's tokens, so that its length is exact; answers go on to their limit. */
#include "coordinator/cli/load.h"

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/client/client.h"
#include "coordinator/cli/gen.h"

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
    struct client *client, *watcher;
    struct load_run *run;
    struct rng rng;
    int32_t *text; /* token ids to cut prompts from */
    uint32_t n_text;
    uint64_t start_ns, status_ns;
    double unused, held; /* positions of KV pages, summed over all looks */
};

/* A record under way. */
struct sender {
    struct load *load;
    struct load_record *record;
    struct msg_generate request;
    double last; /* when the last token came */
    bool busy;
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

static bool on_reply(void *arg, const struct msg_generate_reply *reply)
{
    struct sender *s = arg;
    struct load_record *r = s->record;
    double now = now_ms(s->load);
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
    return true;
}

static void on_end(void *arg, const struct client_end *end)
{
    struct sender *s = arg;
    struct load_record *r = s->record;
    r->done = true;
    r->ended = now_ms(s->load);
    r->retry_ms = end->retry_ms;
    r->failed = end->lost || end->status != STATUS_OK;
    if (r->failed)
        (void)snprintf(r->status, sizeof r->status, "%d: %.80s", (int)end->status, end->text);
    s->busy = false;
}

static int send(struct load *l, struct sender *s, struct load_record *r, struct errmsg *em)
{
    *s = (struct sender){.load = l, .record = r, .busy = true};
    s->request = (struct msg_generate){.prompt = "",
                                       .prompt_tokens = r->prompt,
                                       .n_prompt_tokens = r->n_prompt,
                                       .ignore_eos = true,
                                       .max_tokens = r->n_tokens_wanted,
                                       .sampling = {.top_p = 1.0f, .repetition = 1.0f}};
    r->sent = now_ms(l);
    return client_start(l->client, &s->request, 0, on_reply, on_end, s, em);
}

/* What all replicas' caches have done up to now, and hold. */
static int look(struct load *l, struct msg_cache_status *ret, struct errmsg *em)
{
    struct msg_status s;
    struct msg_cache_status sum = {0};
    int rc = client_status(l->watcher, &s, em);
    if (rc < 0) return rc;
    for (uint32_t i = 0; i < s.n_replicas; i++) {
        const struct msg_cache_status *x = &s.replicas[i].cache;
        sum.positions_unused += x->positions_unused;
        sum.pages_held += x->pages_held;
        sum.hits += x->hits;
        sum.lookups += x->lookups;
    }
    *ret = sum;
    return 0;
}

/* Adds what of the pages held is unused now. */
static void watch(struct load *l)
{
    struct msg_cache_status now;
    struct errmsg em;
    if (clock_ns() - l->status_ns < STATUS_EVERY_NS) return;
    l->status_ns = clock_ns();
    if (look(l, &now, &em) < 0) return;
    l->unused += (double)now.positions_unused;
    l->held += (double)now.pages_held * LIMIT_PAGE;
}

/* ---- scenarios ---- */

/* n senders take the records [first, end) in turn; a refused one counts as failed. */
static int closed(struct load *l, struct sender *senders, uint32_t n, uint32_t first, uint32_t end,
                  uint32_t *next, struct errmsg *em)
{
    int rc = 0;
    for (uint32_t i = 0; i < n && rc == 0; i++)
        if (!senders[i].busy && *next < end && *next >= first)
            rc = send(l, &senders[i], &l->run->records[(*next)++], em);
    return rc;
}

static bool any_busy(const struct sender *senders, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (senders[i].busy) return true;
    return false;
}

static int run_closed(struct load *l, uint32_t clients, uint32_t first, uint32_t end,
                      struct errmsg *em)
{
    struct sender *senders = mem_zalloc(clients * sizeof *senders);
    uint32_t next = first;
    int rc = closed(l, senders, clients, first, end, &next, em);
    while (rc == 0 && (next < end || any_busy(senders, clients))) {
        (void)client_turn(l->client, 20);
        watch(l);
        rc = closed(l, senders, clients, first, end, &next, em);
    }
    mem_free(senders);
    return rc;
}

static int run_poisson(struct load *l, struct errmsg *em)
{
    uint32_t n = l->run->n_records, next = 0;
    struct sender *senders = mem_zalloc(n * sizeof *senders);
    double due = 0.0;
    int rc = 0;
    while (rc == 0 && (next < n || any_busy(senders, n))) {
        while (next < n && now_ms(l) >= due && rc == 0) {
            rc = send(l, &senders[next], &l->run->records[next], em);
            next++;
            double u = ((double)(rng_u64(&l->rng) >> 11) + 1.0) / 9007199254740993.0;
            due -= log(u) * 1000.0 / l->o->rate;
        }
        double wait = next < n ? due - now_ms(l) : 20.0;
        (void)client_turn(l->client, wait < 1.0 ? 1 : wait > 20.0 ? 20 : (long)wait);
        watch(l);
    }
    mem_free(senders);
    return rc;
}

/* The short requests alone; then as many beside long ones, which go on until the short are done. */
static int run_convoy(struct load *l, struct errmsg *em)
{
    uint32_t base = CONVOY_SHORT, shorts = base + CONVOY_SHORT, all = shorts + CONVOY_LONG;
    int rc = run_closed(l, CONVOY_CLIENTS, 0, base, em);
    if (rc < 0) return rc;
    struct sender s[CONVOY_CLIENTS] = {{0}}, longs[CONVOY_LONG_CLIENTS] = {{0}};
    uint32_t next = base, next_long = shorts;
    do {
        rc = closed(l, longs, CONVOY_LONG_CLIENTS, shorts, all, &next_long, em);
        if (rc == 0) rc = closed(l, s, CONVOY_CLIENTS, base, shorts, &next, em);
        (void)client_turn(l->client, 20);
        watch(l);
    } while (rc == 0 && (next < shorts || next_long < all || any_busy(s, CONVOY_CLIENTS) ||
                         any_busy(longs, CONVOY_LONG_CLIENTS)));
    return rc;
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
    uint32_t n = l->run->n_records, step = o->checks && n > o->checks ? n / o->checks : 1;
    for (uint32_t i = 0; i < n && o->model; i += step) {
        struct load_record *r = &l->run->records[i];
        if (r->failed) continue;
        struct gen_options g = {.model = o->model,
                                .kv = o->kv,
                                .ignore_eos = true,
                                .tokens = r->n_tokens_wanted,
                                .chunk = 512,
                                .sampling = {.top_p = 1.0f, .repetition = 1.0f}};
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
    int rc = o->scenario == LOAD_CONVOY    ? run_convoy(l, em)
             : o->scenario == LOAD_POISSON ? run_poisson(l, em)
                                           : run_closed(l, o->clients, 0, l->run->n_records, em);
    l->run->wall_ms = now_ms(l);
    l->run->waste_percent = l->held > 0.0 ? 100.0 * l->unused / l->held : 0.0;
    return rc;
}

int load_run(const struct load_options *o, struct load_run *ret, struct errmsg *em)
{
    struct load l = {.o = o, .run = ret, .rng = {o->seed}};
    struct msg_cache_status before = {0}, after;
    uint32_t longest = o->scenario == LOAD_CONVOY ? 2048 : o->prompt;
    *ret = (struct load_run){0};
    int rc = client_open(o->cluster, &l.client, em);
    if (rc == 0) rc = client_open(o->cluster, &l.watcher, em);
    if (rc == 0) rc = make_text(&l, longest, em);
    if (rc == 0) rc = look(&l, &before, em);
    if (rc == 0) make_records(&l);
    if (rc == 0) rc = run_scenario(&l, em);
    if (rc == 0) rc = look(&l, &after, em);
    if (rc == 0) {
        ret->hits = after.hits - before.hits;
        ret->lookups = after.lookups - before.lookups;
        rc = check(&l, em);
    }
    client_close(l.client);
    client_close(l.watcher);
    mem_free(l.text);
    return rc;
}
