/* The workers that are known, when one is silent for too long, what is remembered of their names,
 * and so who is planned with first.
 *
 * Faults belong to a worker's name: a worker that crashes and is started again is the same risk. A
 * certain fault counts two, a suspicion (one of the two ends of a link) one, and each minute of
 * service takes one and a quarter of the rest away. A plan takes the workers with the fewest
 * faults; a name that never served counts like one with a suspicion, so that a stranger comes last
 * and is still tried before a worker that failed for certain. Only among equals does it matter who
 * holds a stage's layers already.
 *
 * A worker that is to blame FLEET_LOSSES times in ten minutes is held down: it is not planned with
 * for a while, which doubles each time. So it is tried again for ever, but never in a tight loop.
 */
#include "coordinator/core/core_state.h"

#include "common/base/check.h"
#include "common/base/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define CERTAIN 2u
#define FAULTS_MOST 64u /* so many that of several bad workers the worst is still told apart */
#define WINDOW_NS (600 * NS_PER_S) /* of the losses that hold a worker down */
#define HOLD_FIRST_NS (2 * NS_PER_S)
#define HOLD_MOST_NS (30 * NS_PER_S) /* so that a request may still wait for it */
#define SERVED_NS (60 * NS_PER_S)    /* of service, for one fault less */
#define UNHEARD_NS (500 * NS_PER_MS) /* two heartbeats: such a stranger may lose its entry */
/* A worker that dies is heard of once more at the most: a heartbeat that was on its way. */
#define LAST_WORDS_NS (500 * NS_PER_MS)
#define ASK_AGAIN_NS (5 * NS_PER_S)   /* a Calibrate that nobody answers is sent again */
#define SPEED_MOST_NS (30 * NS_PER_S) /* since it joined: then it is planned with unmeasured */

/* ---- names ---- */

static bool in_use(const struct core *c, uint32_t record)
{
    for (uint32_t i = 0; i < c->cfg.max_workers; i++)
        if (c->workers[i].used && c->workers[i].record == record) return true;
    return false;
}

/* Whether a is given up before b: free ones first, then names that never served, then those that
 * were not seen for longest. */
static bool goes_first(const struct record *a, const struct record *b)
{
    if (!a->name[0] || !b->name[0]) return !a->name[0];
    return a->proven != b->proven ? b->proven : a->seen_ns < b->seen_ns;
}

/* There are more records than workers: one that no worker uses is always found. */
static uint32_t record_of(struct core *c, const char *name)
{
    uint32_t at = c->n_records;
    for (uint32_t i = 0; i < c->n_records; i++)
        if (c->records[i].name[0] && strcmp(c->records[i].name, name) == 0) return i;
    bool *taken = core__alloc(c, c->n_records * sizeof *taken);
    memset(taken, 0, c->n_records * sizeof *taken);
    for (uint32_t i = 0; i < c->cfg.max_workers; i++)
        if (c->workers[i].used) taken[c->workers[i].record] = true;
    for (uint32_t i = 0; i < c->n_records; i++) {
        if (at < c->n_records && !goes_first(&c->records[i], &c->records[at])) continue;
        if (!taken[i]) at = i;
        if (at == i && !c->records[i].name[0]) break;
    }
    CHECK(at < c->n_records);
    c->records[at] = (struct record){.held_until_ns = 0};
    (void)snprintf(c->records[at].name, sizeof c->records[at].name, "%s", name);
    return at;
}

static void add_faults(struct record *x, uint32_t n, const char *why)
{
    x->faults = x->faults + n < FAULTS_MOST ? x->faults + n : FAULTS_MOST;
    (void)snprintf(x->why, sizeof x->why, "%s", why);
}

