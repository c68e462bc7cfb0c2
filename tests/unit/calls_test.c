/* Clients' calls, through the shell's real turns: which are answered, refused or given up. The time
 * and the sockets are the test's (tests/lib/shell_world.h). */
#include "tests/lib/shell_world.h"

#include "common/base/mem.h"
#include "proto/wire.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CLIENT WORLD_CLIENT
#define OTHER 12u

/* ---- what comes back ---- */

static void test_answer(void **state)
{
    (void)state;
    struct world *w = world_open("ctx: 64\n");
    world_ask_tokens(w, 1, 3, 5);
    world_run(w, 100);
    const struct seen *x = world_seen(w, 1);
    world_expect_end(w, 1, STATUS_OK, "");
    assert_string_equal(x->text, "defgh");
    assert_string_equal(x->finish, "length");
    assert_int_equal(x->n_usage, 1);
    assert_int_equal(x->n_prompt, 3);
    world_expect_idle(w);
    world_close(w);
}

/* Many requests one after another: every slot comes back, here and on the last stage. */
static void test_slots_come_back(void **state)
{
    (void)state;
    struct world *w = world_open("ctx: 64\nmax_requests: 8\nkv_tokens: 256\n");
    for (uint64_t call = 1; call <= 300; call++) {
        struct msg_generate g = world_ask(1 + (uint32_t)call % 20, 1 + (uint32_t)call % 3);
        g.samples = 1 + (uint32_t)call % 2;
        if (call % 5 == 0) g.prompt_tokens = NULL, g.n_prompt_tokens = 0, g.prompt = "a b c";
        if (call % 7 == 0) g.stops[0] = "e", g.n_stops = 1;
        world_generate(w, 0, CLIENT, call, 0, &g);
        if (call % 5 == 0) {
            world_turn(w);
            world_wait_text(w);
        }
        world_run(w, 60);
        world_expect_end(w, call, STATUS_OK, "");
    }
    world_ask_tokens(w, 301, 3, 1); /* its Step tells the last stage who has ended */
    world_run(w, 30);
    assert_int_equal(w->n_open, 1);
    world_expect_idle(w);
    world_close(w);
}

static void test_stop_at_the_last_token(void **state)
{
    (void)state;
    struct world *w = world_open("ctx: 64\n");
    struct msg_generate g = world_ask(3, 3);
    g.stops[0] = "no";
    g.stops[1] = "f";
    g.n_stops = 2;
    world_generate(w, 0, CLIENT, 1, 0, &g);
    world_run(w, 100);
    assert_string_equal(world_seen(w, 1)->text, "de");
    assert_string_equal(world_seen(w, 1)->finish, "stop");
    assert_true(world_seen(w, 1)->has_stop && world_seen(w, 1)->stop == 1);
    assert_int_equal(world_seen(w, 1)->n_tokens, 3);
    w->always = WORLD_EOS;
    world_ask_tokens(w, 2, 3, 3);
    world_run(w, 100);
    assert_string_equal(world_seen(w, 2)->finish, "stop");
    assert_int_equal(world_seen(w, 2)->n_tokens, 0);
    assert_false(world_seen(w, 2)->has_stop); /* the model did */
    world_close(w);
}

/* A control token is no text, even where it does not end the answer. */
static void test_control_token_is_not_shown(void **state)
{
    (void)state;
    struct world *w = world_open("ctx: 64\n");
    struct msg_generate g = world_ask(3, 2);
    w->always = WORLD_EOS;
    g.ignore_eos = true;
    world_generate(w, 0, CLIENT, 1, 0, &g);
    world_run(w, 100);
    assert_int_equal(world_seen(w, 1)->n_tokens, 2);
    assert_string_equal(world_seen(w, 1)->text, "");
    world_close(w);
}

static void expect_logprobs(const struct seen *x, uint32_t first_pos, uint32_t n, uint32_t n_top)
{
    assert_int_equal(x->n_chosen, n);
    assert_int_equal(x->n_top, n * n_top);
    for (uint32_t i = 0; i < n; i++) {
        float want = -(float)(first_pos + i);
        assert_true(x->chosen[i] == want);
        for (uint32_t k = 0; k < n_top; k++) {
            assert_int_equal(x->top_ids[i * n_top + k], k);
            assert_true(x->top[i * n_top + k] == want - (float)k / 32);
        }
    }
}

static void test_logprobs(void **state)
{
    (void)state;
    struct world *w = world_open("ctx: 64\n");
    struct msg_generate g = world_ask(3, 6);
    g.sampling.logprobs = true;
    g.sampling.top_logprobs = 4;
    world_generate(w, 0, CLIENT, 1, 0, &g);
    world_run(w, 100);
    expect_logprobs(world_seen(w, 1), 3, 6, 4);
    /* The answer goes on at another coordinator: those of the tokens from there on. */
    static const int32_t received[] = {3, 4};
    g.received = received;
    g.n_received = g.from_index = 2;
    world_generate(w, 0, CLIENT, 2, 0, &g);
    world_run(w, 100);
    const struct seen *x = world_seen(w, 2);
    world_expect_end(w, 2, STATUS_OK, "");
    expect_logprobs(x, 5, 4, 4);
    assert_string_equal(x->text, "fghi"); /* "de" was read before */
    assert_int_equal(x->n_tokens, 6);
    world_close(w);
}

