/* An admin's orders, on a core whose workers do at once what they are told: a worker leaves, with
 * and without a spare in its place; replicas are planned anew. */
#include "tests/lib/core_fixture.h"

enum { STAGES = 2, WORKERS_MOST = 30, REPLICAS_MOST = 3, QUEUE = 64, TOKENS_MOST = 64 };

/* What an action asks for, kept until its turn comes. */
struct asked_for {
    enum { READY, LINKED, LINK, PROBE } what;
    uint64_t who;
    struct epoch epoch;
};

struct world {
    struct fixture f;
    bool alive[WORKERS_MOST + 1];
    struct epoch epoch[WORKERS_MOST + 1]; /* of the last Assign of a worker */
    uint32_t n_assigns[WORKERS_MOST + 1];
    uint32_t n_told[WORKERS_MOST + 1]; /* to leave */
    struct asked_for queue[QUEUE];
    uint32_t n_queue;
    struct ready_step steps[REPLICAS_MOST]; /* the one in flight; number 0: none is */
    struct epoch step_epoch[REPLICAS_MOST];
    uint32_t n_tokens[TOKENS_MOST], n_ended[TOKENS_MOST]; /* of requests, by id */
    enum status status[TOKENS_MOST];
    enum status answer;
    uint64_t moves;              /* of all compute threads: they work on what they have */
    char text[LIMIT_TEXT_BYTES]; /* of the last answer */
    char notes[8192], losses[8192];
};

static struct world w;

static void ask(struct asked_for x)
{
    assert_true(w.n_queue < QUEUE);
    w.queue[w.n_queue++] = x;
}

static void note(char *list, size_t size, const char *text)
{
    size_t n = strlen(list);
    (void)snprintf(list + n, size - n, "%s\n", text);
}

static void take_step(const struct msg_step *s)
{
    uint32_t r = s->epoch.replica;
    w.steps[r] = (struct ready_step){.number = s->number, .n_runs = s->n_runs};
    w.step_epoch[r] = s->epoch;
    for (uint32_t k = 0; k < s->n_runs; k++) w.steps[r].runs[k] = s->runs[k];
    if (s->runs[0].kind == RUN_PROBE) ask((struct asked_for){PROBE, 0, s->epoch});
}

static void to_worker(uint64_t who, const struct msg_to_worker *m)
{
    assert_true(w.n_told[who] == 0 || m->type == TO_LEAVE);
    if (m->type == TO_ASSIGN) {
        w.epoch[who] = m->epoch;
        w.n_assigns[who]++;
        ask((struct asked_for){READY, who, m->epoch});
    } else if (m->type == TO_CONNECT) {
        ask((struct asked_for){LINKED, who, m->epoch});
    } else if (m->type == TO_LEAVE) {
        w.n_told[who]++;
    }
}

static void look(struct actions a)
{
    for (size_t i = 0; i < a.n; i++) {
        const struct action *x = &a.items[i];
        switch (x->type) {
        case ACT_TO_WORKER: to_worker(x->to_worker.instance.lo, x->to_worker.msg); break;
        case ACT_LINK_OPEN: ask((struct asked_for){LINK, 0, x->link.epoch}); break;
        case ACT_LINK_CLOSE: w.steps[x->link.epoch.replica].number = 0; break;
        case ACT_STEP: take_step(x->step); break;
        case ACT_TOKENS:
            assert_int_equal(x->tokens.first_index, w.n_tokens[x->tokens.request]);
            w.n_tokens[x->tokens.request] += x->tokens.n;
            break;
        case ACT_END:
            w.n_ended[x->end.request]++;
            w.status[x->end.request] = x->end.status;
            break;
        case ACT_ANSWER:
            w.answer = x->answer.status;
            (void)snprintf(w.text, sizeof w.text, "%s", x->answer.text);
            break;
        case ACT_EMBEDDING:
        case ACT_DRAFT: break;
        case ACT_NOTE: note(x->loss ? w.losses : w.notes, sizeof w.notes, x->note); break;
        }
    }
}

static void event(struct event e)
{
    look(feed(&w.f, e));
}

