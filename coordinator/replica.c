/* Workers and the replica's generations: who is there, who holds which layers, when it is ready,
 * and what ends it. */
#include "coordinator/core_state.h"

#include "common/base/addr.h"
#include "common/base/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAUSE_FIRST_NS (100 * NS_PER_MS)
#define PAUSE_MOST_NS (10 * NS_PER_S)
#define PROBE_MOST_NS (30 * NS_PER_S)
#define LINK_MOST_NS (10 * NS_PER_S)   /* a link that is not up by then will not be */
#define LOAD_STILL_NS (120 * NS_PER_S) /* loading without a sign of progress */
#define ASK_AGAIN_NS (1 * NS_PER_S)    /* an Assign that nobody speaks of is sent again */
#define OVERDUE_FACTOR 5u
#define PATIENCE_MOST 8u /* times the least age at which a Step is overdue */

struct epoch replica__epoch(const struct core *c)
{
    return (struct epoch){c->cfg.incarnation, 0, c->replica.generation};
}

static struct worker *find(struct core *c, struct instance instance)
{
    for (uint32_t i = 0; i < LIMIT_WORKERS; i++)
        if (c->workers[i].used && instance_eq(c->workers[i].instance, instance))
            return &c->workers[i];
    return NULL;
}

static uint32_t stage_of(const struct core *c, const struct worker *w)
{
    for (uint32_t i = 0; i < c->cfg.n_stages; i++)
        if (c->replica.stage[i] != NO_WORKER && &c->workers[c->replica.stage[i]] == w) return i;
    return NO_WORKER;
}

static struct worker *at_stage(struct core *c, uint32_t stage)
{
    return &c->workers[c->replica.stage[stage]];
}

static struct msg_to_worker *to_worker(struct core *c, struct instance instance,
                                       enum to_worker type)
{
    struct msg_to_worker *m = core__alloc(c, sizeof *m);
    *m = (struct msg_to_worker){.version = PROTO_VERSION, .type = type, .epoch = replica__epoch(c)};
    struct action *a = core__act(c, ACT_TO_WORKER);
    a->to_worker.instance = instance;
    a->to_worker.msg = m;
    return m;
}

/* ---- the end of a generation ---- */

static void lose(struct core *c, const char *why)
{
    struct replica *r = &c->replica;
    if (r->state == REPLICA_WAITING) return;
    bool was_ready = r->state == REPLICA_READY;
    (void)snprintf(r->why, sizeof r->why, "%s", why);
    (void)snprintf(r->lost, sizeof r->lost, "%s", why);
    core__note_loss(c, "generation %" PRIu32 " ended: %s", r->generation, why);
    if (was_ready || r->pause_ns == 0)
        r->pause_ns = PAUSE_FIRST_NS;
    else if (r->pause_ns < PAUSE_MOST_NS)
        r->pause_ns *= 2;
    r->retry_ns = c->now_ns + r->pause_ns;
    r->state = REPLICA_WAITING;
    r->n_flight = 0;
    r->link_up = false;
    for (uint32_t i = 0; i < c->cfg.n_stages; i++) r->stage[i] = NO_WORKER;
    core__act(c, ACT_LINK_CLOSE)->link.epoch = replica__epoch(c);
    request__generation_lost(c, why);
}

static void lose_worker(struct core *c, struct worker *w, const char *why)
{
    uint32_t stage = stage_of(c, w);
    const char *text = core__text(c, "worker %s lost: %s", w->hello.name, why);
    w->used = false;
    if (stage != NO_WORKER)
        lose(c, text);
    else
        core__note_loss(c, "%s", text);
}

/* ---- the beginning of one ---- */

static void cut_layers(struct core *c)
{
    struct replica *r = &c->replica;
    uint32_t each = c->cfg.n_layers / c->cfg.n_stages, more = c->cfg.n_layers % c->cfg.n_stages;
    for (uint32_t i = 0, at = 0; i < c->cfg.n_stages; i++) {
        r->first[i] = at;
        at += each + (i < more);
        r->last[i] = at - 1;
    }
}

static bool holds(const struct core *c, const struct worker *w, uint32_t stage)
{
    const struct msg_hello *h = &w->hello;
    return h->holds && h->holding.model_digest == c->cfg.model_digest &&
           h->holding.layer_first == c->replica.first[stage] &&
           h->holding.layer_last == c->replica.last[stage];
}

