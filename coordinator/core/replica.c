/* A replica's generations: how one begins, when it is ready, and what ends it. fleet.c knows the
 * workers, flight.c the Steps. */
#include "coordinator/core/core_state.h"

#include "common/base/addr.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define PAUSE_FIRST_NS (100 * NS_PER_MS)
#define PAUSE_MOST_NS (10 * NS_PER_S)
#define FAILED_MOST 16u                /* generations in a row that are counted */
#define PROBED_PAUSE_NS (2 * NS_PER_S) /* at the most, where only the probe's digest was wrong */
#define LINK_MOST_NS (5 * NS_PER_S)    /* a link that is not up by then will not be */
#define HUNG_NS (10 * NS_PER_S)        /* a compute thread without a move does not take an Assign */
#define LOAD_STILL_NS (120 * NS_PER_S) /* loading without a sign of progress */
#define ASK_AGAIN_NS (1 * NS_PER_S)    /* an Assign that nobody speaks of is sent again */

/* "a", "b", ... "z", "aa", "ab", ... */
static void make_name(uint32_t id, char *ret)
{
    char reversed[8];
    uint32_t n = 0;
    for (uint64_t left = (uint64_t)id + 1; left; left = (left - 1) / 26)
        reversed[n++] = (char)('a' + (left - 1) % 26);
    for (uint32_t i = 0; i < n; i++) ret[i] = reversed[n - 1 - i];
    ret[n] = 0;
}

void replica__open(struct core *c, struct replica *r, uint32_t id)
{
    const struct core_config *cfg = &c->cfg;
    r->id = id;
    make_name(id, r->name);
    r->n_stages = r->stages_wanted = cfg->chains ? cfg->chains[id] : cfg->n_stages;
    for (uint32_t i = 0; i < cfg->n_wishes; i++) r->named |= cfg->wishes[i].replica == id;
    for (uint32_t i = 0; i < LIMIT_STAGES; i++) r->stage[i] = NO_WORKER;
    r->running = mem_zalloc(cfg->max_live * sizeof *r->running);
    r->queued = mem_zalloc(cfg->max_live * sizeof *r->queued);
    r->closed = mem_zalloc(2 * cfg->max_live * sizeof *r->closed);
    r->flight.asked = mem_zalloc((size_t)cfg->window * LIMIT_STEP_RUNS * sizeof *r->flight.asked);
    room__set_pages(c, r, c->layer_bytes ? 0 : cfg->n_pages); /* or when the first plan is made */
    (void)snprintf(r->why, sizeof r->why, "waiting for %u worker%s", r->n_stages,
                   r->n_stages == 1 ? "" : "s");
}

void replica__close(struct replica *r)
{
    room__drop_pages(r);
    mem_free(r->running);
    mem_free(r->queued);
    mem_free(r->closed);
    mem_free(r->flight.asked);
}

struct epoch replica__epoch(const struct core *c, const struct replica *r)
{
    return (struct epoch){c->cfg.incarnation, r->id, r->generation};
}

struct replica *replica__of(struct core *c, struct epoch epoch)
{
    if (epoch.replica >= c->cfg.n_replicas) return NULL;
    struct replica *r = &c->replicas[epoch.replica];
    return epoch_eq(epoch, replica__epoch(c, r)) ? r : NULL;
}

struct worker *replica__at(struct core *c, const struct replica *r, uint32_t stage)
{
    CHECK(r->stage[stage] != NO_WORKER);
    return &c->workers[r->stage[stage]];
}

struct msg_to_worker *replica__to_worker(struct core *c, struct instance instance,
                                         enum to_worker type)
{
    struct msg_to_worker *m = core__alloc(c, sizeof *m);
    *m = (struct msg_to_worker){.version = PROTO_VERSION, .type = type};
    struct action *a = core__act(c, ACT_TO_WORKER);
    a->to_worker.instance = instance;
    a->to_worker.msg = m;
    return m;
}

static struct msg_to_worker *to_stage(struct core *c, const struct replica *r, uint32_t stage,
                                      enum to_worker type)
{
    struct msg_to_worker *m = replica__to_worker(c, replica__at(c, r, stage)->instance, type);
    m->epoch = replica__epoch(c, r);
    return m;
}

/* Its present or last generation, for the log. */
static const char *generation_of(struct core *c, const struct replica *r)
{
    return core__text(c, "%sgeneration %" PRIu32, core__of_replica(c, r), r->generation);
}