static void say(uint64_t who, struct epoch epoch, struct msg_from_worker m)
{
    if (!w.alive[who]) return;
    w.f.epoch = epoch;
    look(from(&w.f, who, m));
}

/* The result of the Step that a replica has in flight. */
static void answer(uint32_t replica)
{
    struct msg_run_result runs[READY_RUNS];
    struct ready_step *s = &w.steps[replica];
    const struct msg_step step = {.runs = s->runs, .n_runs = s->n_runs};
    struct msg_result m = {
        .epoch = w.step_epoch[replica], .number = s->number, .digest = 5, .runs = runs};
    if (s->runs[0].kind != RUN_PROBE) m.n_runs = answers_of(&step, runs);
    s->number = 0;
    event((struct event){.type = EV_RESULT, .result = &m});
}

/* All that was asked for is done. */
static void settle(void)
{
    for (uint32_t i = 0; i < w.n_queue; i++) {
        struct asked_for x = w.queue[i];
        if (x.what == LINK)
            event((struct event){.type = EV_LINK_UP, .link = {x.epoch}});
        else if (x.what == PROBE)
            answer(x.epoch.replica);
        else
            say(x.who, x.epoch,
                (struct msg_from_worker){.type = x.what == READY ? FROM_READY : FROM_LINKED,
                                         .endpoint = "tcp://:5"});
    }
    w.n_queue = 0;
}

static void join_as(uint64_t who, const char *name)
{
    w.alive[who] = true;
    w.n_told[who] = 0;
    look(hello(&w.f, who, name));
}

static void join(uint64_t who)
{
    char name[8];
    (void)snprintf(name, sizeof name, "w%u", (unsigned)who);
    join_as(who, name);
}

/* Time passes in steps of a tick; the living are heard. */
static void wait_ms(uint64_t ms)
{
    for (uint64_t end_ns = w.f.now_ns + ms * MS; w.f.now_ns < end_ns;) {
        uint64_t left = end_ns - w.f.now_ns;
        w.f.now_ns += left < 100 * MS ? left : 100 * MS;
        for (uint64_t who = 1; who <= WORKERS_MOST; who++)
            say(who, w.epoch[who],
                (struct msg_from_worker){.type = FROM_HEARTBEAT,
                                         .heartbeat = {.step_received = 1000, .moves = ++w.moves}});
        event((struct event){.type = EV_TICK});
        settle();
    }
}

static void drain(const char *name, uint64_t limit_ms)
{
    event((struct event){.type = EV_DRAIN, .order = {name, limit_ms * MS}});
}

static void rebalance(const char *name, uint64_t limit_ms)
{
    event((struct event){.type = EV_REBALANCE, .order = {name, limit_ms * MS}});
}

/* A request for ten tokens. */
static void ask_for(uint64_t id)
{
    struct event e = request(id, 4, 10, PRIORITY_NORMAL);
    e.submit.tenant = id; /* no shared pages */
    event(e);
}

/* Steps are issued, and answered in the replicas of which the mask has a bit. */
static void compute(uint32_t mask, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        event((struct event){.type = EV_COMPOSE});
        for (uint32_t r = 0; r < REPLICAS_MOST; r++)
            if (mask >> r & 1 && w.steps[r].number) answer(r);
    }
}

static struct msg_status status(void)
{
    struct msg_status s;
    core_status(w.f.core, &s);
    return s;
}

static const char *state_of(uint32_t replica)
{
    return status().replicas[replica].state;
}

/* In a replica, or as a spare; NULL: it is not known. */
static const char *worker_state(const char *name)
{
    struct msg_status s = status();
    for (uint32_t i = 0; i < s.n_spares; i++)
        if (strcmp(s.spares[i].name, name) == 0) return s.spares[i].state;
    for (uint32_t r = 0; r < s.n_replicas; r++)
        for (uint32_t i = 0; i < s.replicas[r].n_workers; i++)
            if (strcmp(s.replicas[r].workers[i].name, name) == 0)
                return s.replicas[r].workers[i].state;
    return NULL;
}

static bool serves(uint32_t replica, const char *name)
{
    struct msg_status s = status();
    for (uint32_t i = 0; i < s.replicas[replica].n_workers; i++)
        if (strcmp(s.replicas[replica].workers[i].name, name) == 0) return true;
    return false;
}

