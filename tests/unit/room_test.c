/* How large the KV pool may be by what the workers tell of their memory, and what the core does
 * with that when a generation begins. */
#include "coordinator/core/room.h"

#include "common/base/machine.h"
#include "tests/lib/core_fixture.h"

#include <stdlib.h>

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)
#define LAYERS 8u
#define PAGE 16u

/* Layers of 100 MiB; at both ends the same tensor of 50 MiB (an embedding that is the output head
 * too); a page takes 1 MiB a layer. */
static const uint64_t layer_bytes[LAYERS] = {150 * MIB, 100 * MIB, 100 * MIB, 100 * MIB,
                                             100 * MIB, 100 * MIB, 100 * MIB, 150 * MIB};
static const struct room_costs costs = {.layer_bytes = layer_bytes,
                                        .tied_bytes = 50 * MIB,
                                        .page_layer_bytes = MIB,
                                        .page_bytes = MIB / 2,
                                        .worker_bytes = 64 * MIB,
                                        .thread_bytes = 4 * MIB,
                                        .last_bytes = 10 * MIB};

static struct room_stage stage(uint32_t first, uint32_t last, uint64_t machine, uint64_t free)
{
    return (struct room_stage){.layer_first = first,
                               .layer_last = last,
                               .threads = 2,
                               .memory = {.machine = machine, .machine_free = free}};
}

static void test_one_worker(void **state)
{
    (void)state;
    struct room_stage s = stage(0, 7, 1, 8 * GIB);
    uint64_t rest = 850 * MIB + (64 + 2 * 4 + 10) * MIB, page = 8 * MIB + MIB / 2;
    struct room r = room_of(&costs, LAYERS, &s, 1, true);
    assert_true(r.rest_bytes == rest && r.have_bytes == 8 * GIB && r.place == ROOM_MACHINE);
    assert_true(r.pages == (8 * GIB - rest - machine_reserve(8 * GIB)) / page);
    r = room_of(&costs, LAYERS, &s, 1, false);
    assert_true(r.pages == (8 * GIB - rest - machine_reserve(8 * GIB) / 2) / page);
    s.memory.held = 1 * GIB; /* it has loaded its slice, which does not count twice */
    s.memory.machine_free = 7 * GIB;
    assert_true(room_of(&costs, LAYERS, &s, 1, false).pages == r.pages);
    s.memory.machine_free = 0;
    s.memory.held = 0;
    assert_true(room_of(&costs, LAYERS, &s, 1, false).pages == 0);
    s.memory.machine = 0;
    assert_true(room_of(&costs, LAYERS, &s, 1, false).pages == ROOM_UNKNOWN);
}

/* Two workers of one machine share what each would have on its own machine; and what one of them
 * holds already is counted for both. */
static void test_sharing(void **state)
{
    (void)state;
    struct room_stage apart[] = {stage(0, 3, 1, 4 * GIB), stage(4, 7, 2, 4 * GIB)};
    struct room_stage beside[] = {stage(0, 3, 1, 4 * GIB), stage(4, 7, 1, 4 * GIB)};
    struct room a = room_of(&costs, LAYERS, apart, 2, false);
    struct room b = room_of(&costs, LAYERS, beside, 2, false);
    assert_true(a.n_sharing == 1 && b.n_sharing == 2 && b.tightest == 0);
    assert_true(a.tightest == 1); /* it has the logits too */
    uint64_t each = 450 * MIB + 72 * MIB, page = 4 * MIB + MIB / 2;
    assert_true(a.pages == (4 * GIB - each - 10 * MIB - machine_reserve(4 * GIB) / 2) / page);
    assert_true(b.pages ==
                (4 * GIB - 2 * each - 10 * MIB - machine_reserve(4 * GIB) / 2) / (2 * page));
    /* One was started again while the other holds its slice; they told their memory at different
     * moments. */
    beside[0].memory = (struct msg_memory){.machine = 1, .machine_free = 3 * GIB, .held = 1 * GIB};
    beside[1].memory = (struct msg_memory){.machine = 1, .machine_free = 3 * GIB + 90 * MIB};
    assert_true(room_of(&costs, LAYERS, beside, 2, false).pages == b.pages);
}