static void hold_down(struct core *c, struct record *x)
{
    x->hold_ns = x->hold_ns == 0                 ? HOLD_FIRST_NS
                 : x->hold_ns * 2 < HOLD_MOST_NS ? x->hold_ns * 2
                                                 : HOLD_MOST_NS;
    x->held_until_ns = c->now_ns + x->hold_ns;
    if (x->held_until_ns > c->held_until_ns) c->held_until_ns = x->held_until_ns;
    core__note_loss(c, "worker %s is held down for %" PRIu64 " s: to blame %u times in ten minutes",
                    x->name, x->hold_ns / NS_PER_S, FLEET_LOSSES);
}

static void count_loss(struct core *c, struct record *x)
{
    memmove(x->lost_ns + 1, x->lost_ns, (FLEET_LOSSES - 1) * sizeof *x->lost_ns);
    x->lost_ns[0] = c->now_ns;
    if (x->n_lost < FLEET_LOSSES) x->n_lost++;
    if (x->n_lost == FLEET_LOSSES && c->now_ns - x->lost_ns[FLEET_LOSSES - 1] < WINDOW_NS)
        hold_down(c, x);
}

void fleet__blame(struct core *c, struct worker *w, const char *why)
{
    struct record *x = &c->records[w->record];
    add_faults(x, CERTAIN, why);
    count_loss(c, x);
}

void fleet__blame_name(struct core *c, const char *name, bool certain, const char *why)
{
    struct record *x = &c->records[record_of(c, name)];
    add_faults(x, certain ? CERTAIN : 1, why);
    if (certain) count_loss(c, x);
}

void fleet__doubt(struct core *c, struct worker *from, struct worker *to, const char *why)
{
    struct worker *ends[] = {from, to};
    for (int i = 0; i < 2; i++) {
        add_faults(&c->records[ends[i]->record], 1, why);
        ends[i]->doubt = ends[1 - i]->record;
        ends[i]->doubted_ns = c->now_ns;
    }
}

/* Instances are drawn at random. */
static uint64_t key_of(struct instance instance)
{
    return instance.hi ^ instance.lo << 1;
}

void fleet__presume_dead(struct core *c, const struct worker *w)
{
    CHECK(w->replica != NULL && w->replica->generation > 0);
    uint32_t at = c->n_dead++ % c->n_dead_most;
    struct presumed *x = &c->dead[at];
    const uint32_t *known = imap_get(&c->dead_by, key_of(x->instance));
    if (known && *known == at) imap_remove(&c->dead_by, key_of(x->instance));
    *x = (struct presumed){
        .instance = w->instance, .generation = w->replica->generation, .since_ns = c->now_ns};
    imap_put(&c->dead_by, key_of(w->instance), at);
}

void fleet__spoke(struct core *c, struct instance instance)
{
    const uint32_t *at = imap_get(&c->dead_by, key_of(instance));
    struct presumed *x = at ? &c->dead[*at] : NULL;
    if (!x || !instance_eq(x->instance, instance) || c->now_ns <= x->since_ns + LAST_WORDS_NS)
        return;
    request__pardon(c, x->generation);
    imap_remove(&c->dead_by, key_of(instance));
    x->generation = 0;
}

/* A worker is silent for good: if its link broke just before, the fault is its alone. False: it was
 * not in doubt. */
static bool settle_doubt(struct core *c, struct worker *w, const char *why)
{
    if (w->doubt == NO_WORKER || w->heard_ns > w->doubted_ns + LAST_WORDS_NS) return false;
    struct record *mine = &c->records[w->record], *other = &c->records[w->doubt];
    add_faults(mine, CERTAIN - 1, why);
    count_loss(c, mine);
    if (other->faults) other->faults--;
    w->doubt = NO_WORKER;
    return true;
}

void fleet__ready(struct core *c, struct replica *r)
{
    r->served_ns = c->now_ns;
    for (uint32_t i = 0; i < r->n_stages; i++) {
        c->records[replica__at(c, r, i)->record].proven = true;
        replica__at(c, r, i)->namesake = false;
    }
}

