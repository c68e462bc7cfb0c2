/* A core with two replicas of two stages: each has its own workers, generations, Steps and pages;
 * they share the queue, the fleet and the numbering of generations. */
#include "tests/lib/core_fixture.h"

enum { REPLICAS = 2, STAGES = 2, MANY = 12 };

struct pair {
    struct fixture f;
    struct epoch epochs[MANY];
    struct ready_step steps[MANY]; /* the last that was issued */
    uint32_t n_steps[MANY];
    uint64_t closed[MANY]; /* the last request that a Step closed */
};

static struct pair p;

/* Keeps what the actions say of each replica. */
static void look(struct actions a)
{
    for (size_t i = 0; i < a.n; i++) {
        const struct action *x = &a.items[i];
        if (x->type == ACT_TO_WORKER && x->to_worker.msg->type == TO_ASSIGN)
            p.epochs[x->to_worker.msg->epoch.replica] = x->to_worker.msg->epoch;
        if (x->type != ACT_STEP) continue;
        uint32_t r = x->step->epoch.replica;
        assert_true(epoch_eq(x->step->epoch, p.epochs[r]));
        p.steps[r] = (struct ready_step){.number = x->step->number, .n_runs = x->step->n_runs};
        p.n_steps[r]++;
        for (uint32_t k = 0; k < x->step->n_runs; k++) p.steps[r].runs[k] = x->step->runs[k];
        if (x->step->n_closed) p.closed[r] = x->step->closed[0];
    }
}

static void event(struct event e)
{
    look(feed(&p.f, e));
}

static void say(uint64_t who, uint32_t replica, struct msg_from_worker m)
{
    p.f.epoch = p.epochs[replica];
    look(from(&p.f, who, m));
}

static void join(uint64_t who)
{
    char name[8];
    (void)snprintf(name, sizeof name, "w%u", (unsigned)who);
    look(hello(&p.f, who, name));
}

static void compose(void)
{
    event((struct event){.type = EV_COMPOSE});
}

static const struct msg_replica_status *status(uint32_t replica)
{
    static struct msg_status s;
    core_status(p.f.core, &s);
    assert_int_equal(s.n_replicas, REPLICAS);
    return &s.replicas[replica];
}

static uint64_t messages_dropped(void)
{
    struct msg_status s;
    core_status(p.f.core, &s);
    return s.messages_dropped;
}

/* The workers of the replica's generation load and link. */
static void link_up(uint32_t replica, uint64_t first, uint64_t second)
{
    const uint64_t who[] = {first, second};
    for (int i = 0; i < STAGES; i++)
        say(who[i], replica, (struct msg_from_worker){.type = FROM_READY, .endpoint = "tcp://:5"});
    for (int i = 0; i < STAGES; i++)
        say(who[i], replica, (struct msg_from_worker){.type = FROM_LINKED});
    event((struct event){.type = EV_LINK_UP, .link = {p.epochs[replica]}});
}

static void answer(uint32_t replica)
{
    struct msg_run_result runs[READY_RUNS];
    const struct ready_step *s = &p.steps[replica];
    const struct msg_step step = {.runs = s->runs, .n_runs = s->n_runs};
    struct msg_result m = {
        .epoch = p.epochs[replica], .number = s->number, .digest = 5, .runs = runs};
    if (s->runs[0].kind != RUN_PROBE) m.n_runs = answers_of(&step, runs);
    event((struct event){.type = EV_RESULT, .result = &m});
}

static void begin(uint32_t replica, uint64_t first, uint64_t second)
{
    link_up(replica, first, second);
    answer(replica);
    assert_true(status(replica)->ready);
}

static struct core_config pair_config(void)
{
    struct core_config k = config();
    k.n_replicas = REPLICAS;
    k.window = 1;
    k.max_running = 1;
    k.replica_wait_ns = 0;
    k.policy = ROUTE_ROUND_ROBIN;
    return k;
}

static void open_with(struct core_config k)
{
    p = (struct pair){.f = {.core = core_open(&k), .now_ns = 1000 * MS}};
    for (uint64_t who = 1; who <= 4; who++) join(who);
    begin(0, 1, 2);
    begin(1, 3, 4);
}

/* Both replicas serve: w1 and w2 the first, w3 and w4 the second. */
static int open_pair(void **state)
{
    (void)state;
    open_with(pair_config());
    return 0;
}

static int close_pair(void **state)
{
    (void)state;
    core_close(p.f.core);
    return 0;
}