/* A memory group bounds the workers in it, the machine all of them. */
static void test_groups(void **state)
{
    (void)state;
    struct room_stage s[] = {stage(0, 3, 1, 16 * GIB), stage(4, 7, 1, 16 * GIB)};
    s[1].memory.group = 7;
    s[1].memory.group_free = 1 * GIB;
    struct room r = room_of(&costs, LAYERS, s, 2, false);
    assert_true(r.place == ROOM_GROUP && r.tightest == 1 && r.n_sharing == 1 &&
                r.have_bytes == 1 * GIB);
    s[0].memory.group = 7; /* now both are in it */
    s[0].memory.group_free = 1 * GIB;
    assert_true(room_of(&costs, LAYERS, s, 2, false).n_sharing == 2);
    s[0].memory.group = 8; /* two containers of 15 GiB on one machine of 16 */
    s[0].memory.group_free = s[1].memory.group_free = 15 * GIB;
    r = room_of(&costs, LAYERS, s, 2, false);
    assert_true(r.place == ROOM_MACHINE && r.n_sharing == 2);
}

/* What the file lets a worker take bounds it alone, and all of it may be used. */
static void test_wish(void **state)
{
    (void)state;
    struct room_stage s[] = {stage(0, 3, 1, 64 * GIB), stage(4, 7, 1, 64 * GIB)};
    s[0].most_bytes = s[1].most_bytes = 2 * GIB;
    uint64_t rest = 450 * MIB + 72 * MIB + 10 * MIB, page = 4 * MIB + MIB / 2;
    struct room r = room_of(&costs, LAYERS, s, 2, true);
    assert_true(r.place == ROOM_WISH && r.tightest == 1 && r.n_sharing == 1);
    assert_true(r.have_bytes == 2 * GIB && r.pages == (2 * GIB - rest) / page);
    s[1].memory.held = 3 * GIB; /* of another model, which goes */
    assert_true(room_of(&costs, LAYERS, s, 2, true).pages == r.pages);
    assert_true(room_for_slice(&costs, &s[0], true) == 2 * GIB - 72 * MIB);
    s[0].most_bytes = 100 * GIB;
    assert_true(room_for_slice(&costs, &s[0], true) ==
                64 * GIB - 72 * MIB - machine_reserve(64 * GIB));
    s[0].most_bytes = 50 * MIB;
    assert_true(room_for_slice(&costs, &s[0], false) == 0);
    s[0].most_bytes = 0;
    s[0].memory.machine = 0;
    assert_true(room_for_slice(&costs, &s[0], false) == UINT64_MAX);
}

/* Windowed pages follow from the whole ones; and as many of both as have room. */
static void test_windowed(void **state)
{
    (void)state;
    static const bool windowed[LAYERS] = {true, true, true, false, true, true, true, false};
    struct room_costs c = costs;
    assert_int_equal(room_windowed(&c, 1000), 0);
    assert_int_equal(room_layers_windowed(&c, 0, LAYERS), 0);
    c.layer_windowed = windowed;
    c.windowed_least = 10;
    c.windowed_most = 100;
    const uint32_t of[][2] = {{0, 0}, {5, 5}, {20, 10}, {40, 10}, {60, 15}, {399, 99}, {1000, 100}};
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++)
        assert_int_equal(room_windowed(&c, of[i][0]), of[i][1]);
    assert_int_equal(room_layers_windowed(&c, 0, LAYERS), 6);
    assert_int_equal(room_layers_windowed(&c, 3, 5), 1);
    for (uint64_t gib = 1; gib < 12; gib++) {
        struct room_stage s = stage(0, 7, 1, gib * GIB);
        struct room r = room_of(&c, LAYERS, &s, 1, true);
        uint64_t left = r.have_bytes > r.taken_bytes ? r.have_bytes - r.taken_bytes : 0;
        for (uint64_t n = r.pages; n < r.pages + 2 && r.pages; n++)
            assert_int_equal(n * (5 * MIB / 2) + room_windowed(&c, n) * 6 * MIB <= left,
                             n == r.pages);
        uint64_t all = room_of(&costs, LAYERS, &s, 1, true).pages;
        assert_true(r.pages >= all && (gib < 4 || r.pages > 2 * all));
    }
    /* R of a window of 512 and chunks of 512: 32 pages before, and 33 for rows anywhere in a page.
     */
    assert_int_equal(room_window(512, 16, 512), 65);
    assert_int_equal(room_window(1, 16, 1), 1);
    assert_int_equal(room_window(2, 16, 1), 2);
}