void fleet__served(struct core *c, struct replica *r)
{
    if (r->state < REPLICA_READY || c->now_ns - r->served_ns < SERVED_NS) return;
    r->served_ns = c->now_ns;
    for (uint32_t i = 0; i < r->n_stages; i++) {
        struct record *x = &c->records[replica__at(c, r, i)->record];
        x->faults -= x->faults ? 1 + x->faults / 4 : 0;
        if (x->faults == 0) x->hold_ns = 0;
    }
}

void fleet__held(const struct core *c, const char *told, char *ret, size_t size)
{
    size_t n = 0;
    ret[0] = 0;
    if (c->now_ns >= c->held_until_ns) return; /* nobody is; with many workers a long list */
    for (uint32_t i = 0; i < c->n_records && n < size; i++) {
        const struct record *x = &c->records[i];
        if (!x->name[0] || c->now_ns >= x->held_until_ns || !in_use(c, i)) continue;
        uint64_t left_s = (x->held_until_ns - c->now_ns + NS_PER_S - 1) / NS_PER_S;
        bool again = strcmp(x->why, told) == 0;
        n += (size_t)snprintf(ret + n, size - n,
                              "%sworker %s is held down for %" PRIu64
                              " s more: to blame %u times in ten minutes%s%.160s",
                              n ? "; " : "", x->name, left_s, FLEET_LOSSES,
                              again ? "" : ", at last: ", again ? "" : x->why);
    }
}

/* ---- workers ---- */

struct worker *fleet__find(struct core *c, struct instance instance)
{
    for (uint32_t i = 0; i < c->cfg.max_workers; i++)
        if (c->workers[i].used && instance_eq(c->workers[i].instance, instance))
            return &c->workers[i];
    return NULL;
}

/* Whether a name is known to have served. */
static bool proven(const struct core *c, const char *name)
{
    for (uint32_t i = 0; i < c->n_records; i++)
        if (strcmp(c->records[i].name, name) == 0) return c->records[i].proven;
    return false;
}

/* Whether another process that is alive has its name. */
static bool has_namesake(const struct core *c, const struct worker *w)
{
    for (uint32_t i = 0; i < c->cfg.max_workers; i++) {
        const struct worker *x = &c->workers[i];
        if (x != w && x->used && !x->suspect && x->record == w->record) return true;
    }
    return false;
}

/* A free entry; or that of the stranger unheard for longest, for a name that has served, or where
 * it has missed its heartbeats. A worker that has a stage or has served keeps its own, but not one
 * that only came by its name while another had it. */
static struct worker *entry_for(struct core *c, const char *name)
{
    struct worker *victim = NULL;
    for (uint32_t i = 0; i < c->cfg.max_workers; i++) {
        struct worker *w = &c->workers[i];
        if (!w->used) return w;
        if ((c->records[w->record].proven && !w->namesake) || w->replica) continue;
        if (!victim || w->heard_ns < victim->heard_ns) victim = w;
    }
    if (victim && c->now_ns - victim->heard_ns < UNHEARD_NS && !proven(c, name)) return NULL;
    return victim;
}

/* ---- what a layer takes them ---- */

static const struct core_wish *wish_of(const struct core *c, const char *name)
{
    for (uint32_t i = 0; i < c->cfg.n_wishes; i++)
        if (strcmp(c->wishes[i].name, name) == 0) return &c->wishes[i];
    return NULL;
}

static void ask_speed(struct core *c, struct worker *w)
{
    if (!c->cfg.header_digest) return;
    struct msg_calibrate *m = &replica__to_worker(c, w->instance, TO_CALIBRATE)->calibrate;
    (void)snprintf(m->model_path, sizeof m->model_path, "%s", c->model_path);
    m->header_digest = c->cfg.header_digest;
    m->kv_type = c->cfg.kv_type;
    m->threads = w->wish ? w->wish->threads : 0;
    w->asked_ns = c->now_ns;
}