/* The bytes of tokens and of their alternatives, where they are asked for. */
static void test_pieces(void **state)
{
    (void)state;
    struct world *w = world_open("ctx: 64\n");
    struct msg_generate g = world_ask(3, 3);
    g.pieces = true;
    world_generate(w, 0, CLIENT, 1, 0, &g);
    world_run(w, 100);
    assert_string_equal(world_seen(w, 1)->pieces, "[d][e][f]");
    g.sampling.logprobs = true;
    g.sampling.top_logprobs = 2;
    g.max_tokens = 1;
    world_generate(w, 0, CLIENT, 2, 0, &g);
    world_run(w, 100);
    assert_string_equal(world_seen(w, 2)->pieces, "[d][a][b]");
    g.pieces = false;
    world_generate(w, 0, CLIENT, 3, 0, &g);
    world_run(w, 100);
    assert_string_equal(world_seen(w, 3)->pieces, "");
    world_close(w);
}

/* How much of the prompt was found computed is told with the first token. */
static void test_cached(void **state)
{
    (void)state;
    struct world *w = world_open("ctx: 128\n");
    struct msg_generate g = world_ask(40, 2);
    for (uint64_t call = 1; call <= 2; call++) {
        world_generate(w, 0, CLIENT, call, 0, &g);
        world_run(w, 50);
        world_expect_end(w, call, STATUS_OK, "");
        assert_int_equal(world_seen(w, call)->cached, call == 1 ? 0 : 32);
    }
    world_close(w);
}

/* A worker that tells fewer or more alternatives than were asked for changes those of no other
 * token, and no memory of this process is told in their place. */
static void test_logprobs_of_another_number(void **state)
{
    (void)state;
    struct answer a;
    struct world *w = world_open("ctx: 64\n");
    answer_open(&a, &(struct answer_options){.logprobs = true, .n_top = 20});
    const float chosen[2] = {-1, -2}, top[40] = {0};
    const int32_t ids[40] = {0};
    struct msg_logprobs none = {0}, without = {chosen, 0, NULL, NULL}, all = {chosen, 20, ids, top};
    (void)answer_take(&a, w->model.vocab, 1, &without, 1);
    (void)answer_take(&a, w->model.vocab, 1, &none, 0);
    for (int i = 0; i < 500; i++) (void)answer_take(&a, w->model.vocab, 1, &without, 0);
    (void)answer_take(&a, w->model.vocab, 1, &all, 1);
    struct msg_generate_reply r;
    answer_news(&a, &r);
    assert_int_equal(r.n_tokens, 503);
    assert_int_equal(r.logprobs.n_top, 20);
    assert_int_equal(a.chosen.len, 503 * sizeof(float));
    assert_int_equal(a.top_ids.len, 503 * 20 * sizeof(int32_t));
    assert_int_equal(a.top.len, 503 * 20 * sizeof(float));
    assert_true(r.logprobs.chosen[0] == -2.0f && r.logprobs.chosen[1] == -INFINITY);
    for (uint32_t i = 0; i < 502 * 20; i++)
        assert_true(r.logprobs.top_ids[i] == -1 && r.logprobs.top[i] == -INFINITY);
    for (uint32_t i = 502 * 20; i < 503 * 20; i++) assert_int_equal(r.logprobs.top_ids[i], 0);
    answer_close(&a);
    /* What lies beyond the two in the message is not read: here it would be id 7. */
    int32_t sevens[40];
    for (int i = 0; i < 40; i++) sevens[i] = 7;
    struct msg_logprobs two = {chosen, 2, sevens, top};
    answer_open(&a, &(struct answer_options){.logprobs = true, .n_top = 20});
    (void)answer_take(&a, w->model.vocab, 1, &two, 1);
    answer_news(&a, &r);
    for (uint32_t i = 0; i < 20; i++) assert_int_equal(r.logprobs.top_ids[i], i < 2 ? 7 : -1);
    answer_close(&a);
    /* More than asked for are left out; so are those that nobody asked for. */
    answer_open(&a, &(struct answer_options){.logprobs = true, .n_top = 3});
    (void)answer_take(&a, w->model.vocab, 1, &all, 1);
    answer_news(&a, &r);
    assert_int_equal(r.logprobs.n_top, 3);
    assert_int_equal(a.top.len, 3 * sizeof(float));
    answer_close(&a);
    answer_open(&a, &(struct answer_options){.logprobs = false});
    (void)answer_take(&a, w->model.vocab, 1, &all, 1);
    answer_news(&a, &r);
    assert_null(r.logprobs.chosen);
    answer_close(&a);
    world_close(w);
}

/* ---- what a request asks for reaches the core ---- */

static struct core_sequence only_sequence(struct world *w)
{
    assert_int_equal(core_n_sequences(w->s->core), 1);
    return core_sequence_at(w->s->core, 0);
}

static void test_priority(void **state)
{
    (void)state;
    for (uint32_t p = PRIORITY_CRITICAL; p <= PRIORITY_LOW; p++) {
        struct world *w = world_open("ctx: 64\n");
        struct msg_generate g = world_ask(3, 20);
        w->paused = true;
        g.has_priority = true;
        g.priority = (enum priority)p;
        world_generate(w, 0, CLIENT, 1, 0, &g);
        world_run(w, 20);
        assert_int_equal(only_sequence(w).class, p);
        world_close(w);
    }
}