/* Whatever figures a peer tells, nothing overflows. */
static void test_absurd(void **state)
{
    (void)state;
    struct room_stage s[LIMIT_STAGES];
    for (uint32_t i = 0; i < LIMIT_STAGES; i++) {
        s[i] = stage(i % LAYERS, i % LAYERS, 1, UINT64_MAX);
        s[i].memory.held = UINT64_MAX;
        s[i].memory.group = 1;
        s[i].memory.group_free = UINT64_MAX;
        s[i].threads = UINT32_MAX;
    }
    struct room r = room_of(&costs, LAYERS, s, LIMIT_STAGES, true);
    assert_true(r.pages == 0); /* the threads alone need more */
    for (uint32_t i = 0; i < LIMIT_STAGES; i++) s[i].threads = 1;
    r = room_of(&costs, LAYERS, s, LIMIT_STAGES, true);
    assert_true(r.pages > 0 && r.pages < ROOM_UNKNOWN);
    struct room_stage two[] = {stage(0, 3, 1, 0), stage(4, 7, 1, 0)};
    two[0].memory.held = two[1].memory.held = (uint64_t)1 << 63; /* their sum is 0 */
    assert_true(room_of(&costs, LAYERS, two, 2, true).pages > 0);
}

/* ---- in the core ---- */

static struct core_config room_config(void)
{
    struct core_config k = config();
    k.n_layers = LAYERS;
    k.n_pages = 0;
    k.pages_most = 1000;
    k.costs = costs;
    k.window = 1;
    k.max_live = k.max_running = k.max_per_client = 8;
    k.replica_wait_ns = 5000 * MS;
    return k;
}

static struct fixture open_core(uint32_t n_pages, uint32_t pages_least, uint32_t ctx)
{
    struct core_config k = room_config();
    k.n_pages = n_pages;
    k.pages_least = pages_least;
    k.ctx = ctx;
    return (struct fixture){.core = core_open(&k), .now_ns = 1000 * MS};
}

/* Worker `who` of machine `machine` says Hello, or says again what it has. */
static struct actions tell(struct fixture *f, uint64_t who, bool hello, uint64_t machine,
                           uint64_t free, uint64_t held, uint32_t held_pages)
{
    struct msg_from_worker m = {
        .type = hello ? FROM_HELLO : FROM_HEARTBEAT,
        .hello = {.threads = 2},
        .memory = {
            .machine = machine, .machine_free = free, .held = held, .held_pages = held_pages}};
    (void)snprintf(m.hello.name, sizeof m.hello.name, "w%u", (unsigned)who);
    return from(f, who, m);
}

static const struct msg_assign *assigned(struct fixture *f)
{
    for (size_t i = 0; i < f->last.n; i++) {
        const struct action *a = &f->last.items[i];
        if (a->type != ACT_TO_WORKER || a->to_worker.msg->type != TO_ASSIGN) continue;
        f->epoch = a->to_worker.msg->epoch;
        return &a->to_worker.msg->assign;
    }
    return NULL;
}

static struct msg_replica_status status(struct fixture *f)
{
    static struct msg_status s;
    core_status(f->core, &s);
    return s.replicas[0];
}

