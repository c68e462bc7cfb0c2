/* Which worker is blamed when a generation does not serve, and what happens then: a small fleet of
 * workers in virtual time, each of which has one fault or none. */
#include "tests/lib/core_fixture.h"

#include "common/base/mem.h"

#include <inttypes.h>
#include <stdlib.h>

#define N_MEMBERS 5u /* 1 to 4 */
#define TICK_MS 50u

enum mode {
    FINE,
    HANGS,        /* its compute thread stops at the first Step of a request; heartbeats go on */
    UNREACHABLE,  /* nobody's link to it comes up */
    DIALS_NOBODY, /* its link to the next stage does not come up */
    CANNOT_LOAD,
    DIES_LOADING, /* and is started again a second later */
    SLOW,         /* computes a Step for slow_ms, and its thread is seen to move */
    DEAF,         /* its link brings it nothing after the probe; its thread idles */
    HANGS_AT_ONCE /* does not take an assignment */
};

/* Digests of a probe: the right one, a wrong one, and one that differs in each generation. */
#define RIGHT 1u
#define WRONG 6u
#define ERRATIC UINT64_MAX

struct member {
    bool there, stuck;
    bool unnamed; /* each of its processes has another name */
    enum mode mode;
    uint64_t digest;   /* that it makes of a probe; 0: RIGHT */
    uint64_t instance; /* of its present process */
    uint64_t back_ns;  /* when it is started again; 0: never */
    struct epoch epoch;
    uint32_t stage;
    uint32_t assigned;              /* how many assignments it took */
    uint64_t received, done, moves; /* as its heartbeats tell */
};

/* Something that happens later: a worker has loaded, or dials the next stage; the coordinator's
 * link comes up; a Step is computed. */
struct pending {
    enum { TO_LOAD, TO_DIAL, TO_LINK, TO_RUN } what;
    uint64_t who, at_ns;
    struct epoch epoch;
    bool last, probe;
    uint32_t stage;
    uint64_t number;
    uint32_t n_runs, at_stage;
    struct msg_run_result runs[8];
};

struct fleet {
    struct core *core;
    struct core_config cfg;
    uint64_t now_ns, instances, slow_ms;
    struct member m[N_MEMBERS];
    struct epoch epoch;
    uint32_t at[4]; /* members at the stages */
    uint32_t generations;
    struct pending pending[64];
    uint32_t n_pending;
    char noted[8192]; /* the core's notes, a line each */
    struct {
        bool ended;
        enum status status;
        uint64_t at_ns;
        uint32_t tokens;
        char text[LIMIT_TEXT_BYTES];
    } requests[16];
};

static void act(struct fleet *f, struct actions a);

static void event(struct fleet *f, struct event e)
{
    e.now_ns = f->now_ns;
    act(f, core_step(f->core, &e));
}

static void say(struct fleet *f, uint32_t who, struct msg_from_worker m)
{
    struct member *x = &f->m[who];
    m.version = PROTO_VERSION;
    m.instance = (struct instance){x->instance, who};
    m.has_epoch = x->epoch.generation != 0;
    m.epoch = x->epoch;
    event(f, (struct event){.type = EV_FROM_WORKER, .from = {&m, "10.0.0.1"}});
}

/* A process of member `who` begins. */
static void join(struct fleet *f, uint32_t who, enum mode mode)
{
    struct msg_from_worker m = {.type = FROM_HELLO, .hello = {.threads = 1}};
    uint32_t assigned = f->m[who].assigned;
    uint64_t digest = f->m[who].digest;
    bool unnamed = f->m[who].unnamed;
    f->m[who] = (struct member){.there = true,
                                .unnamed = unnamed,
                                .mode = mode,
                                .digest = digest,
                                .assigned = assigned,
                                .instance = ++f->instances};
    (void)snprintf(m.hello.name, sizeof m.hello.name, "w%" PRIu32, who);
    if (unnamed)
        (void)snprintf(m.hello.name, sizeof m.hello.name, "w%" PRIu32 "-%" PRIu64, who,
                       f->instances);
    say(f, who, m);
}

static void leave(struct fleet *f, uint32_t who)
{
    say(f, who, (struct msg_from_worker){.type = FROM_GOODBYE});
    f->m[who].there = false;
}

static struct pending *later(struct fleet *f, uint64_t ms)
{
    assert_true(f->n_pending < 64);
    struct pending *p = &f->pending[f->n_pending++];
    *p = (struct pending){.at_ns = f->now_ns + ms * MS};
    return p;
}

