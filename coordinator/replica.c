/* Workers and the replica's generations: who is there, who holds which layers, when it is ready, and
 * what ends it. */
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
#define OVERDUE_FACTOR 5u

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

static struct msg_to_worker *to_worker(struct core *c, struct instance instance, enum to_worker type)
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
    core__note(c, "generation %" PRIu32 " ended: %s", r->generation, why);
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
        core__note(c, "%s", text);
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

/* The next free worker by name, or one that holds the stage's layers already. */
static uint32_t pick(const struct core *c, uint32_t stage, bool must_hold)
{
    uint32_t best = NO_WORKER;
    for (uint32_t i = 0; i < LIMIT_WORKERS; i++) {
        const struct worker *w = &c->workers[i];
        if (!w->used || w->suspect || taken(c, i) || (must_hold && !holds(c, w, stage))) continue;
        if (best == NO_WORKER || strcmp(w->hello.name, c->workers[best].hello.name) < 0) best = i;
    }
    return best;
}

static void assign(struct core *c, uint32_t stage)
{
    struct worker *w = at_stage(c, stage);
    w->ready = w->linked = false;
    w->heartbeat = (struct msg_heartbeat){0};
    w->load_done = w->load_total = 0;
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
    r->n_flight = 0;
    r->state = REPLICA_LOADING;
    (void)snprintf(r->why, sizeof r->why, "workers are loading");
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

/* "tcp://HOST:PORT" as stage's upstream neighbour must dial it: the worker may leave HOST empty, and
 * is then where the coordinator sees it. */
static int dial(struct core *c, uint32_t stage, char *ret, size_t size)
{
    const struct worker *w = at_stage(c, stage);
    const char *rest = strncmp(w->endpoint, "tcp://", 6) == 0 ? w->endpoint + 6 : "";
    const char *colon = strrchr(rest, ':');
    if (!colon) {
        lose(c, core__text(c, "worker %s gave no data endpoint", w->hello.name));
        return -1;
    }
    char host[LIMIT_NAME_BYTES];
    if (colon == rest)
        (void)snprintf(host, sizeof host, "%s", w->address);
    else
        (void)snprintf(host, sizeof host, "%.*s", (int)(colon - rest), rest);
    const char *dialler = stage ? at_stage(c, stage - 1)->address : w->address;
    if (addr_is_loopback(host) && !addr_is_loopback(dialler)) {
        lose(c, core__text(c, "worker %s advertises %s, which %s cannot reach: start it with "
                           "--advertise HOST:PORT", w->hello.name, host,
                           stage ? at_stage(c, stage - 1)->hello.name : "the coordinator"));
        return -1;
    }
    (void)snprintf(ret, size, "tcp://%s%s", host, colon);
    return 0;
}

static void link_stages(struct core *c)
{
    struct replica *r = &c->replica;
    if (r->state != REPLICA_LOADING || !all(c, false)) return;
    r->state = REPLICA_LINKING;
    (void)snprintf(r->why, sizeof r->why, "stages are being linked");
    char *endpoint = core__alloc(c, LIMIT_TEXT_BYTES);
    if (dial(c, 0, endpoint, LIMIT_TEXT_BYTES) < 0) return;
    for (uint32_t i = 0; i < c->cfg.n_stages; i++) {
        char next[LIMIT_TEXT_BYTES];
        if (i + 1 == c->cfg.n_stages)
            (void)snprintf(next, sizeof next, "%s", c->results_endpoint);
        else if (dial(c, i + 1, next, sizeof next) < 0)
            return;
        struct msg_to_worker *m = to_worker(c, at_stage(c, i)->instance, TO_CONNECT);
        memcpy(m->text, next, sizeof m->text);
    }
    struct action *a = core__act(c, ACT_LINK_OPEN);
    a->link.epoch = replica__epoch(c);
    a->link.endpoint = endpoint;
}

static void probe_when_linked(struct core *c)
{
    struct replica *r = &c->replica;
    if (r->state != REPLICA_LINKING || !r->link_up || !all(c, true)) return;
    r->state = REPLICA_PROBING;
    (void)snprintf(r->why, sizeof r->why, "a probe token is on its way");
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

static void learn_speed(struct replica *r, uint64_t took_ns, uint32_t rows)
{
    uint64_t ns_per_row = took_ns / rows;
    if (ns_per_row > r->ns_per_row)
        r->ns_per_row = ns_per_row;
    else
        r->ns_per_row -= (r->ns_per_row - ns_per_row) / 16; /* one slow Step is forgotten in time */
}

bool replica__result(struct core *c, const struct msg_result *m)
{
    struct replica *r = &c->replica;
    if (!epoch_eq(m->epoch, replica__epoch(c)) || r->state < REPLICA_PROBING) {
        c->dropped++;
        return false;
    }
    uint32_t i = 0;
    while (i < r->n_flight && r->flight[i].number != m->number) i++;
    if (i == r->n_flight) {
        c->dropped++;
        return MUTATED(RESULT_BY_COUNT);
    }
    learn_speed(r, c->now_ns - begun_ns(r, &r->flight[i]), r->flight[i].rows);
    r->moved_ns = c->now_ns;
    r->n_flight--;
    memmove(&r->flight[i], &r->flight[i + 1], (r->n_flight - i) * sizeof r->flight[0]);
    if (r->state != REPLICA_PROBING) return true;
    if (r->has_digest && r->digest != m->digest) {
        lose(c, "the probe's logits differ from the first generation's");
        return false;
    }
    r->has_digest = true;
    r->digest = m->digest;
    r->state = REPLICA_READY;
    r->pause_ns = 0;
    r->why[0] = 0;
    core__note(c, "generation %" PRIu32 " is ready", r->generation);
    return false;
}

/* ---- workers ---- */

static void hello(struct core *c, const struct msg_from_worker *m, const char *address)
{
    struct worker *w = find(c, m->instance);
    for (uint32_t i = 0; i < LIMIT_WORKERS && !w; i++)
        if (!c->workers[i].used) w = &c->workers[i];
    if (!w) {
        struct msg_to_worker *refuse = to_worker(c, m->instance, TO_REFUSE);
        (void)snprintf(refuse->text, sizeof refuse->text, "%u workers are known, the limit",
                       LIMIT_WORKERS);
        return;
    }
    bool known = w->used;
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
    if (m->downstream && stage + 1 < c->cfg.n_stages) {
        struct worker *next = at_stage(c, stage + 1);
        next->suspect = true;
        lose(c, core__text(c, "worker %s lost: %s", next->hello.name, m->text));
    } else
        lose(c, core__text(c, "worker %s: %s", w->hello.name, m->text));
}

static void heartbeat(struct core *c, struct worker *w, const struct msg_from_worker *m)
{
    if (m->has_epoch && epoch_eq(m->epoch, replica__epoch(c))) w->heartbeat = m->heartbeat;
}

static void of_this_epoch(struct core *c, struct worker *w, const struct msg_from_worker *m)
{
    if (!epoch_eq(m->epoch, replica__epoch(c)) || stage_of(c, w) == NO_WORKER) {
        c->dropped++;
        return;
    }
    switch (m->type) {
    case FROM_LOAD_PROGRESS:
        w->load_done = m->bytes_done;
        w->load_total = m->bytes_total;
        break;
    case FROM_READY:
        w->ready = true;
        w->hello.holds = true;
        w->hello.holding = (struct msg_holding){c->cfg.model_digest,
                                                c->replica.first[stage_of(c, w)],
                                                c->replica.last[stage_of(c, w)]};
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
            lose(c, core__text(c, "Step %" PRIu64 " is overdue at worker %s", number,
                               w->hello.name));
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
    uint64_t limit = f->rows * r->ns_per_row * OVERDUE_FACTOR;
    if (r->state == REPLICA_PROBING) limit = PROBE_MOST_NS; /* nothing is known of its speed yet */
    if (limit < c->cfg.step_timeout_ns) limit = c->cfg.step_timeout_ns;
    if (c->now_ns >= begun_ns(r, f) + limit) blame(c, f->number);
}

void replica__tick(struct core *c, uint64_t lost_ns)
{
    for (uint32_t i = 0; i < LIMIT_WORKERS; i++) c->workers[i].heard_ns += lost_ns;
    for (uint32_t i = 0; i < c->replica.n_flight; i++) c->replica.flight[i].issued_ns += lost_ns;
    c->replica.moved_ns += lost_ns;
    for (uint32_t i = 0; i < LIMIT_WORKERS; i++) {
        struct worker *w = &c->workers[i];
        if (w->used && c->now_ns >= w->heard_ns + c->cfg.worker_timeout_ns)
            lose_worker(c, w, core__text(c, "silent for %" PRIu64 " ms",
                                         (c->now_ns - w->heard_ns) / NS_PER_MS));
    }
    check_overdue(c);
    begin(c);
}