/* The only moves are those to the next state; an end leads back. */
static void enter(const struct core *c, struct replica *r, enum replica_state state,
                  const char *why)
{
    CHECK(state == r->state + 1);
    r->state = state;
    r->since_ns = c->now_ns;
    (void)snprintf(r->why, sizeof r->why, "%s", why);
}

/* ---- the end of a generation ---- */

static void end(struct core *c, struct replica *r, bool suspicious, const char *why)
{
    (void)snprintf(r->why, sizeof r->why, "%s", why);
    (void)snprintf(r->lost, sizeof r->lost, "%s", why);
    r->state = REPLICA_WAITING;
    r->waits_ns = c->now_ns;
    r->link_up = false;
    fleet__dismiss(c, r);
    r->n_stages = r->stages_wanted;
    router__lost(c, r);
    core__act(c, ACT_LINK_CLOSE)->link.epoch = replica__epoch(c, r);
    request__generation_lost(c, r, suspicious, why);
    flight__end(c, r);
}

void replica__lose(struct core *c, struct replica *r, bool suspicious, const char *why)
{
    if (r->state == REPLICA_WAITING) return;
    core__note_loss(c, "%s ended: %s", generation_of(c, r), why);
    if (r->state >= REPLICA_READY)
        r->new_failed = 0;
    else if (r->with_new && r->new_failed < FAILED_MOST)
        r->new_failed++;
    if (r->state >= REPLICA_READY || r->pause_ns == 0)
        r->pause_ns = PAUSE_FIRST_NS;
    else if (r->pause_ns < PAUSE_MOST_NS)
        r->pause_ns *= 2;
    r->retry_ns = c->now_ns + r->pause_ns;
    end(c, r, suspicious, why);
}

void replica__end(struct core *c, struct replica *r, const char *why)
{
    CHECK(r->state != REPLICA_WAITING);
    core__note(c, "%s ended: %s", generation_of(c, r), why);
    r->retry_ns = c->now_ns;
    end(c, r, false, why);
    r->waits_ns = 1; /* nobody was lost: spares need not wait for those whom the file names */
}

void replica__drain(struct core *c, struct replica *r, uint64_t limit_ns, const char *why)
{
    uint64_t until_ns = c->now_ns + limit_ns;
    CHECK(r->state >= REPLICA_READY);
    if (r->state == REPLICA_DRAINING) {
        if (until_ns < r->drained_ns) r->drained_ns = until_ns;
        return;
    }
    enter(c, r, REPLICA_DRAINING, why);
    r->drained_ns = until_ns;
    core__note(c, "%s drains: %s", generation_of(c, r), why);
    router__lost(c, r);
    for (uint32_t i = 0, before; i < r->n_queued; i += r->n_queued == before) {
        before = r->n_queued;
        router__send(c, &c->requests[r->queued[i]]);
    }
}

void replica__lose_to(struct core *c, struct worker *w, const char *why)
{
    CHECK(w->replica != NULL);
    fleet__blame(c, w, why);
    replica__lose(c, w->replica, true, why);
}

static void lose_to(struct core *c, struct replica *r, uint32_t stage, const char *why)
{
    replica__lose_to(c, replica__at(c, r, stage), why);
}

void replica__link_failed(struct core *c, struct replica *r, uint32_t stage, bool broke,
                          const char *why)
{
    if (stage == 0 || stage == r->n_stages) /* no other coordinator could be tried */
        fleet__blame(c, replica__at(c, r, stage ? stage - 1 : 0), why);
    else
        fleet__doubt(c, replica__at(c, r, stage - 1), replica__at(c, r, stage), why);
    replica__lose(c, r, broke, why);
}

/* ---- the beginning of one ---- */

static void send_assign(struct core *c, const struct replica *r, uint32_t stage)
{
    replica__at(c, r, stage)->assigned_ns = c->now_ns;
    struct msg_assign *a = &to_stage(c, r, stage, TO_ASSIGN)->assign;
    (void)snprintf(a->model_path, sizeof a->model_path, "%s", c->model_path);
    a->model_digest = c->cfg.model_digest;
    a->layer_first = r->first[stage];
    a->layer_last = r->last[stage];
    a->kv_type = c->cfg.kv_type;
    a->n_pages = r->n_pages;
    a->n_window_pages = r->n_windowed;
    a->ctx = r->ctx;
    a->threads = replica__at(c, r, stage)->wish ? replica__at(c, r, stage)->wish->threads : 0;
    a->rows_max = c->cfg.rows_max;
    a->logits_max = c->cfg.logits_max;
    a->window = c->cfg.window;
    a->plaintext = c->cfg.plaintext;
    a->upstream = stage ? replica__at(c, r, stage - 1)->key : c->cfg.key;
}