static bool taken(const struct core *c, uint32_t worker)
{
    for (uint32_t i = 0; i < c->cfg.n_stages; i++)
        if (c->replica.stage[i] == worker) return true;
    return false;
}

/* The next free worker, by faults and name; `must_hold`: one that holds the stage's layers already.
 */
static uint32_t pick(const struct core *c, uint32_t stage, bool must_hold)
{
    uint32_t best = NO_WORKER;
    for (uint32_t i = 0; i < LIMIT_WORKERS; i++) {
        const struct worker *w = &c->workers[i];
        if (!w->used || w->suspect || taken(c, i) || (must_hold && !holds(c, w, stage))) continue;
        const struct worker *b = best == NO_WORKER ? NULL : &c->workers[best];
        if (!b || w->faults < b->faults ||
            (w->faults == b->faults && strcmp(w->hello.name, b->hello.name) < 0))
            best = i;
    }
    return best;
}

static void send_assign(struct core *c, uint32_t stage)
{
    struct worker *w = at_stage(c, stage);
    w->assigned_ns = c->now_ns;
    struct msg_assign *a = &to_worker(c, w->instance, TO_ASSIGN)->assign;
    (void)snprintf(a->model_path, sizeof a->model_path, "%s", c->model_path);
    a->model_digest = c->cfg.model_digest;
    a->layer_first = c->replica.first[stage];
    a->layer_last = c->replica.last[stage];
    a->kv_type = c->cfg.kv_type;
    a->n_pages = c->cfg.n_pages;
    a->rows_max = c->cfg.rows_max;
    a->logits_max = c->cfg.logits_max;
    a->window = c->cfg.window;
    a->plaintext = c->cfg.plaintext;
}

static void assign(struct core *c, uint32_t stage)
{
    struct worker *w = at_stage(c, stage);
    w->ready = w->linked = w->knows = false;
    w->heartbeat = (struct msg_heartbeat){0};
    w->load_done = w->load_total = w->compute_ns = w->idle_ns = 0;
    send_assign(c, stage);
}

static void enter(struct core *c, enum replica_state state, const char *why)
{
    struct replica *r = &c->replica;
    r->state = state;
    r->since_ns = c->now_ns;
    (void)snprintf(r->why, sizeof r->why, "%s", why);
}

static void begin(struct core *c)
{
    struct replica *r = &c->replica;
    uint32_t n = 0;
    for (uint32_t i = 0; i < LIMIT_WORKERS; i++) n += c->workers[i].used && !c->workers[i].suspect;
    if (r->state != REPLICA_WAITING || n < c->cfg.n_stages || c->now_ns < r->retry_ns) return;
    cut_layers(c);
    for (uint32_t i = 0; i < c->cfg.n_stages; i++) r->stage[i] = pick(c, i, true);
    for (uint32_t i = 0; i < c->cfg.n_stages; i++)
        if (r->stage[i] == NO_WORKER) r->stage[i] = pick(c, i, false);
    r->generation++;
    r->next_number = 1;
    r->prefilled = 0;
    r->n_flight = 0;
    enter(c, REPLICA_LOADING, "workers are loading");
    core__note(c, "generation %" PRIu32 " begins with %" PRIu32 " worker%s", r->generation,
               c->cfg.n_stages, c->cfg.n_stages == 1 ? "" : "s");
    for (uint32_t i = 0; i < c->cfg.n_stages; i++) assign(c, i);
}

static bool all(struct core *c, bool linked)
{
    for (uint32_t i = 0; i < c->cfg.n_stages; i++)
        if (!(linked ? at_stage(c, i)->linked : at_stage(c, i)->ready)) return false;
    return true;
}

/* "tcp://HOST:PORT" as stage's upstream neighbour must dial it: the worker may leave HOST empty,
 * and is then where the coordinator sees it. */