static uint32_t notes(const struct fixture *f, const char *with)
{
    uint32_t n = 0;
    for (size_t i = 0; i < f->last.n; i++)
        n += f->last.items[i].type == ACT_NOTE && strstr(f->last.items[i].note, with);
    return n;
}

static const struct action *ended(const struct fixture *f, uint64_t id)
{
    for (size_t i = 0; i < f->last.n; i++)
        if (f->last.items[i].type == ACT_END && f->last.items[i].end.request == id)
            return &f->last.items[i];
    return NULL;
}

/* Both workers' slices and 100 pages of half of the layers each. */
static uint64_t bytes_for(uint64_t pages)
{
    uint64_t rest = 2 * (450 + 72) * MIB + 10 * MIB + 2 * pages * (4 * MIB + MIB / 2), have = rest;
    while (have - machine_reserve(have) < rest) have += MIB;
    return have;
}

/* The pool is as large as the machine of both workers has room for; the log tells its size, which
 * bounds the context. */
static void test_pool_by_room(void **state)
{
    (void)state;
    struct fixture f = open_core(0, 10, 4096);
    assert_int_equal(status(&f).pages_total, 0);
    (void)tell(&f, 1, true, 1, bytes_for(100), 0, 0);
    (void)tell(&f, 2, true, 1, bytes_for(100), 0, 0);
    const struct msg_assign *a = assigned(&f);
    assert_non_null(a);
    assert_int_equal(a->n_pages, 100);
    assert_int_equal(notes(&f, "KV pool of 1600 tokens, contexts of 1600"), 1);
    assert_int_equal(notes(&f, "worker w1 and 1 more"), 1);
    assert_int_equal(status(&f).pages_total, 100);
    assert_int_equal(core_pages(f.core, 0).n_free, 100);
    (void)submit(&f, 1, 1600, 4);
    assert_int_equal(ended(&f, 1)->end.status, STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(ended(&f, 1)->end.text, "the context of 1600"));
    (void)submit(&f, 2, 1599, 4);
    assert_null(ended(&f, 2));
    core_close(f.core);
}

/* The pool is never more than the sequences can use; for workers that tell nothing of their memory
 * it is two contexts. */
static void test_pool_bounds(void **state)
{
    (void)state;
    struct fixture f = open_core(0, 10, 4096);
    (void)tell(&f, 1, true, 1, 900 * GIB, 0, 0);
    (void)tell(&f, 2, true, 2, 900 * GIB, 0, 0);
    assert_int_equal(assigned(&f)->n_pages, 1000);
    core_close(f.core);
    f = open_core(0, 10, 4096);
    (void)tell(&f, 1, true, 0, 0, 0, 0);
    (void)tell(&f, 2, true, 0, 0, 0, 0);
    assert_int_equal(assigned(&f)->n_pages, 2 * 4096 / PAGE);
    core_close(f.core);
}

/* A pool that cannot fit is refused before any worker loads: status and requests say why, and what
 * would fit. It is tried again and again, but logged once. */