static void assign(struct core *c, const struct replica *r, uint32_t stage)
{
    struct worker *w = replica__at(c, r, stage);
    w->ready = w->linked = w->knows = false;
    w->heartbeat = (struct msg_heartbeat){0};
    w->load_done = w->load_total = w->compute_ns = w->idle_ns = 0;
    w->predicted_ns = w->timed_steps = 0;
    w->loaded_ns = w->passed_ns = c->now_ns;
    w->doubt = NO_WORKER;
    send_assign(c, r, stage);
}

void replica__begin(struct core *c, struct replica *r)
{
    r->generation = ++c->generations;
    r->with_new = fleet__any_new(c, r);
    r->began_ns = c->now_ns;
    r->replan_tries += r->replans;
    r->prefilled = 0;
    flight__begin(&r->flight);
    enter(c, r, REPLICA_LOADING, "workers are loading");
    core__note(c, "%s begins with %" PRIu32 " worker%s", generation_of(c, r), r->n_stages,
               r->n_stages == 1 ? "" : "s");
    for (uint32_t i = 0; i < r->n_stages; i++) assign(c, r, i);
}

static bool all(struct core *c, const struct replica *r, bool linked)
{
    for (uint32_t i = 0; i < r->n_stages; i++)
        if (!(linked ? replica__at(c, r, i)->linked : replica__at(c, r, i)->ready)) return false;
    return true;
}

/* "tcp://HOST:PORT" as stage's upstream neighbour must dial it: the worker may leave HOST empty,
 * and is then where the coordinator sees it. */
static int dial(struct core *c, struct replica *r, uint32_t stage, char *ret, size_t size)
{
    const struct worker *w = replica__at(c, r, stage);
    struct addr its;
    if (!addr_split(w->endpoint, &its) || its.port == 0) {
        lose_to(c, r, stage, core__text(c, "worker %s gave no data endpoint", w->hello.name));
        return -1;
    }
    char host[LIMIT_TEXT_BYTES];
    if (its.host[0])
        addr_format_host(&its, host, sizeof host);
    else
        (void)snprintf(host, sizeof host, "%s", w->address);
    const char *dialler = stage ? replica__at(c, r, stage - 1)->address : w->address;
    if (addr_is_loopback(host) && !(addr_is_loopback(dialler) && addr_is_loopback(w->address))) {
        lose_to(c, r, stage,
                core__text(c,
                           "worker %s advertises %s, which %s cannot reach: start it with "
                           "--listen and --advertise HOST:PORT",
                           w->hello.name, host,
                           stage ? replica__at(c, r, stage - 1)->hello.name : "the coordinator"));
        return -1;
    }
    if (snprintf(ret, size, "tcp://%s:%u", host, its.port) < (int)size) return 0;
    lose_to(c, r, stage, core__text(c, "worker %s gave too long an endpoint", w->hello.name));
    return -1;
}

static int send_connect(struct core *c, struct replica *r, uint32_t stage)
{
    char next[LIMIT_TEXT_BYTES];
    if (stage + 1 == r->n_stages)
        (void)snprintf(next, sizeof next, "%s", c->results_endpoint);
    else if (dial(c, r, stage + 1, next, sizeof next) < 0)
        return -1;
    struct msg_to_worker *m = to_stage(c, r, stage, TO_CONNECT);
    memcpy(m->text, next, sizeof m->text);
    m->key = stage + 1 == r->n_stages ? c->cfg.key : replica__at(c, r, stage + 1)->key;
    return 0;
}

static void link_stages(struct core *c, struct replica *r)
{
    if (r->state != REPLICA_LOADING || !all(c, r, false)) return;
    enter(c, r, REPLICA_LINKING, "stages are being linked");
    char *endpoint = core__alloc(c, LIMIT_TEXT_BYTES);
    if (dial(c, r, 0, endpoint, LIMIT_TEXT_BYTES) < 0) return;
    for (uint32_t i = 0; i < r->n_stages; i++)
        if (send_connect(c, r, i) < 0) return;
    struct action *a = core__act(c, ACT_LINK_OPEN);
    a->link.epoch = replica__epoch(c, r);
    a->link.endpoint = endpoint;
    a->link.key = replica__at(c, r, 0)->key;
}

