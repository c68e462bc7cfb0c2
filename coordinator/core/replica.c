/* The replica's generations: how one begins, when it is ready, and what ends it. fleet.c knows the
 * workers, watch.c what does not move. */
#include "coordinator/core/core_state.h"

#include "common/base/addr.h"
#include "common/base/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAUSE_FIRST_NS (100 * NS_PER_MS)
#define PAUSE_MOST_NS (10 * NS_PER_S)
#define PROBED_PAUSE_NS (2 * NS_PER_S) /* at the most, where only the probe's digest was wrong */

struct epoch replica__epoch(const struct core *c)
{
    return (struct epoch){c->cfg.incarnation, 0, c->replica.generation};
}

uint32_t replica__stage_of(const struct core *c, const struct worker *w)
{
    for (uint32_t i = 0; i < c->cfg.n_stages; i++)
        if (c->replica.stage[i] != NO_WORKER && &c->workers[c->replica.stage[i]] == w) return i;
    return NO_WORKER;
}

struct worker *replica__at(struct core *c, uint32_t stage)
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

void replica__lose(struct core *c, bool suspicious, const char *why)
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
    r->link_up = false;
    for (uint32_t i = 0; i < c->cfg.n_stages; i++) r->stage[i] = NO_WORKER;
    core__act(c, ACT_LINK_CLOSE)->link.epoch = replica__epoch(c);
    request__generation_lost(c, was_ready, suspicious, why);
    r->n_flight = 0;
}

/* A fault of the worker at a stage, and of nobody else. */
static void lose_to(struct core *c, uint32_t stage, const char *why)
{
    fleet__blame(c, replica__at(c, stage), why);
    replica__lose(c, true, why);
}

