/* Virtual time goes from one moment at which something happens to the next. At each, the core is
 * told as its shell does: results, then arrivals, at times a tick, then one Compose. Each replica
 * has one worker, which is always well, and one Step in flight at the most. */
#include "coordinator/sim/fifo.h"

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/machine.h"
#include "common/base/mem.h"
#include "coordinator/core/core.h"

#include <inttypes.h>
#include <stdio.h>

#define POSITIONS 4u /* of a block */
#define TAIL 2u      /* positions behind the blocks: the first token's row, and the answer's */
#define TICK_NS (50 * NS_PER_MS)
#define NEVER_NS (UINT64_C(1) << 55) /* a year: for limits that are not to be reached */
#define START_NS NS_PER_S

/* A replica's one worker, and its Step in flight. */
struct stage {
    struct epoch epoch;
    bool busy;
    uint64_t number; /* of the Step, */
    uint64_t due_ns; /* when its result comes, */
    uint64_t took_ns;
    bool wants_token;
    struct msg_run_result run; /* and what it says, if so */
};

struct live {
    uint64_t came_ns;
    uint32_t replica; /* where it began to run; NO_REPLICA: nowhere yet */
};

#define NO_REPLICA UINT32_MAX

struct fifo {
    const struct trace *trace;
    const struct fifo_options *options;
    struct fifo_result *result;
    struct core *core;
    struct stage *stages;
    struct live *requests; /* by their index in the trace, which is also their id */
    uint32_t *due, n_due;  /* busy stages, a heap: the one whose Step ends first is on top */
    uint32_t n_submitted, n_live;
    uint64_t rows_computed; /* of blocks */
    double stretch;         /* ns of virtual time for each us of the trace */
    uint64_t now_ns, tick_ns;
    int rc; /* the first error, */
    struct errmsg *em;
};

/* ---- the model ---- */

static const struct trace_request *request_of(const struct fifo *f, uint64_t id)
{
    return &f->trace->requests[id];
}

/* Rows of a run that belong to blocks. */
static uint64_t block_rows(const struct trace_request *r, const struct msg_run *x)
{
    uint32_t blocks_end = r->n_blocks * POSITIONS, end = x->first_pos + x->n_rows;
    if (end > blocks_end) end = blocks_end;
    return end > x->first_pos ? end - x->first_pos : 0;
}

/* What a run takes: its rows of blocks, and the answer if its row is among them. */
static uint64_t run_ns(const struct fifo *f, const struct msg_run *x)
{
    const struct trace_request *r = request_of(f, x->request);
    uint32_t answer_at = r->n_blocks * POSITIONS + 1;
    bool answer = x->first_pos + x->n_rows > answer_at;
    return block_rows(r, x) * f->options->block_ns / POSITIONS +
           (answer ? r->n_answer * f->options->token_ns : 0);
}

/* ---- the heap of Steps in flight ---- */

static bool sooner(const struct fifo *f, uint32_t a, uint32_t b)
{
    uint64_t x = f->stages[a].due_ns, y = f->stages[b].due_ns;
    return x != y ? x < y : a < b;
}

static void push_due(struct fifo *f, uint32_t replica)
{
    uint32_t at = f->n_due++;
    while (at && sooner(f, replica, f->due[(at - 1) / 2])) {
        f->due[at] = f->due[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    f->due[at] = replica;
}

static uint32_t pop_due(struct fifo *f)
{
    uint32_t top = f->due[0], last = f->due[--f->n_due], at = 0;
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= f->n_due) break;
        if (child + 1 < f->n_due && sooner(f, f->due[child + 1], f->due[child])) child++;
        if (!sooner(f, f->due[child], last)) break;
        f->due[at] = f->due[child];
        at = child;
    }
    f->due[at] = last;
    return top;
}

/* ---- what the core does ---- */

/* With one sequence running, a Step has one run; a probe's asks for its digest only. */
static void take_step(struct fifo *f, const struct msg_step *step)
{
    uint32_t replica = step->epoch.replica;
    struct stage *s = &f->stages[replica];
    const struct msg_run *x = &step->runs[0];
    CHECK(!s->busy && step->n_runs == 1);
    *s = (struct stage){.epoch = step->epoch, .busy = true, .number = step->number};
    if (x->kind != RUN_PROBE) {
        static const int32_t token = 0;
        struct live *r = &f->requests[x->request];
        struct fifo_replica *total = &f->result->replicas[replica];
        s->took_ns = run_ns(f, x);
        s->wants_token = x->n_logits > 0;
        s->run = (struct msg_run_result){.request = x->request,
                                         .attempt = x->attempt,
                                         .sample = x->sample,
                                         .first_pos = x->first_pos + x->n_rows,
                                         .n_tokens = 1,
                                         .tokens = &token};
        f->rows_computed += block_rows(request_of(f, x->request), x);
        total->work_ns += s->took_ns;
        total->requests += r->replica == NO_REPLICA;
        r->replica = replica;
    }
    if (s->took_ns == 0) s->took_ns = 1; /* nothing takes no time at all */
    s->due_ns = f->now_ns + s->took_ns;
    push_due(f, replica);
}

