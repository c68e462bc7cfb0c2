/* The coordinator core's own time for an event while LIVE requests (1,000) are live: requests with
 * prompts of 200 tokens, half of which begin alike, come, decode 64 tokens and go; the only stage
 * answers at once.
 *
 *   core_bench [LIVE]       prints {"live": N, "events": N, "us_per_event": X, "us_most": X} */
#include "tests/lib/core_config.h"

#include "common/base/mem.h"
#include "common/base/rng.h"

#include <stdio.h>
#include <stdlib.h>

enum { PROMPT = 200, NEW = 64, STEPS = 4000, PAGES = 40000 };

struct bench {
    struct core *core;
    uint64_t now_ns, spent_ns, most_ns, events, next_request;
    struct epoch epoch;
    struct rng rng;
    uint32_t n_live;
};

static struct actions feed(struct bench *b, struct event e)
{
    e.now_ns = b->now_ns += 1000;
    uint64_t start = clock_ns();
    struct actions a = core_step(b->core, &e);
    uint64_t took = clock_ns() - start;
    b->spent_ns += took;
    b->most_ns = took > b->most_ns ? took : b->most_ns;
    b->events++;
    return a;
}

static struct actions from(struct bench *b, struct msg_from_worker m)
{
    static struct msg_from_worker kept;
    kept = m;
    kept.version = PROTO_VERSION;
    kept.instance = (struct instance){1, 1};
    kept.has_epoch = true;
    kept.epoch = b->epoch;
    return feed(b, (struct event){.type = EV_FROM_WORKER, .from = {&kept, "10.0.0.1"}});
}

static void make_ready(struct bench *b)
{
    struct actions a =
        from(b, (struct msg_from_worker){.type = FROM_HELLO, .hello = {.name = "w"}});
    for (size_t i = 0; i < a.n; i++)
        if (a.items[i].type == ACT_TO_WORKER) b->epoch = a.items[i].to_worker.msg->epoch;
    (void)from(b, (struct msg_from_worker){.type = FROM_READY, .endpoint = "tcp://:5"});
    (void)from(b, (struct msg_from_worker){.type = FROM_LINKED});
    (void)feed(b, (struct event){.type = EV_LINK_UP, .link = {b->epoch}});
    struct msg_result probe = {.epoch = b->epoch, .number = 1, .digest = 5};
    (void)feed(b, (struct event){.type = EV_RESULT, .result = &probe});
}

static void submit(struct bench *b)
{
    int32_t prompt[PROMPT];
    bool alike = rng_below(&b->rng, 2);
    for (int i = 0; i < PROMPT; i++)
        prompt[i] = alike && i < 160 ? i : (int32_t)rng_below(&b->rng, 40000);
    (void)feed(b, (struct event){.type = EV_SUBMIT,
                                 .submit = {.request = ++b->next_request,
                                            .priority = (enum priority)rng_below(&b->rng, 4),
                                            .tokens = prompt,
                                            .n_prompt = PROMPT,
                                            .max_new = NEW,
                                            .ignore_eos = true,
                                            .sampling = {.temp = 1}}});
    b->n_live++;
}

/* The Step's result, as soon as it is issued. */
static void answer(struct bench *b, const struct msg_step *s)
{
    static struct msg_run_result runs[LIMIT_STEP_RUNS];
    static int32_t tokens[LIMIT_STEP_RUNS];
    struct msg_result r = {.epoch = b->epoch, .number = s->number, .runs = runs, .n_timings = 1};
    r.timings[0] = (struct msg_timing){0, 1000000 + 50000 * (uint64_t)s->rows, 0};
    for (uint32_t i = 0; i < s->n_runs; i++) {
        const struct msg_run *x = &s->runs[i];
        if (!x->n_logits) continue;
        tokens[r.n_runs] = (int32_t)rng_below(&b->rng, 40000);
        runs[r.n_runs] = (struct msg_run_result){.request = x->request,
                                                 .attempt = x->attempt,
                                                 .sample = x->sample,
                                                 .first_pos = x->first_pos + x->n_rows,
                                                 .n_tokens = 1,
                                                 .tokens = &tokens[r.n_runs]};
        r.n_runs++;
    }
    struct actions a = feed(b, (struct event){.type = EV_RESULT, .result = &r});
    for (size_t i = 0; i < a.n; i++) b->n_live -= a.items[i].type == ACT_END;
}

int main(int argc, char **argv)
{
    uint32_t live = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 1000;
    struct core_config k = config();
    k.n_stages = 1;
    k.vocab = 40000;
    k.n_eog = 0;
    k.n_pages = PAGES;
    k.ctx = 1024;
    k.rows_max = 512;
    k.logits_max = 64;
    k.max_live = k.max_running = k.max_per_client = LIMIT_LIVE;
    k.deadline_ns = k.worker_timeout_ns = k.step_timeout_ns = 600 * NS_PER_S;
    struct bench b = {.core = core_open(&k), .now_ns = NS_PER_S, .rng = {3}};
    make_ready(&b);
    b.spent_ns = b.events = b.most_ns = 0;
    for (int step = 0; step < STEPS; step++) {
        while (b.n_live < live) submit(&b);
        struct actions a = feed(&b, (struct event){.type = EV_COMPOSE});
        static struct msg_step steps[2];
        static struct msg_run runs[2][LIMIT_STEP_RUNS];
        int n = 0;
        for (size_t i = 0; i < a.n && n < 2; i++)
            if (a.items[i].type == ACT_STEP) {
                steps[n] = *a.items[i].step;
                for (uint32_t r = 0; r < steps[n].n_runs; r++) runs[n][r] = steps[n].runs[r];
                steps[n].runs = runs[n];
                n++;
            }
        for (int i = 0; i < n; i++) answer(&b, &steps[i]);
        if (step % 10 == 0) (void)feed(&b, (struct event){.type = EV_TICK});
    }
    (void)printf("{\"live\": %u, \"events\": %llu, \"us_per_event\": %.2f, \"us_most\": %.1f}\n",
                 live, (unsigned long long)b.events, (double)b.spent_ns / 1e3 / (double)b.events,
                 (double)b.most_ns / 1e3);
    core_close(b.core);
    return 0;
}