static void test_each_has_its_own(void **state)
{
    (void)state;
    static const char *const names[] = {"a", "b"};
    for (uint32_t r = 0; r < REPLICAS; r++) {
        const struct msg_replica_status *s = status(r);
        assert_string_equal(s->name, names[r]);
        assert_int_equal(s->generation, r + 1); /* numbered over both */
        assert_int_equal(s->n_workers, STAGES);
        for (uint32_t i = 0; i < STAGES; i++)
            assert_int_equal(s->workers[i].name[1], '1' + (char)(r * STAGES + i));
        assert_int_equal(p.epochs[r].replica, r);
    }
}

/* Requests run where they are sent, each in pages and Steps of its replica. */
static void test_both_run(void **state)
{
    (void)state;
    (void)submit(&p.f, 1, 20, 2);
    (void)submit(&p.f, 2, 4, 2);
    compose();
    for (uint32_t r = 0; r < REPLICAS; r++) {
        assert_int_equal(core_sequence_at(p.f.core, r).request, r + 1);
        assert_int_equal(core_sequence_at(p.f.core, r).replica, r);
        assert_int_equal(core_in_flight(p.f.core, r), 1);
        assert_int_equal(p.steps[r].runs[0].request, r + 1);
    }
    assert_int_equal(core_pages(p.f.core, 0).n_held, 1); /* a chunk of rows_max is one page */
    assert_int_equal(core_pages(p.f.core, 1).n_held, 1);
    answer(1);
    compose();
    answer(1);
    assert_int_equal(first(p.f.last, ACT_END)->end.request, 2);
    assert_int_equal(core_pages(p.f.core, 1).n_held, 0);
    assert_int_equal(core_pages(p.f.core, 0).n_held, 1);
    assert_int_equal(status(0)->steps, 1);
    assert_int_equal(status(1)->steps, 2);
}

/* What one replica loses goes on at the other, without waiting for one; the next generation has a
 * number that none has had. */
static void test_the_other_goes_on(void **state)
{
    (void)state;
    (void)submit(&p.f, 1, 4, 3);
    compose();
    answer(0);
    compose();
    assert_true(p.steps[0].runs[0].kind == RUN_DECODE);
    event((struct event){.type = EV_LINK_LOST, .link = {p.epochs[0]}});
    assert_null(first(p.f.last, ACT_END)); /* although replica_wait is 0 */
    assert_int_equal(first(p.f.last, ACT_LINK_CLOSE)->link.epoch.replica, 0);
    compose();
    assert_int_equal(p.steps[1].runs[0].request, 1);
    assert_int_equal(p.steps[1].runs[0].attempt, 2);
    assert_int_equal(p.steps[1].runs[0].n_rows, 5); /* the prompt and its first token */
    assert_true(p.steps[1].runs[0].has_open);
    answer(1);
    assert_int_equal(first(p.f.last, ACT_TOKENS)->tokens.first_index, 1);
    p.f.now_ns += 500 * MS; /* more than the pause before another generation */
    for (uint64_t who = 1; who <= 4; who++)
        say(who, who > 2, (struct msg_from_worker){.type = FROM_HEARTBEAT});
    event((struct event){.type = EV_TICK});
    assert_int_equal(p.epochs[0].generation, 3);
    begin(0, 1, 2);
}

/* Results, lost links and faults that name another epoch than their replica's change nothing. */
static void test_epochs(void **state)
{
    (void)state;
    (void)submit(&p.f, 1, 4, 3);
    compose();
    struct epoch wrong = {p.epochs[0].incarnation, 1, p.epochs[0].generation};
    struct epoch none = {p.epochs[0].incarnation, REPLICAS, p.epochs[0].generation};
    const struct epoch others[] = {wrong, none, p.epochs[1]};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        uint64_t dropped = messages_dropped();
        struct msg_result m = {.epoch = others[i], .number = 2};
        if (i < 2) {
            event((struct event){.type = EV_RESULT, .result = &m});
            assert_int_equal(messages_dropped(), dropped + 1);
            event((struct event){.type = EV_LINK_LOST, .link = {others[i]}});
        }
        say(1, 1, (struct msg_from_worker){.type = FROM_FAULT}); /* w1 serves the other one */
        assert_true(status(0)->ready && status(1)->ready);
    }
    assert_int_equal(core_in_flight(p.f.core, 0), 1);
}

/* A request for three tokens that shares no prefix with others. */
static void alone(uint64_t id, uint32_t n_prompt, enum priority class)
{
    struct event e = request(id, n_prompt, 3, class);
    e.submit.tenant = id;
    event(e);
}