static void take_message(struct fleet *f, uint32_t who, const struct msg_to_worker *m)
{
    struct member *x = &f->m[who];
    if (m->type == TO_ASSIGN) {
        if (!epoch_eq(f->epoch, m->epoch)) f->generations++;
        f->epoch = m->epoch;
        if (epoch_eq(x->epoch, m->epoch) || x->stuck) return;
        if (x->mode == HANGS_AT_ONCE) x->stuck = true;
        if (x->stuck) return;
        x->epoch = m->epoch;
        x->received = x->done = 0;
        x->stage = m->assign.layer_first ? 1 : 0; /* there are two stages at most */
        x->assigned++;
        f->at[x->stage] = who;
        struct pending *p = later(f, 20);
        p->what = TO_LOAD;
        p->who = who;
        p->epoch = m->epoch;
    } else if (m->type == TO_CONNECT) {
        struct pending *p = later(f, 1);
        p->what = TO_DIAL;
        p->who = who;
        p->epoch = m->epoch;
    }
}

static void take_step(struct fleet *f, const struct msg_step *s)
{
    struct pending *p = later(f, 1);
    p->what = TO_RUN;
    p->epoch = s->epoch;
    p->number = s->number;
    p->probe = s->runs[0].kind == RUN_PROBE;
    if (!p->probe) p->n_runs = answers_of(s, p->runs);
}

static void act(struct fleet *f, struct actions a)
{
    for (size_t i = 0; i < a.n; i++) {
        const struct action *x = &a.items[i];
        size_t n = strlen(f->noted);
        if (x->type == ACT_NOTE && getenv("SHOW"))
            print_message("%8.2f s  %s\n", (double)f->now_ns / 1e9, x->note);
        if (x->type == ACT_NOTE) (void)snprintf(f->noted + n, sizeof f->noted - n, "%s\n", x->note);
        if (x->type == ACT_TOKENS) f->requests[x->tokens.request].tokens++;
        if (x->type == ACT_END) {
            f->requests[x->end.request].ended = true;
            f->requests[x->end.request].status = x->end.status;
            f->requests[x->end.request].at_ns = f->now_ns;
            (void)snprintf(f->requests[x->end.request].text, LIMIT_TEXT_BYTES, "%s", x->end.text);
        }
        if (x->type == ACT_LINK_OPEN) {
            struct pending *p = later(f, 1);
            p->what = TO_LINK;
            p->epoch = x->link.epoch;
        }
        if (x->type == ACT_STEP) take_step(f, x->step);
        if (x->type != ACT_TO_WORKER) continue;
        for (uint32_t w = 1; w < N_MEMBERS; w++)
            if (f->m[w].there && f->m[w].instance == x->to_worker.instance.hi)
                take_message(f, w, x->to_worker.msg);
    }
}

static void load(struct fleet *f, const struct pending *p)
{
    struct member *x = &f->m[p->who];
    if (!x->there || !epoch_eq(x->epoch, p->epoch)) return;
    struct msg_from_worker m = {.type = FROM_READY, .endpoint = "tcp://:5"};
    if (x->mode == DIES_LOADING) {
        x->there = false;
        x->back_ns = f->now_ns + 1000 * MS;
        return;
    }
    if (x->mode == CANNOT_LOAD)
        m = (struct msg_from_worker){.type = FROM_FAULT, .text = "no such file"};
    say(f, (uint32_t)p->who, m);
}

static void dial(struct fleet *f, const struct pending *p)
{
    struct member *x = &f->m[p->who];
    bool last = x->stage + 1 == f->cfg.n_stages;
    if (!x->there || !epoch_eq(x->epoch, p->epoch) || (x->mode == DIALS_NOBODY && !last)) return;
    if (last || f->m[f->at[x->stage + 1]].mode != UNREACHABLE)
        say(f, (uint32_t)p->who, (struct msg_from_worker){.type = FROM_LINKED});
}

/* A Step goes through the stages, one after the other; at a slow one it goes on later. */
static void run(struct fleet *f, struct pending *p)
{
    uint64_t digest = RIGHT;
    if (!epoch_eq(p->epoch, f->epoch)) return;
    for (; p->at_stage < f->cfg.n_stages; p->at_stage++) {
        struct member *x = &f->m[f->at[p->at_stage]];
        if (!x->there || x->stuck || (x->mode == DEAF && !p->probe)) return;
        bool begins = x->received < p->number;
        x->received = p->number;
        if (x->mode == HANGS && !p->probe) {
            x->stuck = true;
            return;
        }
        if (x->mode == SLOW && !p->probe && begins) {
            struct pending *again = later(f, f->slow_ms);
            uint64_t at_ns = again->at_ns;
            *again = *p;
            again->at_ns = at_ns;
            return;
        }
        x->done = p->number;
    }
    for (uint32_t i = 0; i < f->cfg.n_stages; i++) {
        if (f->m[f->at[i]].digest) digest = f->m[f->at[i]].digest;
        if (digest == ERRATIC) digest = 1000 + f->generations;
    }
    struct msg_result r = {
        .epoch = p->epoch, .number = p->number, .n_runs = p->n_runs, .runs = p->runs};
    r.digest = digest;
    event(f, (struct event){.type = EV_RESULT, .result = &r});
    event(f, (struct event){.type = EV_COMPOSE});
}