static void test_refused(void **state)
{
    (void)state;
    for (int fixed = 0; fixed < 2; fixed++) {
        struct fixture f = open_core(fixed ? 200 : 0, fixed ? 0 : 200, 3200);
        (void)submit(&f, 1, 10, 4);
        (void)tell(&f, 1, true, 1, bytes_for(100), 0, 0);
        (void)tell(&f, 2, true, 1, bytes_for(100), 0, 0);
        assert_null(assigned(&f));
        assert_int_equal(notes(&f, "no generation can begin"), 1);
        struct msg_replica_status s = status(&f);
        assert_string_equal(s.state, "waiting");
        assert_int_equal(s.generation, 0);
        assert_int_equal(s.n_workers, 0);
        const char *const words[] = {
            fixed ? "no room for 'kv_tokens' of 3200:" : "no room for 'ctx' of 3200:",
            "'kv_tokens' or 'ctx' that fits is ", "worker w1 and 1 more", " MiB more are needed;"};
        for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
            if (!strstr(s.why, words[i])) fail_msg("'%s' is not in '%s'", words[i], s.why);
        for (int i = 0; i < 140; i++) {
            f.now_ns += 50 * MS;
            (void)tell(&f, 1, false, 1, bytes_for(100), 0, 0);
            (void)tell(&f, 2, false, 1, bytes_for(100), 0, 0);
            (void)feed(&f, (struct event){.type = EV_TICK});
            assert_int_equal(notes(&f, "no generation can begin"), 0);
            if (ended(&f, 1)) break;
        }
        const struct action *end = ended(&f, 1);
        assert_non_null(end);
        assert_int_equal(end->end.status, STATUS_UNAVAILABLE);
        for (size_t i = 0; i + 1 < sizeof words / sizeof words[0];
             i++) /* a client has the beginning */
            if (!strstr(end->end.text, words[i])) fail_msg("'%s'", end->end.text);
        uint32_t fits = (uint32_t)strtoul(strstr(end->end.text, "fits is ") + 8, NULL, 10);
        assert_true(fits > 1600 && fits < 3200 && fits % PAGE == 0);
        (void)tell(&f, 1, false, 1, bytes_for(300), 0, 0); /* memory has become free */
        (void)tell(&f, 2, false, 1, bytes_for(300), 0, 0);
        f.now_ns += 1000 * MS;
        (void)tell(&f, 1, false, 1, bytes_for(300), 0, 0);
        (void)tell(&f, 2, false, 1, bytes_for(300), 0, 0);
        (void)feed(&f, (struct event){.type = EV_TICK});
        const struct msg_assign *a = assigned(&f);
        assert_non_null(a);
        assert_int_equal(a->n_pages, fixed ? 200 : 300);
        core_close(f.core);
    }
}

/* A pool whose size the cluster file names may use half of the reserve. */
static void test_fixed(void **state)
{
    (void)state;
    struct fixture f = open_core(110, 0, 4096);
    (void)tell(&f, 1, true, 1, bytes_for(100), 0, 0);
    (void)tell(&f, 2, true, 1, bytes_for(100), 0, 0);
    const struct msg_assign *a = assigned(&f);
    assert_non_null(a);
    assert_int_equal(a->n_pages, 110);
    core_close(f.core);
}

static void lose(struct fixture *f)
{
    (void)from(f, 1, (struct msg_from_worker){.type = FROM_FAULT, .text = "broken"});
    f->now_ns += 400 * MS;
}

/* The new generation's probe and Steps, until the request ends, which must be with STATUS_OK.
 * n_tokens: how many each has got. */
static void run_to_end(struct fixture *f, uint64_t id, uint32_t *n_tokens)
{
    for (uint64_t w = 1; w <= 2; w++)
        (void)from(f, w, (struct msg_from_worker){.type = FROM_READY, .endpoint = "tcp://:5"});
    for (uint64_t w = 1; w <= 2; w++)
        (void)from(f, w, (struct msg_from_worker){.type = FROM_LINKED});
    (void)feed(f, (struct event){.type = EV_LINK_UP, .link = {f->epoch}});
    for (int turn = 0; turn < 1000; turn++) {
        struct msg_run_result runs[LIMIT_STEP_RUNS];
        struct msg_result r = {.epoch = f->epoch, .digest = 5, .runs = runs};
        for (size_t i = 0; i < f->last.n && r.number == 0; i++) {
            const struct action *a = &f->last.items[i];
            if (a->type != ACT_STEP) continue;
            r.number = a->step->number;
            if (a->step->runs[0].kind != RUN_PROBE) r.n_runs = answers_of(a->step, runs);
        }
        if (r.number) (void)feed(f, (struct event){.type = EV_RESULT, .result = &r});
        for (size_t i = 0; i < f->last.n; i++)
            if (f->last.items[i].type == ACT_TOKENS)
                n_tokens[f->last.items[i].tokens.request] += f->last.items[i].tokens.n;
        const struct action *end = ended(f, id);
        if (end && end->end.status != STATUS_OK) fail_msg("%s", end->end.text);
        if (end) return;
        (void)feed(f, (struct event){.type = EV_COMPOSE});
    }
    fail_msg("request %u does not end", (unsigned)id);
}