/* Time passes; all workers are heard, and the core ticks. */
static void wait_ms(uint64_t ms)
{
    p.f.now_ns += ms * MS;
    for (uint64_t who = 1; who <= 4; who++)
        say(who, who > 2, (struct msg_from_worker){.type = FROM_HEARTBEAT});
    event((struct event){.type = EV_TICK});
}

/* A request that is preempted waits for its replica, where its pages may still be cached. After a
 * second it goes to one that serves it far sooner: it is opened there, and closed in the first with
 * that one's next Step. */
static void test_moves(void **state)
{
    struct core_config k = pair_config();
    k.policy = ROUTE_AUTO;
    (void)close_pair(state);
    open_with(k);
    alone(1, 4, PRIORITY_NORMAL);
    compose();
    uint32_t here = core_sequence_at(p.f.core, 0).replica, there = 1 - here;
    answer(here);                    /* its parameters were told to the last stage */
    alone(2, 40, PRIORITY_LOW);      /* to the other replica, */
    alone(3, 60, PRIORITY_CRITICAL); /* where more rows wait than here */
    compose();
    assert_int_equal(p.steps[here].runs[0].request, 3);
    assert_int_equal(core_sequence_at(p.f.core, 2).request, 1);
    assert_int_equal(core_sequence_at(p.f.core, 2).replica, here);
    event((struct event){.type = EV_CANCEL, .request = {2, ""}});
    wait_ms(900);
    assert_int_equal(core_sequence_at(p.f.core, 1).replica, here);
    wait_ms(200);
    assert_int_equal(core_sequence_at(p.f.core, 1).replica, there);
    answer(there);
    compose();
    assert_int_equal(p.steps[there].runs[0].request, 1);
    assert_true(p.steps[there].runs[0].has_open);
    answer(here);
    compose();
    assert_int_equal(p.closed[here], 1);
    assert_int_equal(p.closed[there], 0);
}

/* It comes back before the last stage was told that it had left: it is neither closed there nor
 * opened anew, which one Step could not tell apart. */
static void test_moves_back(void **state)
{
    struct core_config k = pair_config();
    k.policy = ROUTE_AUTO;
    k.max_live = k.max_per_client = 4;
    (void)close_pair(state);
    open_with(k);
    alone(1, 4, PRIORITY_NORMAL);
    compose();
    uint32_t here = core_sequence_at(p.f.core, 0).replica, there = 1 - here;
    answer(here);
    alone(2, 40, PRIORITY_LOW);      /* to the other replica, */
    alone(3, 60, PRIORITY_CRITICAL); /* where more rows wait than here: it preempts the first */
    compose();
    event((struct event){.type = EV_CANCEL, .request = {2, ""}});
    wait_ms(1100);
    answer(there);
    compose();
    assert_int_equal(p.steps[there].runs[0].request, 1);
    assert_true(p.steps[there].runs[0].has_open);
    answer(there);
    alone(4, 60, PRIORITY_CRITICAL); /* it preempts the first, there */
    compose();
    assert_int_equal(p.steps[there].runs[0].request, 4);
    event((struct event){.type = EV_CANCEL, .request = {3, ""}}); /* nothing is left to do here */
    compose();
    assert_int_equal(core_sequence_at(p.f.core, 1).request, 1);
    assert_int_equal(core_sequence_at(p.f.core, 1).replica, here);
    p.closed[here] = 0;
    answer(here);
    compose();
    assert_int_equal(p.steps[here].runs[0].request, 1);
    assert_false(p.steps[here].runs[0].has_open);
    assert_int_equal(p.closed[here], 0);
}

/* A Step that took its stages so long is answered. */
static void answer_after(uint32_t replica, uint64_t ns)
{
    struct msg_run_result runs[READY_RUNS];
    const struct ready_step *s = &p.steps[replica];
    const struct msg_step step = {.runs = s->runs, .n_runs = s->n_runs};
    struct msg_result m = {
        .epoch = p.epochs[replica], .number = s->number, .runs = runs, .n_timings = STAGES};
    for (uint32_t i = 0; i < STAGES; i++)
        m.timings[i] = (struct msg_timing){.stage = i, .compute_ns = ns};
    m.n_runs = answers_of(&step, runs);
    p.f.now_ns += 2 * ns;
    event((struct event){.type = EV_RESULT, .result = &m});
}