static void settle(struct fleet *f)
{
    for (uint32_t i = 0; i < f->n_pending;) {
        struct pending p = f->pending[i];
        if (p.at_ns > f->now_ns) {
            i++;
            continue;
        }
        memmove(&f->pending[i], &f->pending[i + 1], (--f->n_pending - i) * sizeof p);
        switch (p.what) {
        case TO_LOAD: load(f, &p); break;
        case TO_DIAL: dial(f, &p); break;
        case TO_RUN: run(f, &p); break;
        case TO_LINK:
            if (f->m[f->at[0]].mode != UNREACHABLE)
                event(f, (struct event){.type = EV_LINK_UP, .link = {p.epoch}});
            break;
        }
        i = 0;
    }
}

static void pass(struct fleet *f, uint64_t ms)
{
    for (uint64_t end = f->now_ns + ms * MS; f->now_ns < end;) {
        f->now_ns += TICK_MS * MS;
        for (uint32_t i = 1; i < N_MEMBERS; i++) {
            struct member *x = &f->m[i];
            if (!x->there && x->back_ns && f->now_ns >= x->back_ns) join(f, i, x->mode);
            if (!x->there || f->now_ns / MS % 250 != 0) continue;
            x->moves += !x->stuck;
            struct msg_from_worker m = {.type = FROM_HEARTBEAT,
                                        .heartbeat = {.step_received = x->received,
                                                      .step_done = x->done,
                                                      .moves = x->moves}};
            say(f, i, m);
        }
        settle(f);
        event(f, (struct event){.type = EV_TICK});
        event(f, (struct event){.type = EV_COMPOSE});
        settle(f);
    }
}

static bool is_ready(const struct fleet *f)
{
    struct msg_status s;
    core_status(f->core, &s);
    return s.ready;
}

/* Lets the time pass until the replica is ready, at most so long; returns the ms that it took. */
static uint64_t ready_in(struct fleet *f, uint64_t most_ms)
{
    uint64_t since_ns = f->now_ns;
    while (!is_ready(f) && f->now_ns - since_ns < most_ms * MS) pass(f, TICK_MS);
    if (!is_ready(f)) print_message("%s", f->noted);
    assert_true(is_ready(f));
    return (f->now_ns - since_ns) / MS;
}

static void ask(struct fleet *f, uint64_t id, uint32_t max_new)
{
    event(f, (struct event){.type = EV_SUBMIT,
                            .submit = {.request = id,
                                       .tokens = prompt,
                                       .n_prompt = 3,
                                       .max_new = max_new,
                                       .priority = PRIORITY_NORMAL}});
}

static void assert_said(const struct fleet *f, const char *words)
{
    if (!strstr(f->noted, words)) print_message("not said: '%s' in\n%s", words, f->noted);
    assert_non_null(strstr(f->noted, words));
}

static void assert_serves(const struct fleet *f, uint32_t a, uint32_t b)
{
    struct msg_status s;
    char want[16], is[140] = "";
    core_status(f->core, &s);
    (void)snprintf(want, sizeof want, "w%" PRIu32 " w%" PRIu32, a < b ? a : b, a < b ? b : a);
    const char *x = s.replicas[0].workers[0].name, *y = s.replicas[0].workers[1].name;
    (void)snprintf(is, sizeof is, "%s %s", strcmp(x, y) < 0 ? x : y, strcmp(x, y) < 0 ? y : x);
    assert_string_equal(is, want);
}

static struct core_config fleet_config(void)
{
    struct core_config k = config();
    k.n_pages = 64;
    k.max_live = k.max_running = k.max_per_client = 8;
    k.logits_max = 8;
    k.replica_wait_ns = 30 * NS_PER_S;
    k.deadline_ns = 3600 * NS_PER_S;
    return k;
}

static struct fleet *make_fleet(struct core_config k)
{
    struct fleet *f = mem_zalloc(sizeof *f);
    f->cfg = k;
    f->core = core_open(&k);
    f->now_ns = 1000 * MS;
    return f;
}

static void begin_pair(struct fleet *f, enum mode second)
{
    join(f, 1, FINE);
    join(f, 2, second);
    (void)ready_in(f, 2000);
}