/* The replica with which a request is, or CORE_NO_REPLICA. */
static uint32_t replica_of(uint64_t id)
{
    for (uint32_t i = 0; i < core_n_sequences(w.f.core); i++)
        if (core_sequence_at(w.f.core, i).request == id)
            return core_sequence_at(w.f.core, i).replica;
    fail_msg("request %u has ended", (unsigned)id);
    return 0;
}

static void open_world(uint32_t n_replicas, uint32_t n_workers, uint64_t replica_wait_ns)
{
    struct core_config k = config();
    k.n_replicas = n_replicas;
    k.window = 1;
    k.n_pages = 64;
    k.max_live = k.max_running = k.max_per_client = 20;
    k.replica_wait_ns = replica_wait_ns;
    k.policy = ROUTE_ROUND_ROBIN;
    core_close(w.f.core);
    w = (struct world){.f = {.core = core_open(&k), .now_ns = 1000 * MS}};
    for (uint64_t who = 1; who <= n_workers; who++) {
        join(who);
        settle();
    }
    for (uint32_t r = 0; r < n_replicas; r++) assert_string_equal(state_of(r), "ready");
}

static int close_world(void **state)
{
    (void)state;
    core_close(w.f.core);
    w.f.core = NULL;
    return 0;
}

/* No order is a fault: nothing was lost, and nobody is to blame. */
static void expect_order(void)
{
    assert_string_equal(w.losses, "");
    struct msg_status s = status();
    for (uint32_t i = 0; i < s.n_spares; i++) assert_int_equal(s.spares[i].faults, 0);
}

/* ---- drain ---- */

static void test_spare_leaves(void **state)
{
    (void)state;
    open_world(1, 3, 0);
    assert_string_equal(worker_state("w3"), "spare");
    drain("nobody", 0);
    assert_int_equal(w.answer, STATUS_NOT_FOUND);
    assert_non_null(strstr(w.text, "'nobody'"));
    drain("w3", 1000);
    assert_int_equal(w.answer, STATUS_OK);
    assert_int_equal(w.n_told[3], 1);
    assert_string_equal(worker_state("w3"), "drained");
    wait_ms(900);
    assert_int_equal(w.n_told[3], 1);
    wait_ms(200); /* the message may be lost: it is told again */
    assert_int_equal(w.n_told[3], 2);
    join_as(3, "w3"); /* the same process, on a new connection */
    assert_string_equal(worker_state("w3"), "drained");
    say(3, w.epoch[3], (struct msg_from_worker){.type = FROM_GOODBYE});
    assert_null(worker_state("w3"));
    assert_non_null(strstr(w.notes, "worker w3 has left, as ordered"));
    assert_string_equal(state_of(0), "ready");
    expect_order();
}

/* A spare is there and requests may wait: nothing is waited for. What runs goes on in the next
 * generation with its very next token. */
static void test_spare_takes_its_place(void **state)
{
    (void)state;
    open_world(1, 3, NS_PER_S);
    ask_for(1);
    compute(1, 3);
    assert_int_equal(w.n_tokens[1], 3);
    drain("w2", 60000);
    assert_int_equal(w.answer, STATUS_OK);
    assert_int_equal(w.n_told[2], 1);
    assert_string_equal(state_of(0), "loading"); /* in the same event */
    assert_true(serves(0, "w1") && serves(0, "w3"));
    settle();
    compute(1, 10);
    assert_int_equal(w.n_tokens[1], 10);
    assert_int_equal(w.n_ended[1], 1);
    assert_int_equal(w.status[1], STATUS_OK);
    expect_order();
    assert_non_null(strstr(w.notes, "ended: worker w2 is to leave; 1 request is replayed"));
}

/* No spare, another replica: the one with the worker takes nothing more, and ends when what it has
 * has ended. */