static void take_end(struct fifo *f, const struct action *a)
{
    f->n_live--;
    f->result->took_ns = f->now_ns - START_NS;
    if (a->end.status != STATUS_OK && f->rc == 0)
        f->rc = err_set(f->em, ERR_PROTO, "request %" PRIu64 " was not answered: %s",
                        a->end.request + 1, a->end.text);
}

static void take_actions(struct fifo *f, struct actions a)
{
    for (size_t i = 0; i < a.n; i++) {
        const struct action *x = &a.items[i];
        if (x->type == ACT_STEP) take_step(f, x->step);
        if (x->type == ACT_END) take_end(f, x);
        if (x->type == ACT_TOKENS && x->tokens.first_index == 0) {
            uint64_t waited_ns = f->now_ns - f->requests[x->tokens.request].came_ns;
            samples_add(&f->result->ttft_ms, (double)waited_ns / 1e6);
        }
        if (x->type == ACT_NOTE && x->loss && f->rc == 0)
            f->rc = err_set(f->em, ERR_PROTO, "a replica was lost: %s", x->note);
    }
}

/* CPU time of this thread, in which others that use the machine do not count. */
static uint64_t own_ns(void)
{
    struct timespec t;
    if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) != 0) return 0;
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

/* One event. What the core takes for it is counted, and kept in `each` where that is not NULL. */
static struct actions step_core(struct fifo *f, struct event e, struct samples *each)
{
    e.now_ns = f->now_ns;
    uint64_t start_ns = own_ns();
    struct actions a = core_step(f->core, &e);
    double us = (double)(own_ns() - start_ns) / 1e3;
    f->result->events++;
    f->result->events_us += us;
    if (each) samples_add(each, us);
    return a;
}

static void feed(struct fifo *f, struct event e, struct samples *each)
{
    take_actions(f, step_core(f, e, each));
}

/* ---- what happens ---- */

static void results(struct fifo *f)
{
    while (f->n_due && f->stages[f->due[0]].due_ns <= f->now_ns) {
        struct stage *s = &f->stages[pop_due(f)];
        struct stage done = *s;
        struct msg_result m = {.epoch = done.epoch,
                               .number = done.number,
                               .digest = 1,
                               .n_runs = done.wants_token,
                               .runs = &done.run,
                               .n_timings = 1,
                               .timings = {{.compute_ns = done.took_ns}}};
        s->busy = false;
        feed(f, (struct event){.type = EV_RESULT, .result = &m}, NULL);
    }
}

static void submit(struct fifo *f, int32_t *tokens)
{
    uint32_t id = f->n_submitted++;
    const struct trace_request *r = request_of(f, id);
    const uint32_t *blocks = f->trace->blocks + r->first_block;
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n_blocks; i++) {
        tokens[n++] = (int32_t)blocks[i];
        for (uint32_t k = 1; k < POSITIONS; k++) tokens[n++] = 0;
    }
    tokens[n++] = 0; /* the row whose logits choose the first token */
    f->requests[id] = (struct live){f->now_ns, NO_REPLICA};
    f->n_live++;
    struct event e = {.type = EV_SUBMIT,
                      .submit = {.request = id,
                                 .priority = PRIORITY_NORMAL,
                                 .tokens = tokens,
                                 .n_prompt = n,
                                 .max_new = TAIL,
                                 .ignore_eos = true}};
    feed(f, e, &f->result->arrival_us);
}

/* When the next request comes; UINT64_MAX: none does before another one ends. */
static uint64_t next_arrival_ns(const struct fifo *f)
{
    const struct trace *t = f->trace;
    if (f->n_submitted == t->n_requests) return UINT64_MAX;
    if (f->options->concurrency)
        return f->n_live < f->options->concurrency ? f->now_ns : UINT64_MAX;
    uint64_t us = t->requests[f->n_submitted].at_us - t->requests[0].at_us;
    return START_NS + (uint64_t)((double)us * f->stretch);
}