void fleet__speed(struct core *c, struct worker *w, const struct msg_from_worker *m)
{
    const struct msg_speed *s = &m->speed;
    if (s->header_digest != c->cfg.header_digest || s->kv_type != c->cfg.kv_type ||
        s->threads != (w->wish ? w->wish->threads : 0)) {
        c->dropped++; /* of another coordinator's model */
        return;
    }
    if (s->n_layer == 0 && !w->answered)
        core__note(c, "worker %s could not measure a layer: %s", w->hello.name, m->text);
    w->answered = true;
    w->speed = *s;
}

bool fleet__is_measured(const struct core *c, const struct worker *w)
{
    return !c->cfg.header_digest || w->answered || c->now_ns - w->joined_ns >= SPEED_MOST_NS;
}

uint32_t fleet__threads(const struct worker *w)
{
    uint32_t most = w->wish ? w->wish->threads : 0;
    return most && most < w->hello.threads ? most : w->hello.threads;
}

struct room_stage fleet__memory(const struct worker *w)
{
    return (struct room_stage){.threads = fleet__threads(w),
                               .memory = w->memory,
                               .most_bytes = w->wish ? w->wish->memory_bytes : 0};
}

/* ---- Hello ---- */

struct worker *fleet__hello(struct core *c, const struct msg_from_worker *m, const char *address,
                            const struct key *key)
{
    struct worker *w = fleet__find(c, m->instance);
    bool known = w != NULL;
    if (!w) w = entry_for(c, m->hello.name);
    if (!w) return NULL;
    if (known && w->replica) w->knows = false; /* it may have missed something */
    if (!known)
        *w = (struct worker){.doubt = NO_WORKER,
                             .leaves = order__leaves(c, m->instance),
                             .joined_ns = c->now_ns,
                             .moved_ns = c->now_ns};
    w->instance = m->instance;
    w->key = *key;
    w->hello = m->hello;
    w->memory = m->memory;
    w->wish = wish_of(c, m->hello.name);
    w->record = record_of(c, m->hello.name);
    w->used = true;
    w->suspect = false;
    w->heard_ns = c->now_ns;
    if (!known) w->namesake = has_namesake(c, w);
    c->records[w->record].seen_ns = c->now_ns;
    (void)snprintf(w->address, sizeof w->address, "%s", address);
    if (!known) core__note(c, "worker %s joined from %s", w->hello.name, w->address);
    if (!w->answered) ask_speed(c, w);
    return w;
}

/* ---- what is heard ---- */

/* The share of the time in which a thread of the worker was ready to run and had no CPU. All its
 * threads are in the sum, also those that hardly run. */
static void note_waiting(const struct core *c, struct worker *w, uint64_t waited_ns)
{
    uint64_t passed_ns = c->now_ns - w->beat_ns;
    if (waited_ns == w->waited_ns && passed_ns < NS_PER_S) return; /* it is not read each time */
    uint32_t threads = w->hello.threads ? w->hello.threads : 1;
    if (w->beat_ns && waited_ns >= w->waited_ns && passed_ns)
        w->waiting = (double)(waited_ns - w->waited_ns) / (double)passed_ns / threads;
    if (w->waiting > 1.0) w->waiting = 1.0;
    w->waited_ns = waited_ns;
    w->beat_ns = c->now_ns;
}

void fleet__heartbeat(struct core *c, struct worker *w, const struct msg_from_worker *m)
{
    const struct msg_heartbeat *h = &m->heartbeat;
    if (h->moves != w->moves) { /* of whatever epoch: the thread is the same */
        w->moves = h->moves;
        w->moved_ns = c->now_ns;
    }
    note_waiting(c, w, h->cpu_wait_ns);
    w->memory = m->memory;
    if (w->namesake) w->namesake = has_namesake(c, w);
    if (!w->replica || !m->has_epoch || !epoch_eq(m->epoch, replica__epoch(c, w->replica))) return;
    if (h->step_done != w->heartbeat.step_done) w->passed_ns = c->now_ns;
    w->heartbeat = *h;
    w->knows = true;
}

/* ---- silence ---- */