/* A fleet in which w1, which is fine, and w2 serve. */
static struct fleet *serving(struct core_config k, enum mode second)
{
    struct fleet *f = make_fleet(k);
    begin_pair(f, second);
    return f;
}

/* The same, both fine; member `odd` computes this digest, all others the right one. */
static struct fleet *serving_with_digest(uint32_t odd, uint64_t digest)
{
    struct fleet *f = make_fleet(fleet_config());
    f->m[odd].digest = digest;
    begin_pair(f, FINE);
    return f;
}

/* The same with a wrong digest; then w2 is lost, and w3 comes. */
static struct fleet *w3_after_w2(uint32_t odd)
{
    struct fleet *f = serving_with_digest(odd, WRONG);
    f->m[2].there = false;
    join(f, 3, FINE);
    return f;
}

/* The generation is lost, and no worker with it. */
static void lose_generation(struct fleet *f, uint32_t who)
{
    say(f, who, (struct msg_from_worker){.type = FROM_FAULT, .text = "it happens"});
}

static void drop_fleet(struct fleet *f)
{
    core_close(f->core);
    mem_free(f);
}

/* ---- a spare takes the place of a worker that cannot serve ---- */

static void test_a_hung_worker_gives_way(void **state)
{
    (void)state;
    struct fleet *f = serving(fleet_config(), HANGS);
    join(f, 3, FINE);
    ask(f, 1, 40);
    pass(f, 4000); /* twice the limit */
    assert_said(f, "overdue at worker w2: its compute thread hangs");
    (void)ready_in(f, 2000);
    assert_serves(f, 1, 3);
    pass(f, 3000);
    assert_true(f->requests[1].ended);
    assert_int_equal(f->requests[1].status, STATUS_OK);
    assert_int_equal(f->requests[1].tokens, 40);
    assert_int_equal(f->generations, 2);
    drop_fleet(f);
}

/* Whichever of the two it is, the spare serves after at most two more generations. */
static void test_an_unreachable_worker_gives_way(void **state)
{
    (void)state;
    for (uint32_t bad = 1; bad <= 2; bad++) {
        struct fleet *f = make_fleet(fleet_config());
        join(f, 1, bad == 1 ? UNREACHABLE : FINE);
        join(f, 2, bad == 2 ? UNREACHABLE : FINE);
        pass(f, 2500);
        join(f, 3, FINE);
        assert_in_range(ready_in(f, 60000), 0, 20000);
        assert_serves(f, 3 - bad, 3);
        assert_in_range(f->generations, 2, 3);
        assert_said(f,
                    bad == 1 ? "does not reach worker w1" : "worker w1 does not reach worker w2");
        drop_fleet(f);
    }
}

/* Here the end that dials is to blame; the other one is cleared once it serves with the spare. */
static void test_the_ends_of_a_link_alternate(void **state)
{
    (void)state;
    struct fleet *f = make_fleet(fleet_config());
    join(f, 1, DIALS_NOBODY);
    join(f, 2, FINE);
    pass(f, 1000);
    join(f, 3, FINE);
    assert_in_range(ready_in(f, 60000), 0, 20000);
    assert_serves(f, 2, 3);
    drop_fleet(f);
}

static void test_a_crash_loop_gives_way(void **state)
{
    (void)state;
    struct fleet *f = make_fleet(fleet_config());
    join(f, 1, FINE);
    join(f, 2, DIES_LOADING);
    pass(f, 200);
    join(f, 3, FINE);
    assert_in_range(ready_in(f, 60000), 0, 5000);
    assert_serves(f, 1, 3);
    pass(f, 60000);
    assert_int_equal(f->m[2].assigned, 1); /* though it came back sixty times, as another process */
    assert_said(f, "worker w2 lost: silent");
    drop_fleet(f);
}

/* Each process has another name, and so no record. New names come behind those that were there. */
static void test_a_nameless_crash_loop_gives_way(void **state)
{
    (void)state;
    struct fleet *f = make_fleet(fleet_config());
    f->m[2].unnamed = true;
    join(f, 1, FINE);
    join(f, 2, DIES_LOADING);
    pass(f, 200);
    join(f, 3, FINE);
    assert_in_range(ready_in(f, 60000), 0, 5000);
    assert_serves(f, 1, 3);
    drop_fleet(f);
}

/* Also where the only spare has failed once: with each failure it is the likelier one. */
static void test_a_nameless_crash_loop_gives_way_to_a_blemish(void **state)
{
    (void)state;
    struct fleet *f = make_fleet(fleet_config());
    join(f, 1, FINE);
    join(f, 3, CANNOT_LOAD);
    while (f->m[3].assigned == 0) pass(f, 1);
    pass(f, 20);
    leave(f, 3);
    f->m[2].unnamed = true;
    join(f, 2, DIES_LOADING);
    pass(f, 200);
    join(f, 3, FINE);
    assert_in_range(ready_in(f, 60000), 0, 20000);
    assert_serves(f, 1, 3);
    drop_fleet(f);
}