static void run_all(struct fifo *f, int32_t *tokens)
{
    while (f->rc == 0 && (f->n_submitted < f->trace->n_requests || f->n_live)) {
        uint64_t arrival_ns = next_arrival_ns(f);
        uint64_t due_ns = f->n_due ? f->stages[f->due[0]].due_ns : UINT64_MAX;
        uint64_t next_ns = arrival_ns < due_ns ? arrival_ns : due_ns;
        if (next_ns == UINT64_MAX) {
            f->rc = err_set(f->em, ERR_PROTO,
                            "%" PRIu32 " requests wait for ever: no Step is in flight", f->n_live);
            return;
        }
        f->now_ns = next_ns > f->now_ns ? next_ns : f->now_ns;
        results(f);
        while (next_arrival_ns(f) <= f->now_ns) submit(f, tokens);
        if (f->now_ns - f->tick_ns >= TICK_NS) {
            f->tick_ns = f->now_ns;
            feed(f, (struct event){.type = EV_TICK}, NULL);
        }
        feed(f, (struct event){.type = EV_COMPOSE}, &f->result->compose_us);
    }
}

/* ---- the beginning ---- */

static void from_worker(struct fifo *f, uint32_t worker, struct msg_from_worker *m)
{
    m->version = PROTO_VERSION;
    m->instance = (struct instance){1, worker};
    feed(f, (struct event){.type = EV_FROM_WORKER, .from = {m, "127.0.0.1"}}, NULL);
}

/* A worker joins, and the one replica that lacks it gets ready. */
static void add_worker(struct fifo *f, uint32_t worker)
{
    struct epoch epoch = {0};
    struct msg_from_worker hello = {.type = FROM_HELLO, .version = PROTO_VERSION};
    hello.instance = (struct instance){1, worker};
    (void)snprintf(hello.hello.name, sizeof hello.hello.name, "w%05" PRIu32, worker);
    struct actions a =
        step_core(f, (struct event){.type = EV_FROM_WORKER, .from = {&hello, "127.0.0.1"}}, NULL);
    for (size_t i = 0; i < a.n; i++)
        if (a.items[i].type == ACT_TO_WORKER) epoch = a.items[i].to_worker.msg->epoch;
    struct msg_from_worker m = {.has_epoch = true, .epoch = epoch, .endpoint = "tcp://:1"};
    m.type = FROM_READY;
    from_worker(f, worker, &m);
    m.type = FROM_LINKED;
    from_worker(f, worker, &m);
    feed(f, (struct event){.type = EV_LINK_UP, .link = {epoch}}, NULL);
    f->now_ns++;
    results(f); /* of the probe */
}

/* All that the core is told. A replica becomes a FIFO server by one running sequence, one Step in
 * flight, and Steps with room for whole prompts. All requests of a trace may be live at once, which
 * may be more than LIMIT_LIVE, the limit in service. */
static struct core_config config_of(const struct trace *t, const struct fifo_options *o)
{
    uint32_t live =
        o->concurrency && o->concurrency < t->n_requests ? o->concurrency : t->n_requests;
    return (struct core_config){.incarnation = 1,
                                .n_replicas = o->n_replicas,
                                .n_stages = 1,
                                .max_workers = o->n_replicas,
                                .n_layers = 1,
                                .width = 1,
                                .vocab = 1,
                                .model_path = "",
                                .results_endpoint = "tcp://127.0.0.1:1",
                                .n_pages = o->cache_blocks + 1,
                                .page = POSITIONS,
                                .share = true,
                                .hash_seed = o->seed,
                                .hash_mask = UINT64_MAX,
                                .ctx = (o->cache_blocks + 1) * POSITIONS,
                                .rows_max = LIMIT_STEP_ROWS,
                                .logits_max = 1,
                                .window = 1,
                                .max_live = live,
                                .max_running = 1,
                                .policy = o->policy,
                                .route_weight = o->route_weight,
                                .max_per_client = live,
                                .plaintext = true,
                                .replica_wait_ns = NEVER_NS,
                                .deadline_ns = NEVER_NS,
                                .worker_timeout_ns = NEVER_NS,
                                .step_timeout_ns = NEVER_NS};
}

/* What an unlimited cache leaves to do. */
static double work_ns(const struct trace *t, const struct fifo_options *o)
{
    return (double)t->n_distinct * (double)o->block_ns +
           (double)t->answer_tokens * (double)o->token_ns;
}

static uint64_t span_us(const struct trace *t)
{
    return t->requests[t->n_requests - 1].at_us - t->requests[0].at_us;
}