/* A tenant, a priority and a user are a gateway's to name, or an admin's. */
static void test_who_may_name_them(void **state)
{
    (void)state;
    static const uint32_t roles[] = {KEY_CLIENT, KEY_GATEWAY, KEY_ADMIN, KEY_CLIENT | KEY_GATEWAY};
    struct world *w = world_open("ctx: 64\n");
    uint64_t call = 1;
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++)
        for (int field = 0; field < 4; field++, call++) {
            struct msg_generate g = world_ask(3, 1);
            bool denied = field && roles[i] == KEY_CLIENT;
            w->roles = roles[i];
            g.tenant = field == 1 ? "x" : "";
            g.has_priority = field == 2;
            g.user = field == 3 ? "x" : "";
            world_generate(w, 0, CLIENT, call, 0, &g);
            world_run(w, 50);
            world_expect_end(w, call, denied ? STATUS_PERMISSION_DENIED : STATUS_OK,
                             denied ? "gateway" : "");
        }
    world_close(w);
}

static void send_order(struct world *w, uint64_t call, const char *method, struct msg_order o)
{
    struct buf body = {0};
    wire_put_order(&o, &body);
    world_send(w, 0, CLIENT, call, method, body.data, body.len);
    buf_close(&body);
    world_turn(w);
}

/* Drain and Rebalance are an admin's orders; the core's answer is the call's. */
static void test_orders(void **state)
{
    (void)state;
    static const uint32_t roles[] = {KEY_CLIENT, KEY_GATEWAY, KEY_WORKER, KEY_ADMIN};
    struct world *w = world_open("ctx: 64\ndrain: 1\n");
    uint64_t call = WORLD_OTHERS;
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++)
        for (int rebalance = 0; rebalance < 2; rebalance++, call++) {
            bool admin = roles[i] == KEY_ADMIN;
            w->roles = roles[i];
            send_order(w, call, rebalance ? "Rebalance" : "Drain",
                       (struct msg_order){.name = "nobody"});
            world_expect_end(w, call, admin ? STATUS_NOT_FOUND : STATUS_PERMISSION_DENIED,
                             admin ? "'nobody'" : "keys.admins");
        }
    world_send(w, 0, CLIENT, call, "Drain", "\x10", 1); /* a field that is cut off */
    world_turn(w);
    world_expect_end(w, call, STATUS_INVALID_ARGUMENT, "");
    w->paused = true; /* its answer cannot end */
    world_ask_tokens(w, 1, 3, 5);
    world_run_pinging(w, 50, CLIENT, 1);
    send_order(w, ++call, "Drain", (struct msg_order){.name = "w1"});
    world_expect_end(w, call, STATUS_OK, "");
    assert_string_equal(world_status(w)->replicas[0].state, "draining");
    world_run_pinging(w, 850, CLIENT, 1); /* the file's `drain` */
    assert_string_equal(world_status(w)->replicas[0].state, "draining");
    world_run_pinging(w, 200, CLIENT, 1);
    assert_string_equal(world_status(w)->replicas[0].state, "waiting");
    world_close(w);
    w = world_open("ctx: 64\n");
    w->paused = true;
    world_ask_tokens(w, 1, 3, 5);
    world_run_pinging(w, 50, CLIENT, 1);
    send_order(w, ++call, "Drain", (struct msg_order){.name = "w1", .has_limit = true});
    world_expect_end(w, call, STATUS_OK, "");
    assert_string_equal(world_status(w)->replicas[0].state, "waiting"); /* at once */
    assert_int_equal(world_status(w)->n_spares, 1);
    assert_string_equal(world_status(w)->spares[0].state, "drained");
    world_close(w);
}