/* A pool that the workers hold stays as it is while it fits; when it must be smaller, what can
 * never fit ends, and says so. */
static void test_next_generation(void **state)
{
    (void)state;
    struct fixture f = open_core(0, 10, 4096);
    (void)tell(&f, 1, true, 1, bytes_for(100), 0, 0);
    (void)tell(&f, 2, true, 1, bytes_for(100), 0, 0);
    assert_int_equal(assigned(&f)->n_pages, 100);
    (void)submit(&f, 1, 700, 20);
    (void)submit(&f, 2, 500, 2000);
    (void)submit(&f, 3, 300, 1000);
    for (uint64_t w = 1; w <= 2; w++)
        (void)from(&f, w, (struct msg_from_worker){.type = FROM_READY, .endpoint = "tcp://:5"});
    /* Both hold slice and pool; a little less is left than they were planned with, then more. */
    uint64_t held = (450 + 72 + 450) * MIB, left = bytes_for(100) - 2 * held;
    const int64_t others[] = {-32 * (int64_t)MIB, 400 * (int64_t)MIB};
    for (int i = 0; i < 2; i++) {
        lose(&f);
        uint64_t now = (uint64_t)((int64_t)left + others[i]);
        (void)tell(&f, 1, false, 1, now, held, 100);
        (void)tell(&f, 2, false, 1, now, held, 100);
        (void)feed(&f, (struct event){.type = EV_TICK});
        const struct msg_assign *a = assigned(&f);
        assert_non_null(a);
        assert_int_equal(a->n_pages, 100);
        for (uint64_t w = 1; w <= 2; w++)
            (void)from(&f, w, (struct msg_from_worker){.type = FROM_READY, .endpoint = "tcp://:5"});
    }
    lose(&f); /* the third time: the worker to blame is held down for two seconds */
    uint64_t room = bytes_for(40); /* both gave up what they had, and the machine is busier */
    for (int i = 0; i < 3; i++) {
        f.now_ns += 1000 * MS;
        (void)tell(&f, 1, false, 1, room, 0, 0);
        (void)tell(&f, 2, false, 1, room, 0, 0);
    }
    (void)feed(&f, (struct event){.type = EV_TICK});
    assert_non_null(assigned(&f));
    assert_int_equal(assigned(&f)->n_pages, 40);
    assert_int_equal(core_pages(f.core, 0).n_free, 40);
    const struct action *end = ended(&f, 1);
    assert_non_null(end);
    assert_int_equal(end->end.status, STATUS_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(end->end.text, "700 tokens do not fit the context of 640"));
    assert_null(ended(&f, 2)); /* it may still grow, to the new context */
    uint32_t n_tokens[4] = {0};
    run_to_end(&f, 2, n_tokens);
    assert_int_equal(n_tokens[2], 640 - 500);
    run_to_end(&f, 3, n_tokens);
    assert_int_equal(n_tokens[3], 640 - 300); /* it asked for what the old one had */
    core_close(f.core);
}

/* A coordinator that is started again takes the pool that its workers hold, if all hold one of the
 * same size and the slices of the plan; else it plans a new one. */
static void test_next_coordinator(void **state)
{
    (void)state;
    static const struct {
        uint32_t layer_first, pages, want; /* of the second worker; of the plan */
    } cases[] = {{4, 97, 97}, {4, 90, 100}, {3, 90, 97}};
    uint64_t held = (450 + 72 + 400) * MIB;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fixture f = open_core(0, 10, 4096);
        for (uint64_t w = 1; w <= 2; w++) {
            struct msg_from_worker m = {
                .type = FROM_HELLO,
                .hello = {.threads = 2,
                          .holds = true,
                          .holding = {9, w == 1 ? 0 : cases[i].layer_first, w == 1 ? 3 : 7}},
                .memory = {.machine = 1,
                           .machine_free = bytes_for(100) - 2 * held,
                           .held = held,
                           .held_pages = w == 1 ? 97 : cases[i].pages}};
            (void)snprintf(m.hello.name, sizeof m.hello.name, "w%u", (unsigned)w);
            (void)from(&f, w, m);
        }
        const struct msg_assign *a = assigned(&f);
        assert_non_null(a);
        if (a->n_pages != cases[i].want) fail_msg("case %zu: %u pages", i, a->n_pages);
        core_close(f.core);
    }
}