static int dial(struct core *c, uint32_t stage, char *ret, size_t size)
{
    const struct worker *w = at_stage(c, stage);
    struct addr its;
    if (!addr_split(w->endpoint, &its) || its.port == 0) {
        lose(c, core__text(c, "worker %s gave no data endpoint", w->hello.name));
        return -1;
    }
    char host[LIMIT_TEXT_BYTES];
    if (its.host[0])
        addr_format_host(&its, host, sizeof host);
    else
        (void)snprintf(host, sizeof host, "%s", w->address);
    const char *dialler = stage ? at_stage(c, stage - 1)->address : w->address;
    if (addr_is_loopback(host) && !(addr_is_loopback(dialler) && addr_is_loopback(w->address))) {
        lose(c, core__text(c,
                           "worker %s advertises %s, which %s cannot reach: start it with "
                           "--listen and --advertise HOST:PORT",
                           w->hello.name, host,
                           stage ? at_stage(c, stage - 1)->hello.name : "the coordinator"));
        return -1;
    }
    if (snprintf(ret, size, "tcp://%s:%u", host, its.port) >= (int)size) return -1;
    return 0;
}

static int send_connect(struct core *c, uint32_t stage)
{
    char next[LIMIT_TEXT_BYTES];
    if (stage + 1 == c->cfg.n_stages)
        (void)snprintf(next, sizeof next, "%s", c->results_endpoint);
    else if (dial(c, stage + 1, next, sizeof next) < 0)
        return -1;
    struct msg_to_worker *m = to_worker(c, at_stage(c, stage)->instance, TO_CONNECT);
    memcpy(m->text, next, sizeof m->text);
    return 0;
}

static void link_stages(struct core *c)
{
    struct replica *r = &c->replica;
    if (r->state != REPLICA_LOADING || !all(c, false)) return;
    enter(c, REPLICA_LINKING, "stages are being linked");
    char *endpoint = core__alloc(c, LIMIT_TEXT_BYTES);
    if (dial(c, 0, endpoint, LIMIT_TEXT_BYTES) < 0) return;
    for (uint32_t i = 0; i < c->cfg.n_stages; i++)
        if (send_connect(c, i) < 0) return;
    struct action *a = core__act(c, ACT_LINK_OPEN);
    a->link.epoch = replica__epoch(c);
    a->link.endpoint = endpoint;
}

static void probe_when_linked(struct core *c)
{
    struct replica *r = &c->replica;
    if (r->state != REPLICA_LINKING || !r->link_up || !all(c, true)) return;
    enter(c, REPLICA_PROBING, "a probe token is on its way");
    sched__probe(c);
}

void replica__link(struct core *c, struct epoch epoch, bool up)
{
    struct replica *r = &c->replica;
    if (!epoch_eq(epoch, replica__epoch(c)) || r->state < REPLICA_LINKING) return;
    r->link_up = up;
    if (up) {
        probe_when_linked(c);
        return;
    }
    at_stage(c, 0)->suspect = true;
    lose(c, core__text(c, "worker %s lost: its data link closed", at_stage(c, 0)->hello.name));
}

/* ---- results ---- */

/* When the chain turned to this Step: when it was issued, or when the one before it came back. */
static uint64_t begun_ns(const struct replica *r, const struct in_flight *f)
{
    return f->issued_ns > r->moved_ns ? f->issued_ns : r->moved_ns;
}

static uint32_t size_of(uint32_t rows)
{
    uint32_t size = 0;
    while (size + 1 < STEP_SIZES && rows >> size > 1) size++;
    return size;
}

static void learn_speed(struct replica *r, uint64_t took_ns, uint32_t rows)
{
    uint64_t *known = &r->took_ns[size_of(rows)];
    if (took_ns > *known)
        *known = took_ns;
    else
        *known -= (*known - took_ns) / 16; /* one slow Step is forgotten in time */
}

/* What a Step of so many rows may take: what such Steps took, or larger ones, or in proportion the
 * largest that are known. */
static uint64_t predict(const struct replica *r, uint32_t rows)
{
    uint32_t size = size_of(rows);
    for (uint32_t i = size; i < STEP_SIZES; i++)
        if (r->took_ns[i]) return r->took_ns[i];
    for (uint32_t i = size; i-- > 0;)
        if (r->took_ns[i]) return r->took_ns[i] << (size - i);
    return 0;
}

/* What the stages took for a Step: the slowest, and all together. */
struct took {
    uint64_t slowest_ns, all_ns;
};