/* The same prompt twice: its prefix is found within a tenant, and not by another. */
static void test_tenants(void **state)
{
    (void)state;
    static const struct {
        const char *first, *second;
        uint64_t hits;
    } cases[] = {{"x", "x", 1}, {"x", "y", 0}, {"x", "", 0}, {"", "", 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct world *w = world_open("ctx: 128\n");
        struct msg_generate g = world_ask(40, 1);
        g.tenant = cases[i].first;
        world_generate(w, 0, CLIENT, 1, 0, &g);
        world_run(w, 50);
        g.tenant = cases[i].second;
        world_generate(w, 0, CLIENT, 2, 0, &g);
        world_run(w, 50);
        world_expect_end(w, 2, STATUS_OK, "");
        assert_int_equal(world_status(w)->replicas[0].cache.hits, cases[i].hits);
        world_close(w);
    }
}

/* ---- keys of the cluster file ---- */

static void test_key_deadline(void **state)
{
    (void)state;
    struct world *w = world_open("ctx: 64\ndeadline: 3\nstep_timeout_ms: 600000\n");
    w->paused = true;
    world_ask_tokens(w, 1, 3, 20);
    world_run_pinging(w, 2500, CLIENT, 1);
    assert_false(world_seen(w, 1)->ended);
    world_run_pinging(w, 700, CLIENT, 1);
    world_expect_end(w, 1, STATUS_DEADLINE_EXCEEDED, "deadline");
    struct msg_generate g = world_ask(3, 20); /* its own deadline counts, not the file's */
    world_generate(w, 0, CLIENT, 2, 1000, &g);
    world_run_pinging(w, 1200, CLIENT, 2);
    world_expect_end(w, 2, STATUS_DEADLINE_EXCEEDED, "deadline");
    world_close(w);
}

static void test_key_max_per_client(void **state)
{
    (void)state;
    struct world *w = world_open("ctx: 64\nmax_per_client: 2\n");
    assert_int_equal(w->core.max_per_client, 2);
    w->paused = true;
    for (uint64_t call = 1; call <= 3; call++) world_ask_tokens(w, call, 3, 20);
    struct msg_generate g = world_ask(3, 20);
    world_generate(w, 1, OTHER, 4, 0, &g);
    world_run(w, 20);
    world_expect_end(w, 3, STATUS_RESOURCE_EXHAUSTED, "of this client");
    assert_true(world_seen(w, 3)->retry_ms > 0);
    assert_false(world_seen(w, 1)->ended || world_seen(w, 2)->ended || world_seen(w, 4)->ended);
    w->paused = false;
    world_run(w, 500);
    world_expect_end(w, 1, STATUS_OK, "");
    /* The core counts too, by the same name: several answers of one call. */
    g.samples = 3;
    world_generate(w, 0, CLIENT, 5, 0, &g);
    world_run(w, 100);
    world_expect_end(w, 5, STATUS_RESOURCE_EXHAUSTED, "of this client");
    w->paused = true;
    g.samples = 1;
    world_generate(w, 0, CLIENT, 6, 0, &g);
    world_run(w, 20);
    g.samples = 2; /* with call 6 it would be three */
    world_generate(w, 0, CLIENT, 7, 0, &g);
    world_run(w, 20);
    world_expect_end(w, 7, STATUS_RESOURCE_EXHAUSTED, "of this client");
    world_close(w);
}

/* Users of one gateway have a limit each, as clients of their own. */
static void test_users(void **state)
{
    (void)state;
    struct world *w = world_open("ctx: 64\nmax_per_client: 1\n");
    struct msg_generate g = world_ask(3, 20);
    w->paused = true;
    static const char *const users[] = {"a", "a", "b", ""};
    for (uint64_t call = 1; call <= 4; call++) {
        g.user = users[call - 1];
        world_generate(w, 0, CLIENT, call, 0, &g);
        world_run(w, 10);
        assert_int_equal(world_seen(w, call)->ended, call == 2);
    }
    world_expect_end(w, 2, STATUS_RESOURCE_EXHAUSTED, "of this client");
    w->paused = false;
    world_run(w, 500);
    for (uint64_t call = 1; call <= 4; call++)
        if (call != 2) world_expect_end(w, call, STATUS_OK, "");
    world_close(w);
}

static void test_key_max_sequences(void **state)
{
    (void)state;
    struct world *w = world_open("ctx: 64\nmax_sequences: 2\n");
    w->paused = true;
    for (uint64_t call = 1; call <= 5; call++) world_ask_tokens(w, call, 3, 20);
    world_run(w, 50);
    assert_int_equal(world_status(w)->running, 2);
    assert_int_equal(world_status(w)->queued, 3);
    world_close(w);
}

static void test_key_prefix_cache(void **state)
{
    (void)state;
    struct world *w = world_open("ctx: 128\nprefix_cache: false\n");
    for (uint64_t call = 1; call <= 2; call++) {
        world_ask_tokens(w, call, 40, 1);
        world_run(w, 50);
    }
    assert_int_equal(world_status(w)->replicas[0].cache.hits, 0);
    world_close(w);
}

/* ---- clients that are silent, slow, or gone ---- */

static void test_silent_client(void **state)
{
    (void)state;
    struct world *w = world_open("ctx: 64\nstep_timeout_ms: 600000\n");
    w->paused = true;
    world_ask_tokens(w, 1, 30, 20);
    world_run(w, 1900);
    assert_int_equal(world_status(w)->running, 1);
    assert_true(world_status(w)->replicas[0].cache.pages_held > 0);
    world_run(w, 200);
    world_expect_idle(w); /* pages too: the rows in flight run before any that reuses them */
    world_close(w);
}

static void test_keep_alives(void **state)
{
    (void)state;
    struct world *w = world_open("ctx: 64\nstep_timeout_ms: 600000\n");
    w->paused = true;
    world_ask_tokens(w, 1, 3, 20);
    world_run_pinging(w, 5000, CLIENT, 1);
    uint32_t n = world_seen(w, 1)->n_replies;
    assert_true(n >= 8 && n <= 12);
    assert_false(world_seen(w, 1)->ended);
    world_close(w);
}

/* A coordinator that did not run for a while takes neither clients nor workers for silent. */
static void test_stopped_coordinator(void **state)
{
    (void)state;
    struct world *w = world_open("ctx: 64\n");
    w->paused = true;
    world_ask_tokens(w, 1, 3, 20);
    world_run(w, 100);
    uint32_t generation = world_status(w)->replicas[0].generation;
    w->now_ns += 5000 * NS_PER_MS;
    world_turn(w);
    assert_true(world_status(w)->ready);
    assert_int_equal(world_status(w)->running, 1);
    w->paused = false;
    world_run(w, 500);
    world_expect_end(w, 1, STATUS_OK, "");
    assert_int_equal(world_status(w)->replicas[0].generation, generation);
    world_close(w);
}

/* A connection that takes nothing for a while, then takes all, and so on for longer than
 * client_stall: its client gets everything. */
static void test_slow_reader_lives(void **state)
{
    (void)state;
    struct world *w = world_open("ctx: 1024\nkv_tokens: 2048\nclient_stall: 3\n");
    struct msg_generate g = world_ask(3, 400);
    world_generate(w, 0, CLIENT, 1, 0, &g);
    for (int i = 0; i < 8; i++) {
        w->taking[0] = i % 2 ? TAKES : REFUSES;
        world_run_pinging(w, i % 2 ? 100 : 2000, CLIENT, 1);
    }
    w->taking[0] = TAKES;
    world_run_pinging(w, 5000, CLIENT, 1);
    world_expect_end(w, 1, STATUS_OK, "");
    assert_int_equal(world_seen(w, 1)->n_tokens, 400);
    world_close(w);
}

/* The same with several answers, of which the connection never takes all in one go. */
static void test_slow_reader_of_samples_lives(void **state)
{
    (void)state;
    struct world *w = world_open("ctx: 1024\nkv_tokens: 8192\nclient_stall: 3\n");
    struct msg_generate g = world_ask(3, 400);
    g.samples = 4;
    w->taking[0] = TAKES_CREDIT;
    world_generate(w, 0, CLIENT, 1, 0, &g);
    for (int i = 0; i < 8; i++) {
        w->credit[0] = 3; /* two are answers to pings */
        world_run_pinging(w, 1000, CLIENT, 1);
    }
    w->taking[0] = TAKES;
    world_run_pinging(w, 5000, CLIENT, 1);
    world_expect_end(w, 1, STATUS_OK, "");
    assert_int_equal(world_seen(w, 1)->n_tokens, 400);
    world_expect_idle(w);
    world_close(w);
}

/* A long answer of which its client has nothing is told in parts, each far below the largest
 * message; tokens that it had received come apart from those with log-probabilities. */
static void test_news_in_parts(void **state)
{
    (void)state;
    enum { N = 10000, RECEIVED = 5 };
    struct answer a;
    struct world *w = world_open("ctx: 64\n");
    static const int32_t received[RECEIVED] = {0, 1, 2, 3, 4};
    answer_open(&a, &(struct answer_options){.logprobs = true, .n_top = 1});
    answer_receive(&a, w->model.vocab, received, RECEIVED);
    for (uint32_t i = RECEIVED; i < N; i++) {
        float chosen = -(float)i, top = (float)i;
        int32_t id = (int32_t)i;
        struct msg_logprobs l = {&chosen, 1, &id, &top};
        (void)answer_take(&a, w->model.vocab, (int32_t)(i % 26), &l, 0);
    }
    answer_end(&a, FINISH_LENGTH);
    assert_true(answer_rewind(&a, 2));
    uint32_t at = 2, parts = 0;
    while (answer_has_news(&a)) {
        struct msg_generate_reply r;
        bool all = answer_news(&a, &r);
        assert_int_equal(r.first_index, at);
        assert_true(r.n_tokens <= ANSWER_NEWS_TOKENS);
        assert_int_equal(strlen(r.text), r.n_tokens); /* a letter each */
        assert_int_equal(r.finish_reason, all ? FINISH_LENGTH : FINISH_NONE);
        for (uint32_t i = 0; i < r.n_tokens; i++) {
            assert_int_equal(r.tokens[i], (int32_t)((at + i) % 26));
            assert_int_equal(r.text[i], 'a' + (int)((at + i) % 26));
            if (at >= RECEIVED) assert_true(r.logprobs.chosen[i] == -(float)(at + i));
            if (at >= RECEIVED) assert_int_equal(r.logprobs.top_ids[i], (int32_t)(at + i));
        }
        assert_int_equal(r.logprobs.chosen != NULL, at >= RECEIVED);
        at += r.n_tokens;
        parts++;
        assert_int_equal(all, at == N);
        answer_sent(&a);
    }
    assert_int_equal(at, N);
    assert_int_equal(parts, 1 + (N - RECEIVED + ANSWER_NEWS_TOKENS - 1) / ANSWER_NEWS_TOKENS);
    answer_close(&a);
    world_close(w);
}

static void test_stalled_reader_is_given_up(void **state)
{
    (void)state;
    struct world *w =
        world_open("ctx: 1024\nkv_tokens: 2048\nclient_stall: 3\nstep_timeout_ms: 600000\n");
    for (uint64_t call = 1; call <= 3; call++) world_ask_tokens(w, call, 3, 2);
    w->taking[0] = REFUSES;
    const uint64_t calls[] = {1, 2, 3};
    for (int i = 0; i < 5; i++) {
        world_ping(w, 0, CLIENT, calls, 3);
        world_run(w, 500);
    }
    assert_int_equal(w->s->n_calls - w->s->n_free_calls, 3);
    for (int i = 0; i < 2; i++) {
        world_ping(w, 0, CLIENT, calls, 3);
        world_run(w, 500);
    }
    world_expect_idle(w);
    world_close(w);
}

/* What a full connection refuses is not encoded again each turn. */
static void test_refused_is_not_tried_each_turn(void **state)
{
    (void)state;
    struct world *w = world_open("ctx: 64\nmax_requests: 64\n");
    w->taking[0] = REFUSES;
    for (uint64_t call = 1; call <= 50; call++) world_ask_tokens(w, call, 3, 2);
    world_run(w, 100);
    uint32_t before = w->n_tried;
    for (int i = 0; i < 1000; i++) { /* a second, a turn each millisecond */
        w->now_ns += NS_PER_MS;
        world_turn(w);
    }
    assert_true(w->n_tried > before);
    assert_true(w->n_tried - before <= 25);
    /* And once it takes replies, all leave at once. */
    w->taking[0] = TAKES;
    world_run(w, 100);
    for (uint64_t call = 1; call <= 50; call++) world_expect_end(w, call, STATUS_OK, "");
    world_expect_idle(w);
    world_close(w);
}

static void test_client_is_gone(void **state)
{
    (void)state;
    struct world *w = world_open("ctx: 64\n");
    w->taking[0] = GONE;
    world_ask_tokens(w, 1, 3, 20);
    world_run(w, 50);
    world_expect_idle(w);
    world_close(w);
}

/* Ended calls that their client does not read count among its calls. */
static void test_unread_calls_count(void **state)
{
    (void)state;
    struct world *w = world_open("ctx: 64\nmax_requests: 8\nmax_per_client: 4\n");
    w->taking[0] = REFUSES;
    for (uint64_t call = 1; call <= 40; call++) {
        world_ask_tokens(w, call, 3, 1);
        world_run(w, 10);
    }
    assert_int_equal(w->s->n_calls - w->s->n_free_calls, 4);
    struct msg_generate g = world_ask(3, 2);
    world_generate(w, 1, OTHER, 100, 0, &g);
    world_run(w, 50);
    world_expect_end(w, 100, STATUS_OK, "");
    w->taking[0] = TAKES;
    world_run(w, 100);
    for (uint64_t call = 1; call <= 4; call++) world_expect_end(w, call, STATUS_OK, "");
    world_expect_idle(w);
    world_close(w);
}

/* Clients that do not read take all slots: the oldest call of the client with the most gives way.
 */
static void test_unread_calls_leave_room(void **state)
{
    (void)state;
    static const uint32_t n_calls[] = {3, 4, 4, 4, 1}; /* of each client */
    struct world *w = world_open("ctx: 64\nmax_requests: 8\nmax_per_client: 4\n");
    struct msg_generate g = world_ask(3, 2);
    for (uint32_t client = 0; client < 5; client++) {
        w->taking[client] = REFUSES;
        for (uint32_t i = 0; i < n_calls[client]; i++) {
            world_generate(w, client, 20 + client, 10 * (client + 1) + i, 0, &g);
            world_run(w, 40);
        }
    }
    assert_int_equal(w->s->n_free_calls, 0);
    world_generate(w, 5, OTHER, 100, 0, &g);
    world_run(w, 50);
    world_expect_end(w, 100, STATUS_OK, "");
    assert_int_equal(w->s->n_free_calls, 1);
    for (uint32_t client = 0; client < 5; client++) w->taking[client] = TAKES;
    world_run(w, 100);
    for (uint32_t client = 0; client < 5; client++)
        for (uint32_t i = 0; i < n_calls[client]; i++) {
            uint64_t call = 10 * (client + 1) + i;
            assert_int_equal(world_seen(w, call)->ended, call != 20);
        }
    world_expect_idle(w);
    world_close(w);
}

/* Live calls are never given up for new ones. */
static void test_live_calls_stay(void **state)
{
    (void)state;
    struct world *w = world_open("ctx: 64\nmax_requests: 2\nstep_timeout_ms: 600000\n");
    w->paused = true;
    for (uint64_t call = 1; call <= 6; call++) {
        struct msg_generate g = world_ask(3, 20);
        g.prompt_tokens = NULL;
        g.n_prompt_tokens = 0;
        g.prompt = "abc";
        world_generate(w, 0, 50 + call, call, 0, &g);
    }
    world_turn(w);
    assert_int_equal(w->s->n_free_calls, 0);
    world_expect_end(w, 5, STATUS_RESOURCE_EXHAUSTED, "too many calls");
    world_expect_end(w, 6, STATUS_RESOURCE_EXHAUSTED, "too many calls");
    world_close(w);
}

/* ---- calls that are joined, cancelled, or fail ---- */

static void test_join(void **state)
{
    (void)state;
    struct world *w = world_open("ctx: 128\n");
    struct msg_generate g = world_ask(3, 40);
    g.has_seed = true;
    g.sampling.seed = 77;
    world_generate(w, 0, CLIENT, 1, 0, &g);
    world_run(w, 30);
    w->paused = true;
    world_run(w, 20);
    uint32_t n = world_seen(w, 1)->n_tokens;
    assert_true(n >= 2);
    assert_int_equal(world_seen(w, 1)->n_usage, 1);
    /* On a new connection, from the second token on: told from there, and the usage again. */
    g.from_index = 1;
    g.n_received = 1;
    g.received = g.prompt_tokens;
    world_generate(w, 1, CLIENT, 1, 0, &g);
    world_run(w, 10);
    const struct seen *x = world_seen(w, 1);
    assert_int_equal(x->n_usage, 2);
    assert_int_equal(x->n_prompt, 3);
    assert_int_equal(x->seed, 77);
    assert_int_equal(x->n_tokens, n);
    char want[64];
    (void)snprintf(want, sizeof want, "%.*s%.*s", (int)n, "defghijklmnopqrstuvwxyz", (int)n - 1,
                   "efghijklmnopqrstuvwxyz");
    assert_string_equal(x->text, want);
    w->paused = false;
    world_run(w, 500);
    world_expect_end(w, 1, STATUS_OK, "");
    world_expect_idle(w);
    world_close(w);
}

static void test_siblings_of_a_failed_answer(void **state)
{
    (void)state;
    struct world *w = world_open("ctx: 128\n");
    struct msg_generate g = world_ask(3, 100);
    g.samples = 4;
    world_generate(w, 0, CLIENT, 1, 0, &g);
    world_run(w, 20);
    w->run_error = "a stage failed at it";
    world_run(w, 50);
    world_expect_end(w, 1, STATUS_INTERNAL, "a stage failed");
    world_expect_idle(w); /* the other three end too */
    world_close(w);
}

static void test_cancel(void **state)
{
    (void)state;
    struct world *w = world_open("ctx: 128\n");
    world_ask_tokens(w, 1, 3, 100);
    world_run(w, 20);
    world_cancel(w, 0, CLIENT, 900001, 1);
    world_cancel(w, 0, OTHER, 900002, 1); /* another client's call */
    world_run(w, 20);
    world_expect_end(w, 1, STATUS_CANCELLED, "by the client");
    world_expect_end(w, 900001, STATUS_OK, "");
    world_expect_end(w, 900002, STATUS_NOT_FOUND, "");
    world_expect_idle(w);
    world_close(w);
}

static void test_cancel_while_tokenised(void **state)
{
    (void)state;
    struct world *w = world_open("ctx: 128\n");
    struct msg_generate g = {.prompt = "abc", .max_tokens = 3};
    world_generate(w, 0, CLIENT, 1, 0, &g);
    world_cancel(w, 0, CLIENT, 900001, 1);
    world_turn(w); /* takes both, and no finished text between them */
    world_expect_end(w, 1, STATUS_CANCELLED, "by the client");
    world_run(w, 50);
    world_expect_idle(w);
    world_close(w);
}

static void ask_chat(struct world *w, uint64_t call, const char *chat)
{
    struct msg_generate g = {.chat = chat, .max_tokens = 3};
    world_generate(w, 0, CLIENT, call, 0, &g);
    world_turn(w);
    world_wait_text(w);
    world_run(w, 100);
}

/* A conversation becomes a prompt off the loop; one that is wrong ends its call in words. */
static void test_chat(void **state)
{
    (void)state;
    static const char hello[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"ab<e>\"}]}";
    struct world *w = world_open("ctx: 128\n");
    struct errmsg em = {0};
    static const char text[] = "{% if messages[0].content == 'x' %}{{ raise_exception('no x') }}"
                               "{% endif %}{{ eos_token }}{{ messages[0].content }}<e>";
    w->s->talk = (struct conversation_model){.vocab = w->s->model->vocab, .why = "no template"};
    ask_chat(w, 1, hello);
    world_expect_end(w, 1, STATUS_INVALID_ARGUMENT, "field 'messages': no template");
    assert_int_equal(chat_open_text(NULL, text, sizeof text - 1, &w->s->chat, &em), 0);
    w->s->talk.chat = &w->s->chat;
    ask_chat(w, 2, hello);
    world_expect_end(w, 2, STATUS_OK, "");
    /* "ab" and the letter of "<e>" that the vocabulary has, then the template's control token. */
    assert_int_equal(world_seen(w, 2)->n_prompt, 4);
    assert_false(world_seen(w, 2)->open_thought);
    ask_chat(w, 3, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}");
    world_expect_end(w, 3, STATUS_INVALID_ARGUMENT, "no x");
    ask_chat(w, 4, "{\"messages\": [");
    world_expect_end(w, 4, STATUS_INVALID_ARGUMENT, "field 'chat_json'");
    struct msg_generate both = {.prompt = "a", .prompt_len = 1, .chat = hello, .max_tokens = 1};
    world_generate(w, 0, CLIENT, 5, 0, &both);
    world_run(w, 20);
    world_expect_end(w, 5, STATUS_INVALID_ARGUMENT, "field 'chat_json'");
    world_expect_idle(w);
    chat_close(&w->s->chat);
    static const char thinks[] = "{{ messages[0].content }}<think>\n\n";
    assert_int_equal(chat_open_text(NULL, thinks, sizeof thinks - 1, &w->s->chat, &em), 0);
    ask_chat(w, 6, hello);
    assert_true(world_seen(w, 6)->open_thought);
    chat_close(&w->s->chat);
    world_close(w);
}

static void test_a_refused_send(void **state)
{
    (void)state;
    for (uint32_t nth = 1; nth <= 8; nth++) {
        struct world *w = world_open("ctx: 64\n");
        struct msg_generate g = world_ask(3, 5);
        g.samples = 2;
        w->fail_at = nth;
        world_generate(w, 0, CLIENT, 1, 0, &g);
        world_run(w, 300);
        world_expect_end(w, 1, STATUS_OK, "");
        assert_string_equal(world_seen(w, 1)->text, "defgh");
        assert_int_equal(world_seen(w, 1)->n_usage, 1);
        world_expect_idle(w);
        world_close(w);
    }
}

/* ---- what is counted ---- */

/* The histogram of ITL holds the time between two tokens, not since the call began. */
static void test_itl(void **state)
{
    (void)state;
    struct world *w = world_open("ctx: 64\nworker_timeout_ms: 600000\nstep_timeout_ms: 600000\n");
    world_ask_tokens(w, 1, 3, 11);
    for (int i = 0; i < 12; i++) {
        w->paused = true;
        world_run_pinging(w, 90, CLIENT, 1);
        w->paused = false;
        world_run(w, 10);
        w->paused = true;
    }
    w->paused = false;
    world_run(w, 100);
    world_expect_end(w, 1, STATUS_OK, "");
    struct stats_view itl, ttft;
    stats_read(&w->s->count.itl, &itl);
    stats_read(&w->s->count.ttft, &ttft);
    assert_int_equal(itl.count, 10);
    assert_int_equal(ttft.count, 1);
    assert_true(itl.max_ns <= 200 * NS_PER_MS);
    assert_int_equal(w->s->count.tokens, 11);
    assert_int_equal(w->s->count.ended[STATUS_OK], 1);
    world_close(w);
}

/* ---- memory ---- */

/* The allocation that fails, counted down by all threads; 0: none does. */
static atomic_uint fails_in;

void *__real_mem_try(size_t bytes);
void *__wrap_mem_try(size_t bytes);

void *__wrap_mem_try(size_t bytes)
{
    unsigned left = atomic_load(&fails_in);
    while (left && !atomic_compare_exchange_weak(&fails_in, &left, left - 1)) {
    }
    return left == 1 ? NULL : __real_mem_try(bytes);
}

/* Whichever allocation of a call fails, the call ends with a reason, nothing of it is left, and the
 * next call is answered. */
static void test_no_memory(void **state)
{
    (void)state;
    struct world *w = world_open("ctx: 64\n");
    uint64_t call = 1;
    for (unsigned nth = 1;; nth++, call += 2) {
        struct msg_generate g = world_ask(0, 2);
        g.prompt = "a b c";
        g.samples = 2;
        atomic_store(&fails_in, nth);
        world_generate(w, 0, CLIENT, call, 0, &g);
        world_turn(w);
        if (!world_seen(w, call)->ended) world_wait_text(w);
        world_run(w, 100);
        unsigned left = atomic_exchange(&fails_in, 0);
        if (left) {
            world_expect_end(w, call, STATUS_OK, "");
            assert_in_range(nth, 5, 100); /* the text, and two arrays for each answer */
            break;
        }
        world_expect_end(w, call, STATUS_RESOURCE_EXHAUSTED, "memory");
        world_expect_idle(w);
        world_ask_tokens(w, call + 1, 3, 2);
        world_run(w, 100);
        world_expect_end(w, call + 1, STATUS_OK, "");
    }
    world_expect_idle(w);
    world_close(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answer),
        cmocka_unit_test(test_slots_come_back),
        cmocka_unit_test(test_stop_at_the_last_token),
        cmocka_unit_test(test_control_token_is_not_shown),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_cached),
        cmocka_unit_test(test_users),
        cmocka_unit_test(test_chat),
        cmocka_unit_test(test_logprobs_of_another_number),
        cmocka_unit_test(test_priority),
        cmocka_unit_test(test_who_may_name_them),
        cmocka_unit_test(test_orders),
        cmocka_unit_test(test_tenants),
        cmocka_unit_test(test_key_deadline),
        cmocka_unit_test(test_key_max_per_client),
        cmocka_unit_test(test_key_max_sequences),
        cmocka_unit_test(test_key_prefix_cache),
        cmocka_unit_test(test_silent_client),
        cmocka_unit_test(test_keep_alives),
        cmocka_unit_test(test_stopped_coordinator),
        cmocka_unit_test(test_slow_reader_lives),
        cmocka_unit_test(test_slow_reader_of_samples_lives),
        cmocka_unit_test(test_news_in_parts),
        cmocka_unit_test(test_stalled_reader_is_given_up),
        cmocka_unit_test(test_refused_is_not_tried_each_turn),
        cmocka_unit_test(test_client_is_gone),
        cmocka_unit_test(test_unread_calls_count),
        cmocka_unit_test(test_unread_calls_leave_room),
        cmocka_unit_test(test_live_calls_stay),
        cmocka_unit_test(test_join),
        cmocka_unit_test(test_siblings_of_a_failed_answer),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_cancel_while_tokenised),
        cmocka_unit_test(test_a_refused_send),
        cmocka_unit_test(test_itl),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