/* What an answer takes is the time of all answers, also of those that clients broke off. A request
 * follows its prefix to a replica that is busy with an answer, since that will soon be over. */
static void test_answers_that_are_broken_off(void **state)
{
    struct core_config k = pair_config();
    k.policy = ROUTE_AUTO;
    (void)close_pair(state);
    open_with(k);
    event(request(1, 64, 1, PRIORITY_NORMAL));
    compose();
    uint32_t here = core_sequence_at(p.f.core, 0).replica;
    while (core_n_sequences(p.f.core)) { /* it computes the prefix, row by row */
        answer_after(here, 16 * MS);
        compose();
    }
    for (uint64_t id = 2; id < 40; id++) {
        alone(id, 4, PRIORITY_NORMAL);
        compose();
        uint32_t at = core_sequence_at(p.f.core, 0).replica;
        answer_after(at, 4 * MS);
        compose();
        answer_after(at, 4 * MS);
        event((struct event){.type = EV_CANCEL, .request = {id, ""}});
    }
    do { /* one that runs where the prefix is */
        alone(40, 4, PRIORITY_NORMAL);
        compose();
        if (core_sequence_at(p.f.core, 0).replica == here) break;
        event((struct event){.type = EV_CANCEL, .request = {40, ""}});
        compose();
        answer_after(1 - here, 4 * MS);
    } while (true);
    event(request(41, 64, 1, PRIORITY_NORMAL));
    assert_int_equal(core_sequence_at(p.f.core, 1).request, 41);
    assert_int_equal(core_sequence_at(p.f.core, 1).replica, here);
}

static uint32_t n_at(uint32_t replica)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < core_n_sequences(p.f.core); i++)
        n += core_sequence_at(p.f.core, i).replica == replica;
    return n;
}

/* Cancels all that are at a replica. */
static void cancel_all(uint32_t replica)
{
    for (uint32_t i = core_n_sequences(p.f.core); i-- > 0;) {
        struct core_sequence x = core_sequence_at(p.f.core, i);
        if (x.replica != replica) continue;
        event((struct event){.type = EV_CANCEL, .request = {x.request, ""}});
    }
}

/* With two replicas and eight requests, those of one are cancelled. */
static void one_has_nothing(enum route_policy policy, void **state)
{
    struct core_config k = pair_config();
    k.policy = policy;
    k.max_live = k.max_per_client = 16;
    (void)close_pair(state);
    open_with(k);
    for (uint64_t id = 1; id <= 8; id++) alone(id, 40, PRIORITY_NORMAL);
    compose();
    assert_int_equal(n_at(0), 4);
    assert_int_equal(n_at(1), 4);
    cancel_all(1);
}

/* A replica without anything to do takes a request that waits for another one at once, and
 * more while the other's queue is longer. What runs stays. */
static void test_balance(void **state)
{
    one_has_nothing(ROUTE_AUTO, state);
    uint64_t runs = core_sequence_at(p.f.core, 0).request;
    compose();
    assert_int_equal(n_at(0), 3);
    assert_int_equal(n_at(1), 1);
    for (int i = 0; i < 10; i++) compose();
    assert_int_equal(n_at(0), 2);
    assert_int_equal(n_at(1), 2);
    assert_int_equal(core_sequence_at(p.f.core, 0).request, runs);
    assert_true(core_sequence_at(p.f.core, 0).running);
    assert_int_equal(core_sequence_at(p.f.core, 0).replica, 0);
}

/* A queue that is longer than what a tick looks at does not hide those of later replicas: a request
 * behind a long prompt goes to the replica that serves it far sooner. */
static void test_again_in_turn(void **state)
{
    struct core_config k = pair_config();
    k.policy = ROUTE_AUTO;
    k.max_live = k.max_per_client = 64;
    k.n_pages = 64;
    k.ctx = 1000;
    (void)close_pair(state);
    p = (struct pair){.f = {.core = core_open(&k), .now_ns = 1000 * MS}};
    join(1);
    join(2);
    begin(0, 1, 2);
    for (uint64_t id = 1; id <= 34; id++) alone(id, 4, PRIORITY_NORMAL); /* there is no other */
    join(3);
    join(4);
    begin(1, 3, 4);
    alone(40, 4, PRIORITY_NORMAL);
    alone(41, 700, PRIORITY_CRITICAL); /* this one runs first */
    compose();
    assert_int_equal(n_at(0), 34);
    assert_int_equal(n_at(1), 2);
    assert_int_equal(p.steps[1].runs[0].request, 41);
    answer(0);
    answer(1);
    wait_ms(1100); /* 33 wait at the first replica: one tick does not get through */
    assert_int_equal(n_at(1), 2);
    wait_ms(1100);
    assert_int_equal(n_at(0), 35);
    assert_int_equal(n_at(1), 1);
}