static struct took take_timings(struct core *c, const struct msg_result *m,
                                const struct in_flight *f)
{
    struct took took = {0, 0};
    for (uint32_t i = 0; i < m->n_timings; i++) {
        if (m->timings[i].stage >= c->cfg.n_stages) continue;
        struct worker *w = at_stage(c, m->timings[i].stage);
        w->compute_ns += m->timings[i].compute_ns;
        if (!f->first) w->idle_ns += m->timings[i].idle_ns;
        if (m->timings[i].compute_ns > took.slowest_ns) took.slowest_ns = m->timings[i].compute_ns;
        took.all_ns += m->timings[i].compute_ns;
    }
    return took;
}

/* What composing goes by: a Step's time on its slowest stage, and how many of those a Step is under
 * way when it meets no other. */
static void learn_cost(struct core *c, const struct in_flight *f, struct took took)
{
    struct replica *r = &c->replica;
    uint64_t trip_ns = c->now_ns - f->issued_ns;
    uint64_t beside_ns = trip_ns > took.all_ns ? trip_ns - took.all_ns : 0;
    if (took.slowest_ns == 0 || r->state == REPLICA_PROBING) return;
    cost_learn(&r->cost, f->work, took.slowest_ns);
    if (f->alone) r->wire_ns = r->wire_ns ? (r->wire_ns * 7 + beside_ns) / 8 : beside_ns;
    uint64_t wire_ns = beside_ns < r->wire_ns ? beside_ns : r->wire_ns;
    r->wire_sum_ns += wire_ns;
    r->queue_sum_ns += beside_ns - wire_ns;
    if (!f->alone) return;
    double trips = (double)trip_ns / (double)took.slowest_ns;
    r->trips = r->trips == 0.0 ? trips : r->trips + (trips - r->trips) / 8.0;
}

/* One token, or one error, for each run that wanted logits; tokens of the vocabulary. */
static bool is_what_was_asked(const struct core *c, const struct msg_result *m,
                              const struct in_flight *f)
{
    if (m->n_runs != f->n_results) return false;
    for (uint32_t i = 0; i < m->n_runs; i++) {
        const struct msg_run_result *x = &m->runs[i];
        bool failed = x->error && x->error[0];
        if (!failed &&
            (x->n_tokens != 1 || x->tokens[0] < 0 || (uint32_t)x->tokens[0] >= c->cfg.vocab))
            return false;
    }
    return true;
}

bool replica__result(struct core *c, const struct msg_result *m)
{
    struct replica *r = &c->replica;
    if (!epoch_eq(m->epoch, replica__epoch(c)) || r->state < REPLICA_PROBING) {
        c->dropped++;
        return false;
    }
    uint64_t oldest = r->n_flight ? r->flight[0].number : r->next_number;
    if (m->number < oldest) {
        c->dropped++;
        return MUTATED(RESULT_BY_COUNT);
    }
    struct in_flight f = r->flight[0];
    if (m->number != oldest || r->n_flight == 0 || !is_what_was_asked(c, m, &f)) {
        lose(c, core__text(c, "the result of Step %" PRIu64 " is missing or not what was asked for",
                           oldest));
        return false;
    }
    learn_speed(r, c->now_ns - begun_ns(r, &f), f.work.rows);
    r->moved_ns = c->now_ns;
    r->patience_ns -= (r->patience_ns - c->cfg.step_timeout_ns) / 16;
    learn_cost(c, &f, take_timings(c, m, &f));
    r->n_flight--;
    memmove(&r->flight[0], &r->flight[1], r->n_flight * sizeof r->flight[0]);
    if (r->state != REPLICA_PROBING) return true;
    if (r->has_digest && r->digest != m->digest) {
        lose(c, "the probe's logits differ from the first generation's");
        return false;
    }
    r->has_digest = true;
    r->digest = m->digest;
    enter(c, REPLICA_READY, "");
    r->pause_ns = 0;
    r->lost[0] = 0;
    for (uint32_t i = 0; i < c->cfg.n_stages; i++) at_stage(c, i)->faults = 0;
    core__note(c, "generation %" PRIu32 " is ready", r->generation);
    return false;
}

/* ---- workers ---- */