void replica__link_failed(struct core *c, uint32_t stage, const char *why)
{
    if (stage == 0 || stage == c->cfg.n_stages) /* no other coordinator could be tried */
        fleet__blame(c, replica__at(c, stage ? stage - 1 : 0), why);
    else
        fleet__doubt(c, replica__at(c, stage - 1), replica__at(c, stage), why);
    replica__lose(c, true, why);
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

void replica__assign(struct core *c, uint32_t stage)
{
    struct worker *w = replica__at(c, stage);
    w->assigned_ns = c->now_ns;
    struct msg_assign *a = &to_worker(c, w->instance, TO_ASSIGN)->assign;
    (void)snprintf(a->model_path, sizeof a->model_path, "%s", c->model_path);
    a->model_digest = c->cfg.model_digest;
    a->layer_first = c->replica.first[stage];
    a->layer_last = c->replica.last[stage];
    a->kv_type = c->cfg.kv_type;
    a->n_pages = c->cfg.n_pages;
    a->ctx = c->cfg.ctx;
    a->rows_max = c->cfg.rows_max;
    a->logits_max = c->cfg.logits_max;
    a->window = c->cfg.window;
    a->plaintext = c->cfg.plaintext;
}

static void assign(struct core *c, uint32_t stage)
{
    struct worker *w = replica__at(c, stage);
    w->ready = w->linked = w->knows = false;
    w->heartbeat = (struct msg_heartbeat){0};
    w->load_done = w->load_total = w->compute_ns = w->idle_ns = 0;
    w->loaded_ns = w->passed_ns = c->now_ns;
    w->doubt = NO_WORKER;
    replica__assign(c, stage);
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
    if (r->state != REPLICA_WAITING || c->now_ns < r->retry_ns) return;
    cut_layers(c);
    if (!fleet__plan(c) || !room__plan(c)) return;
    r->generation++;
    r->began_ns = c->now_ns;
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
        if (!(linked ? replica__at(c, i)->linked : replica__at(c, i)->ready)) return false;
    return true;
}

/* "tcp://HOST:PORT" as stage's upstream neighbour must dial it: the worker may leave HOST empty,
 * and is then where the coordinator sees it. */
static int dial(struct core *c, uint32_t stage, char *ret, size_t size)
{
    const struct worker *w = replica__at(c, stage);
    struct addr its;
    if (!addr_split(w->endpoint, &its) || its.port == 0) {
        lose_to(c, stage, core__text(c, "worker %s gave no data endpoint", w->hello.name));
        return -1;
    }
    char host[LIMIT_TEXT_BYTES];
    if (its.host[0])
        addr_format_host(&its, host, sizeof host);
    else
        (void)snprintf(host, sizeof host, "%s", w->address);
    const char *dialler = stage ? replica__at(c, stage - 1)->address : w->address;
    if (addr_is_loopback(host) && !(addr_is_loopback(dialler) && addr_is_loopback(w->address))) {
        lose_to(c, stage,
                core__text(c,
                           "worker %s advertises %s, which %s cannot reach: start it with "
                           "--listen and --advertise HOST:PORT",
                           w->hello.name, host,
                           stage ? replica__at(c, stage - 1)->hello.name : "the coordinator"));
        return -1;
    }
    if (snprintf(ret, size, "tcp://%s:%u", host, its.port) < (int)size) return 0;
    lose_to(c, stage, core__text(c, "worker %s gave too long an endpoint", w->hello.name));
    return -1;
}

static int send_connect(struct core *c, uint32_t stage)
{
    char next[LIMIT_TEXT_BYTES];
    if (stage + 1 == c->cfg.n_stages)
        (void)snprintf(next, sizeof next, "%s", c->results_endpoint);
    else if (dial(c, stage + 1, next, sizeof next) < 0)
        return -1;
    struct msg_to_worker *m = to_worker(c, replica__at(c, stage)->instance, TO_CONNECT);
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
    replica__at(c, 0)->suspect = true;
    replica__link_failed(
        c, 0, core__text(c, "worker %s lost: its data link closed", replica__at(c, 0)->hello.name));
}

/* ---- results ---- */

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
        struct worker *w = replica__at(c, m->timings[i].stage);
        w->heard_ns = w->moved_ns = c->now_ns; /* it has just computed: it lives */
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

/* A result's run is what the Step's run asked for: the same request, and one token of the
 * vocabulary at the right place, with log-probabilities exactly if they are wanted, or an error. */
static bool is_answer(const struct core *c, const struct asked *a, const struct msg_run_result *x)
{
    if (x->request != a->request || x->attempt != a->attempt || x->sample != a->sample || x->dead)
        return false;
    if (x->error && x->error[0]) return true;
    if (x->first_pos != a->first_pos || x->n_tokens != 1 || x->tokens[0] < 0 ||
        (uint32_t)x->tokens[0] >= c->cfg.vocab)
        return false;
    if (!a->logprobs || !x->logprobs.chosen) return !a->logprobs && !x->logprobs.chosen;
    if (x->logprobs.n_top != a->n_top) return false;
    for (uint32_t i = 0; i < a->n_top; i++)
        if (x->logprobs.top_ids[i] < 0 || (uint32_t)x->logprobs.top_ids[i] >= c->cfg.vocab)
            return false;
    return true;
}

/* One for each run that wants a token, in their order. */
static bool is_what_was_asked(const struct core *c, const struct msg_result *m,
                              const struct in_flight *f)
{
    const struct asked *asked = c->asked + f->number % c->cfg.window * LIMIT_STEP_RUNS;
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->n_asked; i++) {
        if (!asked[i].token) continue;
        if (n == m->n_runs || !is_answer(c, &asked[i], &m->runs[n])) return false;
        n++;
    }
    return n == m->n_runs;
}