static void test_finishes_first(void **state)
{
    (void)state;
    open_world(2, 4, 0);
    for (uint64_t id = 1; id <= 2; id++) ask_for(id);
    compute(3, 1);
    assert_int_equal(replica_of(1), 0);
    drain("w1", 60000);
    assert_int_equal(w.n_told[1], 0);
    assert_string_equal(state_of(0), "draining");
    assert_string_equal(worker_state("w1"), "draining");
    assert_string_equal(worker_state("w2"), "serving");
    assert_true(status().ready && !status().replicas[0].ready);
    assert_non_null(strstr(w.text, "the 1 request of replica a has ended, in 60 s"));
    for (uint64_t id = 3; id <= 5; id++) { /* whose turn it would be by round robin */
        ask_for(id);
        assert_int_equal(replica_of(id), 1);
    }
    wait_ms(3000);
    assert_string_equal(state_of(0), "draining");
    compute(1, 10);
    assert_int_equal(w.n_ended[1], 1);
    wait_ms(100);
    assert_string_equal(state_of(0), "waiting");
    assert_int_equal(w.n_told[1], 1);
    assert_string_equal(worker_state("w2"), "spare");
    compute(2, 40);
    for (uint64_t id = 1; id <= 5; id++) assert_int_equal(w.n_ended[id] + w.status[id], 1);
    expect_order();
    say(1, w.epoch[1], (struct msg_from_worker){.type = FROM_GOODBYE});
    join_as(6, "w1"); /* it comes again, as another process: the order is forgotten */
    settle();
    assert_string_equal(state_of(0), "ready");
    assert_true(serves(0, "w1") && serves(0, "w2"));
}

/* What waits for a replica that drains goes to another one at once. */
static void test_queue_moves(void **state)
{
    (void)state;
    open_world(2, 4, 0);
    for (uint64_t id = 1; id <= 4; id++) ask_for(id);
    event((struct event){.type = EV_CANCEL, .request = {2, ""}});
    compute(0, 1); /* 1 and 3 run in a, 4 in b */
    ask_for(5);    /* this one waits in a */
    assert_int_equal(replica_of(5), 0);
    drain("w2", 60000);
    assert_int_equal(replica_of(5), 1);
    assert_int_equal(replica_of(1), 0);
    assert_int_equal(replica_of(3), 0);
}

/* Their time is up: requests are replayed elsewhere, as often as it happens; a second order may
 * shorten the time, and not lengthen it. */
static void test_limit(void **state)
{
    (void)state;
    open_world(2, 4, 0);
    ask_for(1);
    compute(0, 1);
    uint64_t processes[] = {1, 3};
    for (uint32_t turn = 0; turn < 4; turn++) { /* three lost generations would end a request */
        uint32_t r = replica_of(1);
        const char *name = r ? "w3" : "w1";
        uint64_t who = processes[r];
        drain(name, 5000);
        wait_ms(1900);
        drain(name, turn == 1 ? 60000 : 5000);
        if (turn == 2) drain(name, 100);
        assert_string_equal(state_of(r), "draining");
        wait_ms(turn == 2 ? 100 : 3000);
        if (turn != 2) assert_string_equal(state_of(r), "draining");
        wait_ms(200);
        assert_string_equal(state_of(r), "waiting");
        assert_int_equal(replica_of(1), 1 - r);
        say(who, w.epoch[who], (struct msg_from_worker){.type = FROM_GOODBYE});
        w.alive[who] = false;
        join_as(processes[r] = 10 + turn, name);
        wait_ms(100);
        compute(0, 1);
    }
    compute(3, 20);
    assert_int_equal(w.n_ended[1], 1);
    assert_int_equal(w.status[1], STATUS_OK);
    expect_order();
}

/* Nothing may wait: with a spare, too, what runs ends first. */
static void test_nothing_may_wait(void **state)
{
    (void)state;
    open_world(1, 3, 0);
    ask_for(1);
    compute(1, 1);
    drain("w1", 60000);
    assert_string_equal(state_of(0), "draining");
    assert_false(status().ready);
    ask_for(2);
    assert_int_equal(w.status[2], STATUS_UNAVAILABLE);
    compute(1, 10);
    assert_int_equal(w.n_ended[1], 1);
    wait_ms(100);
    assert_string_equal(state_of(0), "ready");
    assert_true(serves(0, "w3") && !serves(0, "w1"));
    expect_order();
}