static void probe_when_linked(struct core *c, struct replica *r)
{
    if (r->state != REPLICA_LINKING || !r->link_up || !all(c, r, true)) return;
    enter(c, r, REPLICA_PROBING, "a probe token is on its way");
    sched__probe(c, r);
}

void replica__link(struct core *c, struct epoch epoch, bool up)
{
    struct replica *r = replica__of(c, epoch);
    if (!r || r->state < REPLICA_LINKING) return;
    r->link_up = up;
    if (up) {
        probe_when_linked(c, r);
        return;
    }
    struct worker *first = replica__at(c, r, 0);
    first->suspect = true;
    fleet__presume_dead(c, first);
    replica__link_failed(c, r, 0, true,
                         core__text(c, "worker %s lost: its data link closed", first->hello.name));
}

void replica__probed(struct core *c, struct replica *r, uint64_t digest)
{
    const char *why = verdict__probe(c, r, digest);
    if (why) {
        replica__lose(c, r, false, why);
        /* All could load and link: other workers are tried soon, and the wrong one is found. */
        if (r->pause_ns > PROBED_PAUSE_NS) r->pause_ns = PROBED_PAUSE_NS;
        r->retry_ns = c->now_ns + r->pause_ns;
        return;
    }
    enter(c, r, REPLICA_READY, "");
    r->pause_ns = 0;
    r->lost[0] = 0;
    r->replans = false;
    fleet__ready(c, r);
    core__note(c, "%s is ready", generation_of(c, r));
    router__ready(c, r);
    router__send_all(c);
}

/* ---- beginnings that stand still ---- */

/* False: the worker does not load, and the generation is over. */
static bool check_load(struct core *c, const struct replica *r, uint32_t stage)
{
    struct worker *w = replica__at(c, r, stage);
    if (w->ready) return true;
    if (!w->knows && c->now_ns - r->since_ns >= HUNG_NS && c->now_ns - w->moved_ns >= HUNG_NS) {
        replica__lose_to(c, w,
                         core__text(c,
                                    "worker %s does not take its layers: its compute thread hangs",
                                    w->hello.name));
        return false;
    }
    if (c->now_ns - w->loaded_ns < LOAD_STILL_NS) return true;
    replica__lose_to(c, w, core__text(c, "worker %s does not load its layers", w->hello.name));
    return false;
}

static void check_links(struct core *c, struct replica *r)
{
    if (c->now_ns - r->since_ns < LINK_MOST_NS) return;
    if (!r->link_up) {
        replica__link_failed(c, r, 0, false,
                             core__text(c, "the coordinator does not reach worker %s",
                                        replica__at(c, r, 0)->hello.name));
        return;
    }
    for (uint32_t i = 0; i < r->n_stages; i++) {
        const char *name = replica__at(c, r, i)->hello.name;
        if (replica__at(c, r, i)->linked) continue;
        if (i + 1 < r->n_stages)
            replica__link_failed(c, r, i + 1, false,
                                 core__text(c, "worker %s does not reach worker %s", name,
                                            replica__at(c, r, i + 1)->hello.name));
        else
            replica__link_failed(c, r, i + 1, false,
                                 core__text(c, "worker %s does not reach the coordinator", name));
        return;
    }
}

/* A generation that does not get up: what was lost on the way is sent again, what does not move is
 * given up. */
static void check_beginning(struct core *c, struct replica *r)
{
    if (r->state != REPLICA_LOADING && r->state != REPLICA_LINKING) return;
    for (uint32_t i = 0; i < r->n_stages; i++) {
        const struct worker *w = replica__at(c, r, i);
        if (!w->knows && c->now_ns - w->assigned_ns >= ASK_AGAIN_NS) send_assign(c, r, i);
    }
    for (uint32_t i = 0; i < r->n_stages && r->state == REPLICA_LOADING; i++)
        if (!check_load(c, r, i)) return;
    if (r->state == REPLICA_LINKING) check_links(c, r);
}

/* ---- workers ---- */

static void hello(struct core *c, const struct msg_from_worker *m, const char *address,
                  const struct key *key)
{
    if (fleet__hello(c, m, address, key))
        planner__begin(c);
    else /* the table is full: it will say Hello again when it is asked who it is */
        c->dropped++;
}