static void test_a_worker_that_takes_nothing_gives_way(void **state)
{
    (void)state;
    struct fleet *f = make_fleet(fleet_config());
    join(f, 1, FINE);
    join(f, 2, HANGS_AT_ONCE);
    pass(f, 200);
    join(f, 3, FINE);
    assert_in_range(ready_in(f, 60000), 0, 20000);
    assert_serves(f, 1, 3);
    assert_said(f, "worker w2 does not take its layers");
    drop_fleet(f);
}

/* A link that brings nothing is not taken for a thread that hangs: both its ends are suspects. */
static void test_a_dead_link(void **state)
{
    (void)state;
    struct fleet *f = serving(fleet_config(), DEAF);
    join(f, 3, FINE);
    for (uint64_t id = 1; id < 4; id++) {
        ask(f, id, 4);
        pass(f, 8000);
    }
    assert_said(f, "the link from w1 to worker w2");
    assert_serves(f, 1, 3);
    assert_int_equal(f->requests[3].status, STATUS_OK);
    drop_fleet(f);
}

/* A link that swallows what is sent ends generation after generation. Both its ends live, so no
 * request is the cause, and the one that waits is served when the link is mended. */
static void test_a_dead_link_charges_nobody(void **state)
{
    (void)state;
    struct fleet *f = serving(fleet_config(), DEAF);
    ask(f, 1, 4);
    uint32_t generation = f->epoch.generation;
    pass(f, 20000);
    assert_true(f->epoch.generation >= generation + 4);
    assert_false(f->requests[1].ended);
    f->m[2].mode = FINE;
    pass(f, 10000);
    assert_true(f->requests[1].ended);
    assert_int_equal(f->requests[1].status, STATUS_OK);
    drop_fleet(f);
}

/* The link broke because the worker behind it died: the other end is cleared. */
static void test_a_killed_worker_clears_its_neighbour(void **state)
{
    (void)state;
    struct fleet *f = serving(fleet_config(), FINE);
    struct msg_status s;
    f->m[2].there = false;
    say(f, 1,
        (struct msg_from_worker){
            .type = FROM_FAULT, .downstream = true, .text = "its data link closed"});
    pass(f, 3000);
    join(f, 2, FINE);
    (void)ready_in(f, 2000);
    core_status(f->core, &s);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(s.replicas[0].workers[i].faults,
                         s.replicas[0].workers[i].name[1] == '2' ? 2 : 0);
    pass(f, 61000); /* a minute of service takes a fault away */
    core_status(f->core, &s);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(s.replicas[0].workers[i].faults,
                         s.replicas[0].workers[i].name[1] == '2' ? 1 : 0);
    drop_fleet(f);
}

/* ---- no spare ---- */

/* The only worker cannot load: it is tried for ever, at growing intervals, and `status` says so;
 * once it can load, it serves. */
static void test_held_down(void **state)
{
    (void)state;
    struct core_config k = fleet_config();
    struct msg_status s;
    k.n_stages = 1;
    struct fleet *f = make_fleet(k);
    join(f, 1, CANNOT_LOAD);
    pass(f, 1500);
    assert_int_equal(f->generations, 3); /* after 0, 0.1 and 0.3 s */
    core_status(f->core, &s);
    assert_non_null(strstr(s.replicas[0].why, "worker w1 is held down for"));
    assert_non_null(strstr(s.replicas[0].why, "no such file"));
    pass(f, 600000);
    assert_in_range(f->generations, 15, 30); /* every 30 s in the end */
    f->m[1].mode = FINE;
    assert_in_range(ready_in(f, 60000), 0, 31000);
    core_status(f->core, &s);
    assert_string_equal(s.replicas[0].why, "");
    drop_fleet(f);
}

/* Requests wait for a replica as long as the file says, however many generations fail meanwhile. */
static void test_replica_wait_ends(void **state)
{
    (void)state;
    struct fleet *f = make_fleet(fleet_config());
    join(f, 1, FINE);
    join(f, 2, CANNOT_LOAD);
    pass(f, 1000);
    uint64_t since_ns = f->now_ns;
    ask(f, 1, 4);
    pass(f, 40000);
    assert_true(f->generations > 3);
    assert_true(f->requests[1].ended);
    assert_int_equal(f->requests[1].status, STATUS_UNAVAILABLE);
    assert_non_null(strstr(f->requests[1].text, "worker w2"));
    assert_in_range((f->requests[1].at_ns - since_ns) / MS, 30000, 30100);
    drop_fleet(f);
}