/* A spare that joins meanwhile ends the waiting. */
static void test_spare_joins(void **state)
{
    (void)state;
    open_world(1, 2, NS_PER_S);
    ask_for(1);
    compute(1, 1);
    drain("w1", 60000);
    wait_ms(1000);
    assert_string_equal(state_of(0), "draining");
    join(3);
    wait_ms(100);
    assert_string_equal(state_of(0), "ready");
    compute(1, 10);
    assert_int_equal(w.n_ended[1], 1);
    assert_int_equal(w.status[1], STATUS_OK);
}

/* A generation that is not ready yet has nothing to wait for. */
static void test_while_loading(void **state)
{
    (void)state;
    open_world(1, 3, NS_PER_S);
    say(1, w.epoch[1], (struct msg_from_worker){.type = FROM_FAULT});
    w.n_queue = 0;
    w.f.now_ns += 500 * MS;
    for (uint64_t who = 1; who <= 3; who++)
        say(who, w.epoch[who], (struct msg_from_worker){.type = FROM_HEARTBEAT});
    event((struct event){.type = EV_TICK});
    assert_string_equal(state_of(0), "loading");
    assert_true(serves(0, "w3"));
    w.n_queue = 0;
    drain("w3", 60000);
    assert_int_equal(w.n_told[3], 1);
    assert_string_equal(state_of(0), "loading");
    assert_true(serves(0, "w1") && serves(0, "w2"));
    settle();
    assert_string_equal(state_of(0), "ready");
}

/* A draining worker that dies is a lost worker. */
static void test_dies_meanwhile(void **state)
{
    (void)state;
    open_world(2, 4, NS_PER_S);
    ask_for(1);
    compute(0, 1);
    drain("w1", 60000);
    w.alive[1] = false;
    wait_ms(2000);
    assert_string_equal(state_of(0), "waiting");
    assert_non_null(strstr(w.losses, "worker w1 lost: silent"));
    assert_int_equal(replica_of(1), 1);
    assert_int_equal(w.n_told[1], 0);
    assert_null(worker_state("w1"));
    join_as(5, "w1");
    wait_ms(200);
    assert_string_equal(state_of(0), "ready");
}

/* ---- rebalance ---- */

/* A worker fails, and its generation begins anew with it: now it has faults. */
static void make_faulty(uint64_t who)
{
    say(who, w.epoch[who], (struct msg_from_worker){.type = FROM_FAULT});
    wait_ms(500);
    w.losses[0] = 0;
}

/* One after the other: while one is planned anew, the other serves. */
static void test_rebalance(void **state)
{
    (void)state;
    open_world(2, 4, 0);
    make_faulty(1);
    make_faulty(3);
    rebalance("", 60000); /* there are no others */
    assert_int_equal(w.answer, STATUS_OK);
    assert_non_null(strstr(w.text, "nothing is gained"));
    assert_string_equal(state_of(0), "ready");
    join(5); /* now there are better ones */
    join(6);
    for (uint64_t id = 1; id <= 2; id++) ask_for(id);
    compute(0, 1);
    uint64_t in_a = replica_of(1) == 0 ? 1 : 2;
    rebalance("c", 0);
    assert_int_equal(w.answer, STATUS_NOT_FOUND);
    rebalance("", 60000);
    assert_int_equal(w.answer, STATUS_OK);
    assert_string_equal(state_of(0), "draining");
    assert_string_equal(state_of(1), "ready");
    assert_true(status().replicas[0].rebalancing && status().replicas[1].rebalancing);
    compute(1, 10);
    assert_int_equal(w.n_ended[in_a], 1);
    event((struct event){.type = EV_TICK});
    assert_string_equal(state_of(0), "loading");
    assert_string_equal(state_of(1), "ready"); /* until the other one is ready */
    wait_ms(100);
    assert_string_equal(state_of(0), "ready");
    assert_false(status().replicas[0].rebalancing);
    assert_true(serves(0, "w5") && !serves(0, "w1"));
    wait_ms(100);
    assert_string_equal(state_of(1), "draining");
    compute(2, 10);
    wait_ms(200);
    assert_string_equal(state_of(1), "ready");
    assert_false(status().replicas[1].rebalancing);
    assert_true(serves(1, "w6") && !serves(1, "w3"));
    for (uint64_t id = 1; id <= 2; id++) assert_int_equal(w.n_ended[id] + w.status[id], 1);
    assert_string_equal(w.losses, "");
}