/* Only where the policy is ours. */
static void test_others_stay(void **state)
{
    one_has_nothing(ROUTE_ROUND_ROBIN, state);
    for (int i = 0; i < 10; i++) compose();
    assert_int_equal(n_at(0), 4);
    assert_int_equal(n_at(1), 0);
}

/* Requests that wait for a lost replica go to the other at once, and those of the other are not
 * touched. */
static void test_only_the_lost_one(void **state)
{
    (void)state;
    for (uint64_t id = 1; id <= 3; id++) (void)submit(&p.f, id, 4, 3); /* 1 and 3; 2 */
    compose();
    assert_int_equal(core_sequence_at(p.f.core, 2).replica, 0); /* 3 waits */
    uint32_t steps = p.n_steps[1];
    event((struct event){.type = EV_LINK_LOST, .link = {p.epochs[0]}});
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(core_sequence_at(p.f.core, i).replica, 1);
    assert_int_equal(core_sequence_at(p.f.core, 0).request, 2);
    assert_true(core_sequence_at(p.f.core, 0).running);
    assert_int_equal(core_in_flight(p.f.core, 1), 1);
    answer(1);
    compose();
    assert_int_equal(p.n_steps[1], steps + 1);
    assert_int_equal(p.steps[1].runs[0].request, 2);
    assert_int_equal(p.steps[1].runs[0].attempt, 1);
}

/* A spare takes a place in whichever replica lacks a worker. */
static void test_spare(void **state)
{
    (void)state;
    join(5);
    say(3, 1, (struct msg_from_worker){.type = FROM_GOODBYE});
    assert_true(status(0)->ready && !status(1)->ready);
    p.f.now_ns += 500 * MS;
    for (uint64_t who = 1; who <= 5; who++)
        if (who != 3) say(who, who > 2, (struct msg_from_worker){.type = FROM_HEARTBEAT});
    event((struct event){.type = EV_TICK});
    assert_int_equal(p.epochs[1].generation, 3);
    assert_string_equal(status(1)->workers[0].name, "w5");
    assert_string_equal(status(1)->workers[1].name, "w4"); /* it holds those layers */
}

/* Replica b never ran. A spare replaces the worker that a lost, also while a waits before its next
 * generation; b begins when two more have come. */
static void test_lost_before_new(void **state)
{
    struct core_config k = pair_config();
    (void)close_pair(state);
    p = (struct pair){.f = {.core = core_open(&k), .now_ns = 1000 * MS}};
    join(1);
    join(2);
    begin(0, 1, 2);
    join(3);
    say(2, 0, (struct msg_from_worker){.type = FROM_GOODBYE});
    join(4); /* now there are three spares: too few for both */
    assert_int_equal(p.epochs[1].generation, 0);
    join(5);
    assert_int_equal(p.epochs[1].generation, 2); /* four are enough: b need not wait for a */
    assert_string_equal(status(1)->state, "loading");
    p.f.now_ns += 500 * MS;
    for (uint64_t who = 1; who <= 5; who++)
        if (who != 2) say(who, 0, (struct msg_from_worker){.type = FROM_HEARTBEAT});
    event((struct event){.type = EV_TICK});
    assert_int_equal(p.epochs[0].generation, 3);
}

/* ---- windowed layers: what routing counts of a prefix ---- */

/* With four windowed pages: two of a window, and two of a chunk. */
static struct core_config windowed_config(enum route_policy policy)
{
    struct core_config k = pair_config();
    k.policy = policy;
    k.n_pages = 100;
    k.ctx = 800;
    k.max_live = k.max_per_client = 2 * MANY;
    k.attn_window = 32;
    k.costs.windowed_least = k.costs.windowed_most = 4;
    return k;
}

/* A request for one token: `first` 200 times, then as many times `letter` as are left. */
static void ask_letters(uint64_t id, int32_t first, int32_t letter, uint32_t n_prompt)
{
    int32_t tokens[400];
    assert_true(n_prompt <= 400);
    for (uint32_t i = 0; i < n_prompt; i++) tokens[i] = i < 200 ? first : letter;
    struct event e = request(id, n_prompt, 1, PRIORITY_NORMAL);
    e.submit.tokens = tokens;
    event(e);
}