/* A request that has been served begins to wait when its generation is lost. */
static void test_replica_wait_begins_with_the_loss(void **state)
{
    (void)state;
    struct fleet *f = serving(fleet_config(), SLOW);
    f->slow_ms = 500;
    ask(f, 1, 90);
    pass(f, 40000);
    assert_false(f->requests[1].ended);
    f->m[2].there = false;
    uint64_t since_ns = f->now_ns;
    pass(f, 29000);
    assert_false(f->requests[1].ended);
    pass(f, 4000);
    assert_true(f->requests[1].ended);
    assert_int_equal(f->requests[1].status, STATUS_UNAVAILABLE);
    assert_in_range((f->requests[1].at_ns - since_ns) / MS, 31000, 32000);
    drop_fleet(f);
}

/* ---- slow ---- */

/* A Step takes five times the limit while its worker is seen to compute: no generation is lost. */
static void test_slow_is_not_hung(void **state)
{
    (void)state;
    struct fleet *f = serving(fleet_config(), SLOW);
    f->slow_ms = 10000;
    ask(f, 1, 3);
    pass(f, 31000);
    assert_int_equal(f->requests[1].tokens, 3);
    assert_int_equal(f->generations, 1);
    f->slow_ms = 3600000; /* but not for ever */
    ask(f, 2, 3);
    pass(f, 2400000);
    assert_said(f, "overdue at worker w2: it still computes after");
    drop_fleet(f);
}

/* ---- requests that are suspects ---- */

/* Whatever Step the request is in, worker 2 is gone before it arrives, for two seconds. */
static bool lose_with_request(struct fleet *f, uint64_t id)
{
    event(f, (struct event){.type = EV_COMPOSE});
    bool in_flight = false;
    for (uint32_t p = 0; p < f->n_pending; p++)
        for (uint32_t r = 0; r < f->pending[p].n_runs; r++)
            in_flight |= f->pending[p].what == TO_RUN && f->pending[p].runs[r].request == id;
    if (!in_flight || !f->m[2].there) return false;
    f->m[2].there = false;
    f->m[2].back_ns = f->now_ns + 2000 * MS;
    return true;
}

/* A worker that falls silent with the request in flight, again and again, has not crashed: its
 * connections would have closed. */
static void test_silence_charges_nobody(void **state)
{
    (void)state;
    struct fleet *f = serving(fleet_config(), FINE);
    ask(f, 1, 30);
    uint32_t lost = 0;
    while (lost < 4) {
        lost += lose_with_request(f, 1);
        pass(f, TICK_MS);
        assert_false(f->requests[1].ended);
    }
    pass(f, 30000);
    assert_true(f->requests[1].ended);
    assert_int_equal(f->requests[1].status, STATUS_OK);
    drop_fleet(f);
}

/* A request in whose Steps three generations were lost ends. One that only waited does not, nor one
 * that was in two of them with it: alone, it shows that it is innocent. */
static void test_innocent_requests(void **state)
{
    (void)state;
    struct core_config k = fleet_config();
    k.max_running = 2;
    struct fleet *f = serving(k, FINE);
    for (uint64_t id = 1; id <= 3; id++) ask(f, id, 30); /* 1 and 2 run, 3 waits */
    uint32_t lost = 0;
    for (int i = 0; i < 4000 && !(f->requests[2].ended && f->requests[3].ended); i++) {
        if (lose_with_request(f, 1)) {
            lost++;
            struct msg_from_worker m = {
                .type = FROM_FAULT, .downstream = true, .text = "it closed"};
            say(f, 1, m);
        }
        pass(f, TICK_MS);
    }
    assert_int_equal(lost, 3);
    assert_int_equal(f->requests[1].status, STATUS_INTERNAL);
    assert_non_null(strstr(f->requests[1].text, "3 lost generations"));
    for (uint64_t id = 2; id <= 3; id++) {
        assert_true(f->requests[id].ended);
        assert_int_equal(f->requests[id].status, STATUS_OK);
        assert_int_equal(f->requests[id].tokens, 30);
    }
    drop_fleet(f);
}

/* Workers that leave in order are no request's fault. */
static void test_goodbyes_charge_nobody(void **state)
{
    (void)state;
    struct fleet *f = serving(fleet_config(), SLOW);
    f->slow_ms = 300;
    ask(f, 1, 40);
    for (int i = 0; i < 5; i++) {
        pass(f, 1000);
        say(f, 2, (struct msg_from_worker){.type = FROM_GOODBYE});
        join(f, 2, SLOW);
        (void)ready_in(f, 3000);
    }
    pass(f, 20000);
    assert_int_equal(f->requests[1].status, STATUS_OK);
    assert_int_equal(f->requests[1].tokens, 40);
    drop_fleet(f);
}