static int check_times(const struct trace *t, const struct fifo_options *o, struct errmsg *em)
{
    /* Without any hit, at the least load, on one replica. */
    double most_ns = (double)t->n_blocks * (double)o->block_ns + work_ns(t, o);
    if (!o->concurrency) most_ns /= o->load < 1.0 ? o->load : 1.0;
    if (most_ns > (double)NEVER_NS)
        return err_set(em, ERR_CONF, "the trace may take more than a year of virtual time");
    if (!o->concurrency && span_us(t) == 0)
        return err_set(em, ERR_CONF,
                       "all requests come at the same time, which no load can be made of");
    return 0;
}

static int check(const struct trace *t, const struct fifo_options *o, struct errmsg *em)
{
    struct machine_memory memory = machine_memory("");
    uint64_t most = machine_free(&memory) / 2;
    uint64_t bytes = (o->cache_blocks + UINT64_C(1)) * pages_bytes(POSITIONS) * o->n_replicas;
    if (o->cache_blocks < t->prompt_most)
        return err_set(em, ERR_CONF,
                       "a cache of %" PRIu32 " blocks cannot hold the longest prompt, which has "
                       "%" PRIu32,
                       o->cache_blocks, t->prompt_most);
    if (bytes > most)
        return err_set(em, ERR_CONF,
                       "the tables of %" PRIu32 " caches of %" PRIu32 " blocks take %" PRIu64
                       " MiB, and half of what is free is %" PRIu64 " MiB",
                       o->n_replicas, o->cache_blocks, bytes >> 20, most >> 20);
    return check_times(t, o, em);
}

/* Every worker joins, and every replica gets ready, before the first request comes. */
static void make_ready(struct fifo *f)
{
    f->now_ns = START_NS - f->options->n_replicas;
    for (uint32_t i = 0; i < f->options->n_replicas; i++) add_worker(f, i);
    f->now_ns = f->tick_ns = START_NS;
    f->result->events = 0;
    f->result->events_us = 0.0;
}

int fifo_run(const struct trace *t, const struct fifo_options *o, struct fifo_result *ret,
             struct errmsg *em)
{
    int rc = check(t, o, em);
    if (rc < 0) return rc;
    struct core_config config = config_of(t, o);
    struct fifo_result result = {.n_replicas = o->n_replicas};
    result.replicas = mem_zalloc(o->n_replicas * sizeof *result.replicas);
    struct fifo f = {.trace = t, .options = o, .result = &result, .em = em};
    f.core = core_open(&config);
    f.stages = mem_zalloc(o->n_replicas * sizeof *f.stages);
    f.due = mem_zalloc(o->n_replicas * sizeof *f.due);
    f.requests = mem_zalloc(t->n_requests * sizeof *f.requests);
    int32_t *tokens = mem_alloc((t->prompt_most * (size_t)POSITIONS + TAIL) * sizeof *tokens);
    if (!o->concurrency) f.stretch = work_ns(t, o) / (o->load * o->n_replicas) / (double)span_us(t);
    make_ready(&f);
    run_all(&f, tokens);
    result.blocks_computed = f.rows_computed / POSITIONS;
    core_close(f.core);
    mem_free(f.stages);
    mem_free(f.due);
    mem_free(f.requests);
    mem_free(tokens);
    if (f.rc < 0)
        fifo_close(&result);
    else
        *ret = result;
    return f.rc;
}

void fifo_close(struct fifo_result *r)
{
    mem_free(r->replicas);
    samples_close(&r->ttft_ms);
    samples_close(&r->arrival_us);
    samples_close(&r->compose_us);
    *r = (struct fifo_result){0};
}

/* ---- figures ---- */

double fifo_hit_rate(const struct trace *t, const struct fifo_result *r)
{
    return 1.0 - (double)r->blocks_computed / t->n_blocks;
}

double fifo_bound_hit_rate(const struct trace *t)
{
    return 1.0 - (double)t->n_distinct / t->n_blocks;
}

double fifo_max_over_mean(const struct fifo_result *r)
{
    double sum = 0.0, most = 0.0;
    for (uint32_t i = 0; i < r->n_replicas; i++) {
        double x = (double)r->replicas[i].work_ns;
        sum += x;
        if (x > most) most = x;
    }
    return most * r->n_replicas / sum;
}

double fifo_largest_share(const struct fifo_result *r)
{
    uint64_t sum = 0, most = 0;
    for (uint32_t i = 0; i < r->n_replicas; i++) {
        uint64_t x = r->replicas[i].requests;
        sum += x;
        if (x > most) most = x;
    }
    return (double)most / (double)sum;
}