/* The only replica: what runs waits for its next generation, unless nothing may wait. */
static void test_rebalance_the_only_one(void **state)
{
    (void)state;
    for (uint64_t wait_ns = 0; wait_ns <= NS_PER_S; wait_ns += NS_PER_S) {
        open_world(1, 2, wait_ns);
        make_faulty(1);
        join(3);
        ask_for(1);
        compute(1, 1);
        rebalance("a", 60000);
        assert_string_equal(state_of(0), wait_ns ? "loading" : "draining");
        settle();
        compute(1, 10);
        assert_int_equal(w.n_ended[1], 1);
        assert_int_equal(w.status[1], STATUS_OK);
        wait_ms(100);
        assert_string_equal(state_of(0), "ready");
        assert_false(status().replicas[0].rebalancing);
        assert_int_equal(status().replicas[0].generation, 3);
        assert_true(serves(0, "w3"));
    }
}

/* A second order is not needed where the replica began anew by itself meanwhile; and the gain may
 * be gone when its turn comes. */
static void test_rebalance_overtaken(void **state)
{
    (void)state;
    open_world(2, 4, NS_PER_S);
    make_faulty(1);
    make_faulty(3);
    join(5);
    rebalance("", 60000);
    wait_ms(500);
    assert_true(serves(0, "w5"));
    assert_string_equal(state_of(1), "ready");
    assert_false(status().replicas[1].rebalancing); /* w5 is taken: w3 stays */
    assert_true(serves(1, "w3"));
    assert_non_null(strstr(w.notes, "replica b: nothing is gained by planning it anew"));
}

/* Two replicas that would both gain are ordered to be planned anew, and the first one's workers are
 * told to load. */
static void order_both(void)
{
    open_world(2, 4, 0);
    make_faulty(1);
    make_faulty(3);
    join(5);
    join(6);
    rebalance("", 0);
    assert_string_equal(state_of(0), "loading");
    assert_true(status().replicas[0].rebalancing && status().replicas[1].rebalancing);
    w.n_queue = 0;
}

static void expect_no_further(void)
{
    assert_false(status().replicas[0].rebalancing || status().replicas[1].rebalancing);
    assert_non_null(strstr(w.notes, "replica a: it does not get up again"));
    assert_string_equal(state_of(1), "ready");
    assert_true(serves(1, "w3") && serves(1, "w4"));
}

/* A replica whose workers are gone does not hold an order up for ever, and the other serves on. */
static void test_rebalance_without_workers(void **state)
{
    (void)state;
    order_both();
    w.alive[1] = w.alive[2] = w.alive[5] = w.alive[6] = false;
    wait_ms(3000);
    assert_string_equal(state_of(0), "waiting");
    wait_ms(55000);
    assert_true(status().replicas[0].rebalancing && status().replicas[1].rebalancing);
    wait_ms(10000);
    expect_no_further();
}

/* Nor does one that fails each time that it loads. */
static void test_rebalance_that_fails(void **state)
{
    (void)state;
    order_both();
    for (uint32_t turn = 0; turn < 3; turn++) {
        static const char *const names[] = {"w1", "w2", "w5", "w6"};
        static const uint64_t who[] = {1, 2, 5, 6};
        uint32_t i = 0;
        assert_string_equal(state_of(0), "loading");
        assert_true(status().replicas[1].rebalancing);
        while (!serves(0, names[i])) i++;
        say(who[i], w.epoch[who[i]], (struct msg_from_worker){.type = FROM_FAULT});
        assert_string_equal(state_of(0), "waiting");
        w.f.now_ns += 1000 * MS;
        for (uint64_t x = 1; x <= 6; x++)
            say(x, w.epoch[x], (struct msg_from_worker){.type = FROM_HEARTBEAT});
        event((struct event){.type = EV_TICK});
        if (turn < 2) w.n_queue = 0;
    }
    expect_no_further();
    settle();
    assert_string_equal(state_of(0), "ready"); /* all the same */
}

/* ---- workers that stay away ---- */