/* ---- digests ---- */

/* w3 computes other logits than w1 and w2 did: it is named, and w4 serves. */
static void test_a_wrong_digest_names_its_worker(void **state)
{
    (void)state;
    struct fleet *f = w3_after_w2(3);
    pass(f, 3000);
    assert_false(is_ready(f));
    assert_said(f, "worker w3 computed others than workers w1, w2");
    join(f, 4, FINE);
    assert_in_range(ready_in(f, 20000), 0, 15000);
    assert_serves(f, 1, 4);
    drop_fleet(f);
}

/* The first generation's digest was wrong: what two others agree on is right. */
static void test_the_first_digest_is_no_dogma(void **state)
{
    (void)state;
    struct fleet *f = w3_after_w2(2);
    pass(f, 2000);
    join(f, 4, FINE);
    assert_in_range(ready_in(f, 20000), 0, 4000);
    assert_said(f, "worker w2 computed others");
    join(f, 2, FINE); /* and it stays out, while others can serve */
    f->m[1].there = false;
    pass(f, 5000);
    assert_true(is_ready(f));
    assert_serves(f, 3, 4);
    drop_fleet(f);
}

/* w2's logits are wrong in another way in each generation, and it was in the first. The pair cannot
 * repeat its digest, which so gives way to one that is computed again and again, although both
 * workers are there. */
static void test_a_digest_that_nobody_repeats(void **state)
{
    (void)state;
    struct fleet *f = serving_with_digest(2, ERRATIC);
    lose_generation(f, 1);
    join(f, 3, FINE);
    (void)ready_in(f, 120000);
    assert_serves(f, 1, 3);
    assert_said(f, "worker w2 computed others");
    for (int i = 0; i < 3; i++) { /* and it stays out */
        lose_generation(f, 3);
        (void)ready_in(f, 120000);
        assert_serves(f, 1, 3);
    }
    drop_fleet(f);
}

/* w2's logits were wrong in the first generation only. The pair contradicts itself with the second
 * one: its first digest gives way within half the time that it would have if they could not be
 * asked again, and nobody is held down meanwhile. */
static void test_a_pair_that_contradicts_itself(void **state)
{
    (void)state;
    struct fleet *f = serving_with_digest(2, WRONG);
    struct msg_status s;
    f->m[2].digest = 0;
    lose_generation(f, 1);
    pass(f, 9000);
    assert_false(is_ready(f));
    core_status(f->core, &s);
    assert_null(strstr(s.replicas[0].why, "held down"));
    assert_in_range(ready_in(f, 60000), 0, 10000);
    assert_serves(f, 1, 2);
    drop_fleet(f);
}

/* Two of four workers serve, and from then on one of the four computes another digest in each
 * generation. One is lost, then another: whichever all these are, the erratic one does not serve.
 */
static void test_an_erratic_worker_is_left_out(void **state)
{
    (void)state;
    for (uint32_t bad = 1; bad <= 4; bad++)
        for (uint32_t lost = 0; lost < 16; lost++) {
            struct fleet *f = make_fleet(fleet_config());
            for (uint32_t i = 1; i <= 4; i++) join(f, i, FINE);
            (void)ready_in(f, 60000);
            f->m[bad].digest = ERRATIC;
            for (uint32_t i = 0; i < 2; i++) {
                struct member *x = &f->m[1 + (lost >> 2 * i) % 4];
                x->there = false;
                x->back_ns = f->now_ns + 2000 * MS;
                pass(f, 1600 + 100 * lost);
            }
            (void)ready_in(f, 60000);
            if (f->generations > 1) assert_true(f->at[0] != bad && f->at[1] != bad);
            drop_fleet(f);
        }
}

/* No third worker is there to decide whose digest is right, and w2 is gone for good: the newcomer
 * serves after some pauses. */
static void test_no_worker_is_locked_out(void **state)
{
    (void)state;
    struct fleet *f = w3_after_w2(2);
    pass(f, 10000);
    assert_false(is_ready(f));
    assert_in_range(ready_in(f, 60000), 0, 10000);
    assert_serves(f, 1, 3);
    drop_fleet(f);
}

/* The first digest was wrong. The pair that computed it is there, but the two no longer reach each
 * other and cannot repeat it: it gives way to what w1 and w3 compute again and again. */
static void test_an_unreachable_pair_decides_nothing(void **state)
{
    (void)state;
    struct fleet *f = serving_with_digest(2, WRONG);
    f->m[2].mode = UNREACHABLE;
    join(f, 3, FINE);
    lose_generation(f, 1);
    pass(f, 10000);
    assert_false(is_ready(f));
    (void)ready_in(f, 110000);
    assert_serves(f, 1, 3);
    drop_fleet(f);
}