static void hello(struct core *c, const struct msg_from_worker *m, const char *address)
{
    struct worker *w = find(c, m->instance);
    for (uint32_t i = 0; i < LIMIT_WORKERS && !w; i++)
        if (!c->workers[i].used) w = &c->workers[i];
    if (!w) { /* the table is full: it will say Hello again when it is asked who it is */
        c->dropped++;
        return;
    }
    bool known = w->used;
    if (known && stage_of(c, w) != NO_WORKER) w->knows = false; /* it may have missed something */
    *w = known ? *w : (struct worker){.used = true, .instance = m->instance};
    w->hello = m->hello;
    w->suspect = false;
    w->heard_ns = c->now_ns;
    (void)snprintf(w->address, sizeof w->address, "%s", address);
    if (!known) core__note(c, "worker %s joined from %s", w->hello.name, w->address);
    begin(c);
}

static void fault(struct core *c, struct worker *w, const struct msg_from_worker *m)
{
    uint32_t stage = stage_of(c, w);
    if (stage == NO_WORKER || !epoch_eq(m->epoch, replica__epoch(c))) return;
    w->faults += !m->downstream;
    if (m->downstream && stage + 1 < c->cfg.n_stages) {
        struct worker *next = at_stage(c, stage + 1);
        next->suspect = true;
        lose(c, core__text(c, "worker %s lost: %s", next->hello.name, m->text));
    } else
        lose(c, core__text(c, "worker %s: %s", w->hello.name, m->text));
}

static void heartbeat(struct core *c, struct worker *w, const struct msg_from_worker *m)
{
    if (!m->has_epoch || !epoch_eq(m->epoch, replica__epoch(c))) return;
    w->heartbeat = m->heartbeat;
    w->knows = true;
}

static void of_this_epoch(struct core *c, struct worker *w, const struct msg_from_worker *m)
{
    if (!epoch_eq(m->epoch, replica__epoch(c)) || stage_of(c, w) == NO_WORKER) {
        c->dropped++;
        return;
    }
    w->knows = true;
    switch (m->type) {
    case FROM_LOAD_PROGRESS:
        if (m->bytes_done != w->load_done) c->replica.since_ns = c->now_ns;
        w->load_done = m->bytes_done;
        w->load_total = m->bytes_total;
        break;
    case FROM_READY:
        if (w->ready) { /* said again: its Connect may be lost */
            if (c->replica.state == REPLICA_LINKING && !w->linked)
                (void)send_connect(c, stage_of(c, w));
            break;
        }
        w->ready = true;
        c->replica.since_ns = c->now_ns;
        w->hello.holds = true;
        w->hello.holding = (struct msg_holding){
            c->cfg.model_digest, c->replica.first[stage_of(c, w)], c->replica.last[stage_of(c, w)]};
        memcpy(w->endpoint, m->endpoint, sizeof w->endpoint);
        link_stages(c);
        break;
    case FROM_LINKED:
        w->linked = true;
        probe_when_linked(c);
        break;
    default: break;
    }
}

void replica__from_worker(struct core *c, const struct msg_from_worker *m, const char *address)
{
    if (m->version != PROTO_VERSION) {
        struct msg_to_worker *refuse = to_worker(c, m->instance, TO_REFUSE);
        (void)snprintf(refuse->text, sizeof refuse->text,
                       "the coordinator speaks protocol version %u, this worker %" PRIu32,
                       PROTO_VERSION, m->version);
        c->dropped++;
        return;
    }
    struct worker *w = find(c, m->instance);
    if (m->type == FROM_HELLO) {
        hello(c, m, address);
    } else if (!w) {
        if (m->type != FROM_GOODBYE) (void)to_worker(c, m->instance, TO_WHO);
    } else {
        w->heard_ns = c->now_ns;
        w->suspect = false;
        switch (m->type) {
        case FROM_HEARTBEAT: heartbeat(c, w, m); break;
        case FROM_FAULT: fault(c, w, m); break;
        case FROM_GOODBYE: lose_worker(c, w, "it said goodbye"); break;
        default: of_this_epoch(c, w, m); break;
        }
    }
}

/* ---- time ---- */

/* A worker that speaks and is late may be one whose machine is busy: the next generation gives it
 * twice the time, or requests would meet one loss after another and be given up. */