static void fault(struct core *c, struct worker *w, const struct msg_from_worker *m)
{
    struct replica *r = w->replica;
    uint32_t stage = w->stage;
    if (!r || !epoch_eq(m->epoch, replica__epoch(c, r))) return;
    if (!m->downstream) {
        lose_to(c, r, stage, core__text(c, "worker %s: %s", w->hello.name, m->text));
    } else if (stage + 1 == r->n_stages) {
        replica__link_failed(
            c, r, stage + 1, false,
            core__text(c, "worker %s: the coordinator's end: %s", w->hello.name, m->text));
    } else {
        struct worker *next = replica__at(c, r, stage + 1);
        next->suspect = true;
        fleet__presume_dead(c, next);
        replica__link_failed(c, r, stage + 1, true,
                             core__text(c, "worker %s lost: %s, says worker %s", next->hello.name,
                                        m->text, w->hello.name));
    }
}

/* It leaves in order: nobody is to blame, and no request. */
static void goodbye(struct core *c, struct worker *w)
{
    const char *text = core__text(c, "worker %s lost: it said goodbye", w->hello.name);
    if (w->replica)
        replica__lose(c, w->replica, false, text);
    else if (w->leaves)
        core__note(c, "worker %s has left, as ordered", w->hello.name);
    else
        core__note_loss(c, "%s", text);
    w->used = false;
}

static void of_this_epoch(struct core *c, struct worker *w, const struct msg_from_worker *m)
{
    struct replica *r = w->replica;
    if (!r || !epoch_eq(m->epoch, replica__epoch(c, r))) {
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
            if (r->state == REPLICA_LINKING && !w->linked) (void)send_connect(c, r, w->stage);
            break;
        }
        w->ready = true;
        w->hello.holds = true;
        w->hello.holding =
            (struct msg_holding){c->cfg.model_digest, r->first[w->stage], r->last[w->stage]};
        memcpy(w->endpoint, m->endpoint, sizeof w->endpoint);
        link_stages(c, r);
        break;
    case FROM_LINKED:
        w->linked = true;
        probe_when_linked(c, r);
        break;
    default: break;
    }
}

void replica__from_worker(struct core *c, const struct msg_from_worker *m, const char *address,
                          const struct key *key)
{
    if (m->version != PROTO_VERSION) {
        struct msg_to_worker *refuse = replica__to_worker(c, m->instance, TO_REFUSE);
        (void)snprintf(refuse->text, sizeof refuse->text,
                       "the coordinator speaks protocol version %u, this worker %" PRIu32,
                       PROTO_VERSION, m->version);
        c->dropped++;
        return;
    }
    struct worker *w = fleet__find(c, m->instance);
    if (w && !key_eq(&w->key, key)) { /* another worker says that it is this one */
        c->dropped++;
        return;
    }
    fleet__spoke(c, m->instance);
    if (m->type == FROM_HELLO) {
        hello(c, m, address, key);
    } else if (!w) {
        if (m->type != FROM_GOODBYE) (void)replica__to_worker(c, m->instance, TO_WHO);
    } else {
        w->heard_ns = c->now_ns;
        w->suspect = false;
        switch (m->type) {
        case FROM_HEARTBEAT: fleet__heartbeat(c, w, m); break;
        case FROM_FAULT: fault(c, w, m); break;
        case FROM_SPEED: fleet__speed(c, w, m); break;
        case FROM_GOODBYE: goodbye(c, w); break;
        default: of_this_epoch(c, w, m); break;
        }
    }
}

void replica__tick(struct core *c, uint64_t lost_ns)
{
    fleet__tick(c, lost_ns);
    for (uint32_t i = 0; i < c->cfg.n_replicas; i++) {
        struct replica *r = &c->replicas[i];
        flight__forgive(c, &r->flight, lost_ns);
        fleet__forgive(c, &r->since_ns, lost_ns);
        fleet__forgive(c, &r->replan_since_ns, lost_ns);
        if (r->short_ns) fleet__forgive(c, &r->short_ns, lost_ns);
        if (r->waits_ns) fleet__forgive(c, &r->waits_ns, lost_ns);
        flight__check_overdue(c, r);
        check_beginning(c, r);
        fleet__served(c, r);
    }
    order__tick(c);
    planner__begin(c);
}