static void ask_letter(uint64_t id, uint32_t n_prompt)
{
    ask_letters(id, 3, 3, n_prompt);
}

static void turns(uint32_t replica, uint32_t n)
{
    for (uint32_t i = 0; i < n && n_at(replica); i++) {
        compose();
        answer(replica);
    }
}

/* The first replica serves, and has computed 200 letters. */
static void open_first(enum route_policy policy, void **state)
{
    struct core_config k = windowed_config(policy);
    (void)close_pair(state);
    p = (struct pair){.f = {.core = core_open(&k), .now_ns = 1000 * MS}};
    join(1);
    join(2);
    begin(0, 1, 2);
    ask_letter(1, 200);
    turns(0, 100);
    assert_int_equal(n_at(0), 0);
}

static void open_second(void)
{
    join(3);
    join(4);
    begin(1, 3, 4);
}

/* And then another prompt, whose windowed pages took the place of theirs; it decodes still, or has
 * ended. */
static void lose_windows(enum route_policy policy, bool ended, void **state)
{
    open_first(policy, state);
    alone(2, 150, PRIORITY_NORMAL);
    turns(0, ended ? 100 : 10);
    assert_int_equal(n_at(0), !ended);
    open_second();
}

/* Whole pages without their windows draw nobody to a replica; those that are to be computed will
 * have them, and those that have been have. */
static void test_windows_count(void **state)
{
    lose_windows(ROUTE_AFFINITY, false, state);
    ask_letter(3, 50);
    assert_int_equal(n_at(1), 1);
    ask_letter(4, 50);
    assert_int_equal(n_at(1), 2);
    turns(1, 100);
    assert_int_equal(n_at(1), 0);
    ask_letter(5, 60);
    assert_int_equal(n_at(1), 1);
}

/* Where the last window has gone, the one before it counts. */
static void test_earlier_window(void **state)
{
    open_first(ROUTE_AFFINITY, state);
    ask_letter(2, 100);
    turns(0, 100);
    alone(3, 4, PRIORITY_NORMAL); /* in one windowed page; so the other one has less to do */
    turns(0, 1);
    assert_int_equal(n_at(0), 1);
    open_second();
    ask_letter(4, 200);
    assert_int_equal(n_at(0), 2);
}

/* A replica without anything to do takes nothing that it would have to compute again. */
static void test_windows_count_in_moves(void **state)
{
    lose_windows(ROUTE_AUTO, true, state);
    ask_letter(3, 200);
    assert_int_equal(n_at(1), 1);
    turns(1, 100);
    ask_letters(4, 3, 4, 300);
    compose();
    ask_letter(5, 200);
    assert_int_equal(n_at(1), 2);
    compose();
    assert_int_equal(n_at(1), 2); /* 92 rows wait before it; there, 200 were to be computed */
    turns(1, 100);
    assert_int_equal(n_at(0) + n_at(1), 0);
}

/* The same where more replicas hold the whole pages than are looked at. */
static void test_windows_of_many(void **state)
{
    struct core_config k = windowed_config(ROUTE_AFFINITY);
    k.n_replicas = MANY;
    k.n_stages = 1;
    (void)close_pair(state);
    p = (struct pair){.f = {.core = core_open(&k), .now_ns = 1000 * MS}};
    for (uint32_t r = 0; r < MANY; r++) {
        join(r + 1);
        say(r + 1, r, (struct msg_from_worker){.type = FROM_READY, .endpoint = "tcp://:5"});
        say(r + 1, r, (struct msg_from_worker){.type = FROM_LINKED});
        event((struct event){.type = EV_LINK_UP, .link = {p.epochs[r]}});
        answer(r);
        ask_letter(100 + r, 200); /* to the new one, since others are live and no better */
        assert_int_equal(n_at(r), 1);
        turns(r, 100);
        alone(200 + r, 150, PRIORITY_NORMAL);
        turns(r, 10);
        assert_int_equal(n_at(r), 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_each_has_its_own, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(test_both_run, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(test_the_other_goes_on, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(test_epochs, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(test_moves, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(test_moves_back, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(test_answers_that_are_broken_off, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(test_balance, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(test_again_in_turn, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(test_others_stay, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(test_only_the_lost_one, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(test_spare, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(test_lost_before_new, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(test_windows_count, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(test_earlier_window, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(test_windows_count_in_moves, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(test_windows_of_many, open_pair, close_pair),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