/* The pool is bounded by the coordinator's memory for the tables of its pages, too. */
static void test_tables(void **state)
{
    (void)state;
    struct room_costs c = costs;
    c.table_bytes = 50 * pages_bytes(PAGE);
    struct core_config k = room_config();
    k.n_stages = 1;
    k.pages_least = 1;
    k.costs = c;
    k.ctx = 4096;
    struct fixture f = {.core = core_open(&k), .now_ns = 1000 * MS};
    (void)tell(&f, 1, true, 1, 900 * GIB, 0, 0);
    assert_int_equal(assigned(&f)->n_pages, 50);
    core_close(f.core);
}

/* Two replicas on one machine: the first waits for the workers of both, and leaves the other its
 * part; after five seconds it takes what is left beside the workers that are there. */
static void test_two_replicas(void **state)
{
    (void)state;
    struct core_config k = room_config();
    k.n_replicas = 2;
    k.pages_least = 10;
    k.ctx = 4096;
    for (int all = 0; all < 2; all++) {
        struct fixture f = {.core = core_open(&k), .now_ns = 1000 * MS};
        (void)tell(&f, 1, true, 1, 2 * bytes_for(100), 0, 0);
        (void)tell(&f, 2, true, 1, 2 * bytes_for(100), 0, 0);
        assert_null(assigned(&f));
        if (all) {
            (void)tell(&f, 3, true, 1, 2 * bytes_for(100), 0, 0);
            (void)tell(&f, 4, true, 1, 2 * bytes_for(100), 0, 0);
            assert_int_equal(assigned(&f)->n_pages, 100);
        } else {
            for (int i = 0; i < 5; i++) {
                f.now_ns += 1001 * MS;
                (void)tell(&f, 1, false, 1, 2 * bytes_for(100), 0, 0);
                (void)tell(&f, 2, false, 1, 2 * bytes_for(100), 0, 0);
                (void)feed(&f, (struct event){.type = EV_TICK});
            }
            assert_true(assigned(&f)->n_pages > 150);
        }
        core_close(f.core);
    }
}

/* A replica of one stage that was planned a moment ago loads, links, and answers its probe. */
static void serve(struct fixture *f, uint64_t who)
{
    const struct msg_result probe = {.epoch = f->epoch, .number = 1, .digest = 5};
    (void)from(f, who, (struct msg_from_worker){.type = FROM_READY, .endpoint = "tcp://:5"});
    (void)from(f, who, (struct msg_from_worker){.type = FROM_LINKED});
    (void)feed(f, (struct event){.type = EV_LINK_UP, .link = {f->epoch}});
    (void)feed(f, (struct event){.type = EV_RESULT, .result = &probe});
}

static uint32_t where(const struct fixture *f, uint64_t id)
{
    for (uint32_t i = 0; i < core_n_sequences(f->core); i++)
        if (core_sequence_at(f->core, i).request == id) return core_sequence_at(f->core, i).replica;
    return CORE_NO_REPLICA;
}

/* Two replicas of one worker each, whose pools are what its machine has room for. */
static struct core_config uneven_config(void)
{
    struct core_config k = room_config();
    k.n_replicas = 2;
    k.n_stages = 1;
    k.pages_least = 10;
    k.ctx = 4096;
    return k;
}

/* Where machines differ, so do the contexts of replicas. An answer that may be as long as its
 * context holds goes to any of them, also while another one is not there yet, or no longer; one
 * with a limit only where it fits, and what fits nowhere is refused at once. */