static void probed(struct core *c, uint64_t digest)
{
    struct replica *r = &c->replica;
    const char *why = verdict__probe(c, digest);
    if (why) {
        replica__lose(c, false, why);
        /* All could load and link: other workers are tried soon, and the wrong one is found. */
        if (r->pause_ns > PROBED_PAUSE_NS) r->pause_ns = PROBED_PAUSE_NS;
        r->retry_ns = c->now_ns + r->pause_ns;
        return;
    }
    enter(c, REPLICA_READY, "");
    r->pause_ns = 0;
    r->lost[0] = 0;
    fleet__ready(c);
    core__note(c, "generation %" PRIu32 " is ready", r->generation);
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
        return false;
    }
    struct in_flight f = r->flight[0];
    uint32_t last = c->cfg.n_stages - 1;
    if (m->number != oldest || r->n_flight == 0) {
        replica__link_failed(c, last + 1,
                             core__text(c, "the result of Step %" PRIu64 " of worker %s is missing",
                                        oldest, replica__at(c, last)->hello.name));
        return false;
    }
    if (!is_what_was_asked(c, m, &f)) {
        lose_to(c, last,
                core__text(c,
                           "the result of Step %" PRIu64 " of worker %s is not what was asked for",
                           oldest, replica__at(c, last)->hello.name));
        return false;
    }
    watch__learn(r, c->now_ns - watch__begun_ns(r, &f), f.work.rows);
    r->moved_ns = c->now_ns;
    learn_cost(c, &f, take_timings(c, m, &f));
    r->n_flight--;
    memmove(&r->flight[0], &r->flight[1], r->n_flight * sizeof r->flight[0]);
    if (r->state != REPLICA_PROBING) return true;
    probed(c, m->digest);
    return false;
}

/* ---- workers ---- */

static void hello(struct core *c, const struct msg_from_worker *m, const char *address)
{
    if (fleet__hello(c, m, address))
        begin(c);
    else /* the table is full: it will say Hello again when it is asked who it is */
        c->dropped++;
}

static void fault(struct core *c, struct worker *w, const struct msg_from_worker *m)
{
    uint32_t stage = replica__stage_of(c, w);
    if (stage == NO_WORKER || !epoch_eq(m->epoch, replica__epoch(c))) return;
    if (!m->downstream) {
        lose_to(c, stage, core__text(c, "worker %s: %s", w->hello.name, m->text));
    } else if (stage + 1 == c->cfg.n_stages) {
        replica__link_failed(
            c, stage + 1,
            core__text(c, "worker %s: the coordinator's end: %s", w->hello.name, m->text));
    } else {
        struct worker *next = replica__at(c, stage + 1);
        next->suspect = true;
        replica__link_failed(c, stage + 1,
                             core__text(c, "worker %s lost: %s, says worker %s", next->hello.name,
                                        m->text, w->hello.name));
    }
}

/* It leaves in order: nobody is to blame, and no request. */
static void goodbye(struct core *c, struct worker *w)
{
    const char *text = core__text(c, "worker %s lost: it said goodbye", w->hello.name);
    if (replica__stage_of(c, w) != NO_WORKER)
        replica__lose(c, false, text);
    else
        core__note_loss(c, "%s", text);
    w->used = false;
}

static void of_this_epoch(struct core *c, struct worker *w, const struct msg_from_worker *m)
{
    if (!epoch_eq(m->epoch, replica__epoch(c)) || replica__stage_of(c, w) == NO_WORKER) {
        c->dropped++;
        return;
    }
    w->knows = true;
    switch (m->type) {
    case FROM_LOAD_PROGRESS:
        if (m->bytes_done != w->load_done) w->loaded_ns = c->now_ns;
        w->load_done = m->bytes_done;
        w->load_total = m->bytes_total;
        break;
    case FROM_READY:
        if (w->ready) { /* said again: its Connect may be lost */
            if (c->replica.state == REPLICA_LINKING && !w->linked)
                (void)send_connect(c, replica__stage_of(c, w));
            break;
        }
        w->ready = true;
        w->hello.holds = true;
        w->hello.holding =
            (struct msg_holding){c->cfg.model_digest, c->replica.first[replica__stage_of(c, w)],
                                 c->replica.last[replica__stage_of(c, w)]};
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
    struct worker *w = fleet__find(c, m->instance);
    if (m->type == FROM_HELLO) {
        hello(c, m, address);
    } else if (!w) {
        if (m->type != FROM_GOODBYE) (void)to_worker(c, m->instance, TO_WHO);
    } else {
        w->heard_ns = c->now_ns;
        w->suspect = false;
        switch (m->type) {
        case FROM_HEARTBEAT: watch__heartbeat(c, w, m); break;
        case FROM_FAULT: fault(c, w, m); break;
        case FROM_GOODBYE: goodbye(c, w); break;
        default: of_this_epoch(c, w, m); break;
        }
    }
}

void replica__tick(struct core *c, uint64_t lost_ns)
{
    watch__tick(c, lost_ns);
    begin(c);
}