static void open_with(struct core_config k)
{
    core_close(w.f.core);
    k.window = 1;
    k.n_pages = 64;
    k.max_live = k.max_running = k.max_per_client = 20;
    k.replica_wait_ns = 300 * NS_PER_S;
    k.deadline_ns = 1000 * NS_PER_S;
    w = (struct world){.f = {.core = core_open(&k), .now_ns = 1000 * MS}};
}

/* After the time that is given the chain is cut for those that are there. A running one is never
 * cut anew by itself: the worker that comes back is a spare, until an order takes it in. */
static void test_survivors(void **state)
{
    (void)state;
    struct core_config k = config();
    k.replan_after_ns = 60 * NS_PER_S;
    open_with(k);
    join(1);
    join(2);
    settle();
    ask_for(1);
    compute(1, 2);
    w.alive[2] = false;
    wait_ms(2000); /* it is lost within them */
    assert_string_equal(state_of(0), "waiting");
    wait_ms(59000);
    assert_string_equal(state_of(0), "waiting");
    wait_ms(3000);
    assert_string_equal(state_of(0), "ready");
    assert_int_equal(status().replicas[0].n_workers, 1);
    assert_int_equal(status().replicas[0].workers[0].layer_first, 0);
    assert_int_equal(status().replicas[0].workers[0].layer_last, 4);
    assert_non_null(strstr(w.notes, "it is cut for 1 of 2"));
    compute(1, 10);
    assert_int_equal(w.n_ended[1], 1);
    assert_int_equal(w.status[1], STATUS_OK);
    join_as(3, "w2");
    wait_ms(60000);
    assert_int_equal(status().replicas[0].n_workers, 1);
    assert_string_equal(worker_state("w2"), "spare");
    rebalance("", 1000);
    wait_ms(100);
    assert_string_equal(state_of(0), "ready");
    assert_int_equal(status().replicas[0].n_workers, 2);
    say(1, w.epoch[1], (struct msg_from_worker){.type = FROM_GOODBYE});
    wait_ms(50000); /* the time begins anew */
    assert_string_equal(state_of(0), "waiting");
    wait_ms(12000);
    assert_int_equal(status().replicas[0].n_workers, 1);
    say(3, w.epoch[3], (struct msg_from_worker){.type = FROM_FAULT});
    wait_ms(500); /* the one that is there is enough: others have been given up */
    assert_string_equal(state_of(0), "ready");
    assert_int_equal(status().replicas[0].n_workers, 1);
}

/* Who returns is waited for a while longer, since others may return too; and 0 waits for ever. */
static void test_who_returns(void **state)
{
    (void)state;
    for (int never = 0; never < 2; never++) {
        struct core_config k = config();
        k.replan_after_ns = never ? 0 : 60 * NS_PER_S;
        open_with(k);
        join(1);
        join(2);
        settle();
        w.alive[1] = w.alive[2] = false;
        wait_ms(100000);
        assert_string_equal(state_of(0), "waiting");
        join_as(3, "w1");
        wait_ms(4000);
        assert_string_equal(state_of(0), "waiting");
        wait_ms(2000);
        assert_string_equal(state_of(0), never ? "waiting" : "ready");
    }
}

/* A cluster that never had all of its workers; and one whose slices are too large for fewer. */
static void test_never_complete(void **state)
{
    (void)state;
    for (uint32_t least = 0; least <= 2; least += 2) {
        struct core_config k = config();
        k.replan_after_ns = 60 * NS_PER_S;
        k.costs.stages_least = least;
        open_with(k);
        wait_ms(100000); /* nobody is there: nothing is counted */
        join(1);
        wait_ms(59000);
        assert_string_equal(state_of(0), "waiting");
        wait_ms(3000);
        assert_string_equal(state_of(0), least ? "waiting" : "ready");
    }
}

/* A chain that was cut for one worker and is lost is to have two again: a replica that never ran
 * takes nothing from it. */