static void test_uneven_pools(void **state)
{
    (void)state;
    struct core_config k = uneven_config();
    k.n_wanted = 1;
    struct fixture f = {.core = core_open(&k), .now_ns = 1000 * MS};
    (void)tell(&f, 1, true, 1, 3 * GIB, 0, 0);
    uint32_t large = assigned(&f)->n_pages * PAGE;
    serve(&f, 1);
    (void)submit(&f, 1, 10, 4096);
    assert_int_equal(where(&f, 1), 0);
    (void)submit(&f, 2, large, 1);
    assert_non_null(ended(&f, 2));
    assert_int_equal(ended(&f, 2)->end.status, STATUS_INVALID_ARGUMENT);
    (void)tell(&f, 2, true, 2, 3 * GIB - 200 * MIB, 0, 0);
    uint32_t small = assigned(&f)->n_pages * PAGE;
    assert_true(small < large && small > large / 2);
    serve(&f, 2);
    uint32_t n_at[2] = {0};
    for (uint64_t id = 3; id < 7; id++) {
        (void)submit(&f, id, 10, 4096);
        assert_true(where(&f, id) < 2);
        n_at[where(&f, id)]++;
    }
    assert_true(n_at[0] && n_at[1]);
    (void)submit(&f, 7, 10, small - 9);
    assert_int_equal(where(&f, 7), 0);
    f.epoch.replica = 0;
    (void)from(&f, 1, (struct msg_from_worker){.type = FROM_GOODBYE});
    assert_int_equal(where(&f, 1), 1);
    assert_int_equal(where(&f, 7), CORE_NO_REPLICA);
    core_close(f.core);
}

/* As long as a replica that is wanted has no pool, nobody knows that a request is too long for all:
 * it waits for that one. */
static void test_a_pool_to_come(void **state)
{
    (void)state;
    struct core_config k = uneven_config();
    struct fixture f = {.core = core_open(&k), .now_ns = 1000 * MS};
    (void)tell(&f, 1, true, 1, 3 * GIB - 200 * MIB, 0, 0);
    const struct msg_assign *a = NULL;
    for (int i = 0; i < 40 && !(a = assigned(&f)); i++) { /* it is seen whether more come */
        f.now_ns += 250 * MS;
        (void)tell(&f, 1, false, 1, 3 * GIB - 200 * MIB, 0, 0);
        (void)feed(&f, (struct event){.type = EV_TICK});
    }
    assert_non_null(a);
    uint32_t small = a->n_pages * PAGE;
    serve(&f, 1);
    (void)submit(&f, 1, small + PAGE, 1);
    assert_null(ended(&f, 1));
    assert_int_equal(where(&f, 1), CORE_NO_REPLICA);
    (void)submit(&f, 3, 10, small); /* its answer is cut, and waits for nobody */
    assert_int_equal(where(&f, 3), 0);
    (void)tell(&f, 2, true, 2, 3 * GIB, 0, 0);
    a = assigned(&f);
    assert_non_null(a);
    assert_true(a->n_pages * PAGE > small + PAGE);
    serve(&f, 2);
    assert_int_equal(where(&f, 1), 1);
    (void)submit(&f, 2, 4 * small, 1); /* now it is known */
    assert_non_null(ended(&f, 2));
    assert_int_equal(ended(&f, 2)->end.status, STATUS_INVALID_ARGUMENT);
    core_close(f.core);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_worker),      cmocka_unit_test(test_sharing),
        cmocka_unit_test(test_groups),          cmocka_unit_test(test_wish),
        cmocka_unit_test(test_windowed),        cmocka_unit_test(test_absurd),
        cmocka_unit_test(test_pool_by_room),    cmocka_unit_test(test_pool_bounds),
        cmocka_unit_test(test_refused),         cmocka_unit_test(test_fixed),
        cmocka_unit_test(test_next_generation), cmocka_unit_test(test_next_coordinator),
        cmocka_unit_test(test_two_replicas),    cmocka_unit_test(test_tables),
        cmocka_unit_test(test_uneven_pools),    cmocka_unit_test(test_a_pool_to_come)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