static void be_patient(struct core *c)
{
    uint64_t *p = &c->replica.patience_ns, most = c->cfg.step_timeout_ns * PATIENCE_MOST;
    *p = *p * 2 < most ? *p * 2 : most;
}

/* An overdue Step is the fault of the first stage that has it and did not finish it, or of the link
 * behind the last stage that finished it. */
static void blame(struct core *c, uint64_t number)
{
    for (uint32_t i = 0; i < c->cfg.n_stages; i++) {
        const struct worker *w = at_stage(c, i);
        if (w->heartbeat.step_received < number) {
            const char *from = i ? at_stage(c, i - 1)->hello.name : "the coordinator";
            lose(c, core__text(c, "Step %" PRIu64 " is overdue: the link from %s to worker %s",
                               number, from, w->hello.name));
            return;
        }
        if (w->heartbeat.step_done < number) {
            be_patient(c);
            lose(c,
                 core__text(c, "Step %" PRIu64 " is overdue at worker %s", number, w->hello.name));
            return;
        }
    }
    lose(c, core__text(c, "Step %" PRIu64 " is overdue: the link from worker %s to the coordinator",
                       number, at_stage(c, c->cfg.n_stages - 1)->hello.name));
}

static void check_overdue(struct core *c)
{
    const struct replica *r = &c->replica;
    if (r->n_flight == 0) return;
    const struct in_flight *f = &r->flight[0];
    uint64_t limit = predict(r, f->work.rows) * OVERDUE_FACTOR;
    if (r->state == REPLICA_PROBING) limit = PROBE_MOST_NS; /* nothing is known of its speed yet */
    if (limit < r->patience_ns) limit = r->patience_ns;
    if (c->now_ns >= begun_ns(r, f) + limit) blame(c, f->number);
}

/* Time that the shell itself lost counts for nobody; what was heard in this very turn stays now. */
static void forgive(const struct core *c, uint64_t *since_ns, uint64_t lost_ns)
{
    *since_ns = *since_ns + lost_ns < c->now_ns ? *since_ns + lost_ns : c->now_ns;
}

/* A generation that does not get up: what was lost on the way is sent again, what does not move is
 * given up. */
static void check_beginning(struct core *c)
{
    struct replica *r = &c->replica;
    uint64_t still_ns = c->now_ns - r->since_ns;
    if (r->state != REPLICA_LOADING && r->state != REPLICA_LINKING) return;
    for (uint32_t i = 0; i < c->cfg.n_stages; i++) {
        struct worker *w = at_stage(c, i);
        if (!w->knows && c->now_ns - w->assigned_ns >= ASK_AGAIN_NS) send_assign(c, i);
    }
    if (still_ns < (r->state == REPLICA_LOADING ? LOAD_STILL_NS : LINK_MOST_NS)) return;
    for (uint32_t i = 0; i < c->cfg.n_stages; i++) {
        struct worker *w = at_stage(c, i);
        if (r->state == REPLICA_LOADING ? w->ready : w->linked) continue;
        w->faults++;
        lose(c,
             core__text(c, "worker %s does not %s", w->hello.name,
                        r->state == REPLICA_LOADING ? "load its layers" : "reach the next stage"));
        return;
    }
    lose(c, "the first stage cannot be reached");
}

void replica__tick(struct core *c, uint64_t lost_ns)
{
    for (uint32_t i = 0; i < LIMIT_WORKERS; i++) forgive(c, &c->workers[i].heard_ns, lost_ns);
    for (uint32_t i = 0; i < c->replica.n_flight; i++)
        forgive(c, &c->replica.flight[i].issued_ns, lost_ns);
    forgive(c, &c->replica.moved_ns, lost_ns);
    forgive(c, &c->replica.since_ns, lost_ns);
    for (uint32_t i = 0; i < LIMIT_WORKERS; i++) {
        struct worker *w = &c->workers[i];
        if (w->used && c->now_ns >= w->heard_ns + c->cfg.worker_timeout_ns)
            lose_worker(
                c, w,
                core__text(c, "silent for %" PRIu64 " ms", (c->now_ns - w->heard_ns) / NS_PER_MS));
    }
    check_overdue(c);
    check_beginning(c);
    begin(c);
}