/* Whether another process has joined under the worker's name since it was last heard. */
static bool has_come_again(const struct core *c, const struct worker *w)
{
    for (uint32_t i = 0; i < c->cfg.max_workers; i++) {
        const struct worker *x = &c->workers[i];
        if (x != w && x->used && x->record == w->record && x->joined_ns >= w->heard_ns) return true;
    }
    return false;
}

static void check_silence(struct core *c, struct worker *w)
{
    if (!w->used || c->now_ns < w->heard_ns + c->cfg.worker_timeout_ns) return;
    struct replica *r = w->replica;
    const char *why = core__text(c, "worker %s lost: silent for %" PRIu64 " ms", w->hello.name,
                                 (c->now_ns - w->heard_ns) / NS_PER_MS);
    if (!settle_doubt(c, w, why) && r) fleet__blame(c, w, why);
    /* No request is suspected: a process that crashes leaves closed connections, not silence. */
    if (r)
        replica__lose(c, r, false, why);
    else if (w->leaves)
        core__note(c, "worker %s has left, as ordered", w->hello.name);
    else if (has_come_again(c, w))
        core__note(c, "the process that worker %s had before is gone", w->hello.name);
    else
        core__note_loss(c, "%s", why);
    w->used = false;
}

/* What was heard in this very turn stays now. */
void fleet__forgive(const struct core *c, uint64_t *since_ns, uint64_t lost_ns)
{
    *since_ns = *since_ns + lost_ns < c->now_ns ? *since_ns + lost_ns : c->now_ns;
}

void fleet__tick(struct core *c, uint64_t lost_ns)
{
    for (uint32_t i = 0; i < c->cfg.max_workers; i++) {
        struct worker *w = &c->workers[i];
        fleet__forgive(c, &w->heard_ns, lost_ns);
        fleet__forgive(c, &w->moved_ns, lost_ns);
        fleet__forgive(c, &w->passed_ns, lost_ns);
        fleet__forgive(c, &w->loaded_ns, lost_ns);
        fleet__forgive(c, &w->doubted_ns, lost_ns);
    }
    for (uint32_t i = 0; i < c->cfg.max_workers; i++) {
        struct worker *w = &c->workers[i];
        check_silence(c, w);
        if (w->used && !fleet__is_measured(c, w) && c->now_ns - w->asked_ns >= ASK_AGAIN_NS)
            ask_speed(c, w);
    }
}

/* ---- the plan ---- */

/* Whether it joined since the replica's last generation began and holds nothing. */
static bool is_new(const struct replica *r, const struct worker *w)
{
    return r->began_ns && w->joined_ns > r->began_ns && !w->hello.holds;
}

bool fleet__any_new(const struct core *c, const struct replica *r)
{
    bool any = false;
    for (uint32_t i = 0; i < r->n_stages; i++) any |= is_new(r, &c->workers[r->stage[i]]);
    return any;
}

/* By faults; of equals, new ones come last: one of them may be what ended the generation, started
 * again under another name; with each one that fails with such a worker that is more likely. A name
 * that another process had is worth less than none. */
uint32_t fleet__rank(const struct core *c, const struct replica *r, const struct worker *w)
{
    const struct record *x = &c->records[w->record];
    return 2 * (x->faults + !x->proven + 2u * w->namesake) +
           (is_new(r, w) ? 1 + 2 * r->new_failed : 0);
}

bool fleet__may_serve(const struct core *c, const struct worker *w)
{
    return w->used && !w->replica && !w->suspect && !w->leaves &&
           c->now_ns >= c->records[w->record].held_until_ns;
}

uint32_t fleet__n_known(const struct core *c)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->cfg.max_workers; i++) n += c->workers[i].used;
    return n;
}

void fleet__dismiss(struct core *c, struct replica *r)
{
    for (uint32_t i = 0; i < r->n_stages; i++) {
        replica__at(c, r, i)->replica = NULL;
        r->stage[i] = NO_WORKER;
    }
}