static void test_whole_again(void **state)
{
    (void)state;
    struct core_config k = config();
    k.n_replicas = 2;
    k.replan_after_ns = 60 * NS_PER_S;
    open_with(k);
    join(1);
    wait_ms(62000);
    assert_string_equal(state_of(0), "ready");
    assert_int_equal(status().replicas[0].n_workers, 1);
    say(1, w.epoch[1], (struct msg_from_worker){.type = FROM_FAULT});
    join(2);
    join(3);
    assert_int_equal(status().replicas[1].generation, 0);
    wait_ms(200);
    assert_string_equal(state_of(0), "ready");
    assert_int_equal(status().replicas[0].n_workers, 2);
}

/* ---- replicas for which workers come ---- */

/* One is wanted, and at most three: each time that there are workers for one more, it begins.
 * Spares complete first what has lost a worker. */
static void test_more_replicas(void **state)
{
    (void)state;
    struct core_config k = config();
    k.n_replicas = 3;
    k.n_wanted = 1;
    k.replan_after_ns = 60 * NS_PER_S;
    open_with(k);
    assert_int_equal(status().n_replicas, 1);
    for (uint64_t who = 1; who <= 3; who++) join(who);
    wait_ms(100);
    assert_int_equal(status().n_replicas, 1);
    assert_string_equal(worker_state("w3"), "spare");
    wait_ms(70000); /* no replica that nobody waits for is cut shorter */
    assert_string_equal(worker_state("w3"), "spare");
    join(4);
    wait_ms(100);
    assert_int_equal(status().n_replicas, 2);
    assert_string_equal(state_of(1), "ready");
    for (uint64_t id = 1; id <= 4; id++) ask_for(id);
    assert_true(replica_of(1) != replica_of(2)); /* it takes traffic */
    for (uint64_t who = 5; who <= 9; who++) join(who);
    wait_ms(100);
    assert_int_equal(status().n_replicas, 3);
    assert_int_equal(status().n_spares, 3); /* no more than three */
    drain("w1", 60000);
    wait_ms(100);
    assert_string_equal(state_of(0), "ready");
    assert_int_equal(status().n_spares, 3);
    compute(7, 40);
    for (uint64_t id = 1; id <= 4; id++) assert_int_equal(w.n_ended[id] + w.status[id], 1);
}

/* ---- what the log says of processes that are gone ---- */

static void test_process_before(void **state)
{
    (void)state;
    open_world(1, 2, NS_PER_S);
    event((struct event){.type = EV_LINK_LOST, .link = {w.epoch[1]}});
    w.alive[1] = false; /* killed; a new process has its name before its silence is noticed */
    w.losses[0] = 0;
    join_as(5, "w1");
    wait_ms(3000);
    assert_string_equal(state_of(0), "ready");
    assert_string_equal(w.losses, "");
    assert_non_null(strstr(w.notes, "the process that worker w1 had before is gone"));
    w.alive[5] = false;
    wait_ms(3000); /* this time nobody comes */
    assert_non_null(strstr(w.losses, "worker w1 lost: silent"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_spare_leaves, close_world),
        cmocka_unit_test_teardown(test_spare_takes_its_place, close_world),
        cmocka_unit_test_teardown(test_finishes_first, close_world),
        cmocka_unit_test_teardown(test_queue_moves, close_world),
        cmocka_unit_test_teardown(test_limit, close_world),
        cmocka_unit_test_teardown(test_nothing_may_wait, close_world),
        cmocka_unit_test_teardown(test_spare_joins, close_world),
        cmocka_unit_test_teardown(test_while_loading, close_world),
        cmocka_unit_test_teardown(test_dies_meanwhile, close_world),
        cmocka_unit_test_teardown(test_rebalance, close_world),
        cmocka_unit_test_teardown(test_rebalance_the_only_one, close_world),
        cmocka_unit_test_teardown(test_rebalance_overtaken, close_world),
        cmocka_unit_test_teardown(test_rebalance_without_workers, close_world),
        cmocka_unit_test_teardown(test_rebalance_that_fails, close_world),
        cmocka_unit_test_teardown(test_survivors, close_world),
        cmocka_unit_test_teardown(test_who_returns, close_world),
        cmocka_unit_test_teardown(test_never_complete, close_world),
        cmocka_unit_test_teardown(test_whole_again, close_world),
        cmocka_unit_test_teardown(test_more_replicas, close_world),
        cmocka_unit_test_teardown(test_process_before, close_world),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