/* ---- strangers ---- */

static struct actions stranger(struct fleet *f, uint64_t who, const char *name)
{
    static struct msg_from_worker m;
    m = (struct msg_from_worker){
        .version = PROTO_VERSION, .type = FROM_HELLO, .instance = {who, 99}};
    (void)snprintf(m.hello.name, sizeof m.hello.name, "%s", name);
    struct event e = {.type = EV_FROM_WORKER, .now_ns = f->now_ns, .from = {&m, "10.0.0.9"}};
    return core_step(f->core, &e);
}

/* Workers whose names never served are planned with last, and lose their entries first. */
static void test_strangers_come_last(void **state)
{
    (void)state;
    struct fleet *f = serving(fleet_config(), FINE);
    leave(f, 2);
    for (uint64_t i = 0; i < 64; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "a%" PRIu64, i);
        act(f, stranger(f, 1000 + i, name));
    }
    join(f, 2, FINE); /* the table is full, but it has served */
    pass(f, 500);
    (void)ready_in(f, 5000);
    assert_serves(f, 1, 2);
    assert_int_equal(f->generations, 2);
    drop_fleet(f);
}

/* Nor do strangers by the names of those that serve: neither do they keep the right one out, nor
 * are they taken before an honest spare. */
static void test_namesakes_come_last(void **state)
{
    (void)state;
    struct fleet *f = serving(fleet_config(), FINE);
    leave(f, 2);
    for (uint64_t i = 0; i < 64; i++) act(f, stranger(f, 1000 + i, "w1"));
    join(f, 2, FINE);
    pass(f, 500);
    (void)ready_in(f, 5000);
    assert_serves(f, 1, 2);
    assert_int_equal(f->generations, 2);
    leave(f, 2);
    join(f, 3, FINE); /* it has never served, and one by the name of w1 has come after it */
    act(f, stranger(f, 2000, "w1"));
    (void)ready_in(f, 5000);
    assert_serves(f, 1, 3);
    assert_int_equal(f->generations, 3);
    drop_fleet(f);
}

/* A new worker gets the entry of a stranger that has been silent for a while. */
static void test_a_full_table(void **state)
{
    (void)state;
    struct fleet *f = make_fleet(fleet_config());
    for (uint64_t i = 0; i < 64; i++) act(f, stranger(f, 1000 + i, "same"));
    assert_null(first(stranger(f, 5000, "new"), ACT_NOTE)); /* they may be alive */
    f->now_ns += 600 * MS;
    const struct action *note = first(stranger(f, 5000, "new"), ACT_NOTE);
    assert_non_null(note);
    assert_non_null(strstr(note->note, "worker new joined"));
    drop_fleet(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_hung_worker_gives_way),
        cmocka_unit_test(test_an_unreachable_worker_gives_way),
        cmocka_unit_test(test_the_ends_of_a_link_alternate),
        cmocka_unit_test(test_a_crash_loop_gives_way),
        cmocka_unit_test(test_a_nameless_crash_loop_gives_way),
        cmocka_unit_test(test_a_nameless_crash_loop_gives_way_to_a_blemish),
        cmocka_unit_test(test_a_worker_that_takes_nothing_gives_way),
        cmocka_unit_test(test_a_dead_link),
        cmocka_unit_test(test_a_dead_link_charges_nobody),
        cmocka_unit_test(test_a_killed_worker_clears_its_neighbour),
        cmocka_unit_test(test_held_down),
        cmocka_unit_test(test_replica_wait_ends),
        cmocka_unit_test(test_replica_wait_begins_with_the_loss),
        cmocka_unit_test(test_slow_is_not_hung),
        cmocka_unit_test(test_silence_charges_nobody),
        cmocka_unit_test(test_innocent_requests),
        cmocka_unit_test(test_goodbyes_charge_nobody),
        cmocka_unit_test(test_a_wrong_digest_names_its_worker),
        cmocka_unit_test(test_the_first_digest_is_no_dogma),
        cmocka_unit_test(test_a_digest_that_nobody_repeats),
        cmocka_unit_test(test_a_pair_that_contradicts_itself),
        cmocka_unit_test(test_an_erratic_worker_is_left_out),
        cmocka_unit_test(test_no_worker_is_locked_out),
        cmocka_unit_test(test_an_unreachable_pair_decides_nothing),
        cmocka_unit_test(test_strangers_come_last),
        cmocka_unit_test(test_namesakes_come_last),
        cmocka_unit_test(test_a_full_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
