/* Guesses at tokens: what is asked, what runs of guesses have, what becomes of results, and that
 * nothing of a guess is left where it was wrong. The test is the drafter and the last stage. */
#include "tests/lib/core_fixture.h"

#define FIRST 100u /* the request that most tests have */

/* The token at a position of the answer: never an end token. */
static int32_t truth(uint32_t pos)
{
    return (int32_t)(3 + pos * 7 % 40);
}

/* What the last stage knows of a request: what it chose, and for which position. */
struct stage {
    uint32_t next;
    int32_t token;
};

#define STAGE_REQUESTS 4u

struct world {
    struct fixture f;
    struct stage stages[STAGE_REQUESTS];
    struct action ask; /* the last, with its tail */
    int32_t tail[1024];
    uint32_t n_asks;
    int32_t tokens[2000]; /* handed out: by position */
    uint32_t n_tokens;
    struct accept_stats accept; /* of the last request that ended */
    uint32_t n_ended;
    uint32_t table[4]; /* the first pages of the last run */
    uint64_t ignored;  /* a request whose tokens are not kept */
    enum status status;
    int32_t end_at; /* position at which the answer has an end token; -1: none */
};

/* Steps in flight keep their tokens here, since a core's actions live for one event. */
static int32_t kept_tokens[READY_FLIGHT][READY_RUNS][64];

static void happen(struct world *w, struct event e)
{
    uint32_t before = w->f.n_flight;
    (void)ready_event(&w->f, e);
    for (uint32_t i = before; i < w->f.n_flight; i++)
        for (uint32_t k = 0; k < w->f.flight[i].n_runs; k++) {
            struct msg_run *r = &w->f.flight[i].runs[k];
            int32_t *to = kept_tokens[w->f.flight[i].number % READY_FLIGHT][k];
            memcpy(to, r->tokens, (r->n_rows < 64 ? r->n_rows : 64) * sizeof *to);
            r->tokens = to;
            memcpy(w->table, r->pages, (r->n_pages < 4 ? r->n_pages : 4) * sizeof *w->table);
        }
    for (size_t i = 0; i < w->f.last.n; i++) {
        const struct action *a = &w->f.last.items[i];
        if (a->type == ACT_DRAFT) {
            w->ask = *a;
            memcpy(w->tail, a->draft.tail, a->draft.n_tail * sizeof *w->tail);
            w->n_asks++;
        }
        if (a->type == ACT_TOKENS && a->tokens.request != w->ignored) {
            assert_int_equal(a->tokens.n, 1);
            w->tokens[w->n_tokens++] = a->tokens.tokens[0];
        }
        if (a->type == ACT_END) {
            w->accept = a->end.accept;
            w->status = a->end.status;
            w->n_ended++;
        }
    }
}

static void compose(struct world *w)
{
    happen(w, (struct event){.type = EV_COMPOSE});
}

static int32_t choice(const struct world *w, uint32_t pos)
{
    return w->end_at == (int32_t)pos ? 2 : truth(pos);
}

/* A run's answer by the law: rows up to the first that is not live. */
static void verify(struct world *w, const struct msg_run *r, int32_t *tokens,
                   struct msg_run_result *ret)
{
    uint32_t from = r->n_rows - r->n_logits;
    struct stage *s = &w->stages[r->request % STAGE_REQUESTS];
    *ret = (struct msg_run_result){.request = r->request,
                                   .attempt = r->attempt,
                                   .first_pos = r->first_pos + from + 1,
                                   .tokens = tokens};
    for (uint32_t i = from; i < r->n_rows; i++) {
        uint32_t pos = r->first_pos + i;
        bool guess = i >= r->n_rows - r->n_guesses;
        if (guess && (s->next != pos || s->token != r->tokens[i])) break;
        *s = (struct stage){pos + 1, choice(w, pos + 1)};
        tokens[ret->n_tokens++] = s->token;
    }
    ret->dead = ret->n_tokens == 0;
}

/* Answers the oldest Step; `change` may spoil the answer to its first run. */
static void answer_with(struct world *w, void (*change)(struct msg_run_result *))
{
    static int32_t tokens[READY_RUNS][64];
    struct msg_run_result runs[READY_RUNS];
    assert_true(w->f.n_flight > 0);
    struct ready_step s = w->f.flight[0];
    struct msg_result m = {.epoch = w->f.epoch, .number = s.number, .runs = runs};
    memmove(w->f.flight, w->f.flight + 1, --w->f.n_flight * sizeof s);
    for (uint32_t i = 0; i < s.n_runs; i++)
        if (s.runs[i].n_logits) {
            verify(w, &s.runs[i], tokens[m.n_runs], &runs[m.n_runs]);
            m.n_runs++;
        }
    if (change) change(&runs[0]);
    happen(w, (struct event){.type = EV_RESULT, .result = &m});
}

static void answer(struct world *w)
{
    answer_with(w, NULL);
}

/* The drafter's answer to the last ask: n guesses, of which the one at `wrong` (if any) is. */
static void guess(struct world *w, uint32_t n, uint32_t wrong)
{
    int32_t tokens[DRAFT_LENGTH_MAX];
    uint32_t from = w->ask.draft.first_pos + w->ask.draft.n_tail;
    for (uint32_t i = 0; i < n; i++) tokens[i] = truth(from + i) + (i == wrong);
    happen(w, (struct event){.type = EV_DRAFT,
                             .draft = {.request = w->ask.draft.request,
                                       .serial = w->ask.draft.serial,
                                       .first_pos = from,
                                       .n = n,
                                       .tokens = tokens,
                                       .took_ns = 1000}});
}

#define NONE_WRONG UINT32_MAX

static struct core_config draft_config(uint32_t length)
{
    struct core_config k = ready_config();
    k.draft = DRAFT_DEFAULTS;
    k.draft.kind = DRAFT_NGRAM;
    k.draft.length = k.draft.length_max = length;
    k.draft.adaptive = false;
    k.n_stages = 3;
    k.window = 4;
    return k;
}

static struct world begin(struct core_config k)
{
    return (struct world){.f = ready_open(k), .end_at = -1};
}

static void ask_for(struct world *w, uint64_t id, uint32_t n_prompt, uint32_t max_new)
{
    int32_t tokens[2000];
    for (uint32_t i = 0; i < n_prompt; i++) tokens[i] = truth(i);
    happen(w, (struct event){.type = EV_SUBMIT,
                             .submit = {.request = id,
                                        .priority = PRIORITY_NORMAL,
                                        .tokens = tokens,
                                        .n_prompt = n_prompt,
                                        .max_new = max_new,
                                        .drafts = true}});
}

/* A request of n_prompt tokens has its first one, and was asked for guesses behind it. */
static struct world begun(struct core_config k, uint32_t n_prompt, uint32_t max_new)
{
    struct world w = begin(k);
    ask_for(&w, FIRST, n_prompt, max_new);
    compose(&w);
    assert_int_equal(w.f.n_flight, 1);
    assert_int_equal(w.n_asks, k.draft.pipelined); /* for what comes behind the prompt */
    if (k.draft.pipelined) guess(&w, 0, NONE_WRONG);
    answer(&w);
    assert_int_equal(w.n_tokens, 1);
    return w;
}

static void check_tokens(const struct world *w, uint32_t n_prompt)
{
    for (uint32_t i = 0; i < w->n_tokens; i++) assert_int_equal(w->tokens[i], truth(n_prompt + i));
}

static struct core_sequence sequence(const struct world *w)
{
    return core_sequence_at(w->f.core, 0);
}

static const struct msg_run *last_run(const struct world *w)
{
    assert_true(w->f.n_flight > 0);
    return &w->f.flight[w->f.n_flight - 1].runs[0];
}

/* Without waiting for drafts the known row is computed by itself, and guesses follow it before its
 * answer has come; with them known and guessed rows are in one run. */
static void test_a_run_of_guesses(void **state)
{
    (void)state;
    struct world w = begun(draft_config(4), 5, 100);
    compose(&w); /* the last answer was empty: the known token's row does not wait */
    assert_int_equal(w.f.n_flight, 1);
    assert_int_equal(last_run(&w)->kind, RUN_DECODE);
    assert_int_equal(w.ask.draft.first_pos, 6);
    assert_int_equal(w.ask.draft.n_tail, 0);
    assert_int_equal(w.ask.draft.want, 4);
    guess(&w, 4, NONE_WRONG);
    compose(&w);
    assert_int_equal(w.f.n_flight, 2);
    const struct msg_run *r = last_run(&w);
    assert_true(r->kind == RUN_VERIFY && r->first_pos == 6 && r->n_rows == 4 && r->n_guesses == 4 &&
                r->n_logits == 4);
    assert_int_equal(w.ask.draft.first_pos, 6); /* drafting goes on behind them */
    assert_int_equal(w.ask.draft.n_tail, 4);
    for (uint32_t i = 0; i < 4; i++) assert_int_equal(w.tail[i], truth(6 + i));
    answer(&w);
    assert_int_equal(w.n_tokens, 2);
    answer(&w);
    assert_int_equal(w.n_tokens, 6);
    compose(&w); /* the row of the sixth waits for the guesses behind it */
    assert_int_equal(w.f.n_flight, 0);
    guess(&w, 4, NONE_WRONG);
    compose(&w);
    r = last_run(&w);
    assert_true(r->kind == RUN_VERIFY && r->first_pos == 10 && r->n_rows == 4 &&
                r->n_guesses == 3 && r->n_logits == 4); /* one of the four is known by now */
    answer(&w);
    assert_int_equal(w.n_tokens, 10); /* all accepted: one more than was guessed */
    check_tokens(&w, 5);
    core_close(w.f.core);
}

/* The first guess is wrong: one token, and the next run writes the same positions again. What is in
 * flight of the old guesses is dead, and counts for nothing. */
static void test_roll_back(void **state)
{
    (void)state;
    struct world w = begun(draft_config(4), 5, 100);
    compose(&w);
    guess(&w, 4, 0);
    compose(&w);
    guess(&w, 4, NONE_WRONG); /* right behind a wrong one */
    compose(&w);
    assert_int_equal(w.f.n_flight, 3);
    assert_int_equal(sequence(&w).n_issued, 14);
    assert_int_equal(sequence(&w).n_right, 6);
    answer(&w); /* the known row: its choice is not what was guessed */
    assert_int_equal(w.n_tokens, 2);
    assert_int_equal(sequence(&w).n_issued, 6);
    assert_int_equal(sequence(&w).n_guessed, 7);
    uint64_t old = w.ask.draft.serial;
    compose(&w);
    assert_true(w.ask.draft.serial > old); /* asked anew, and its row waits for that */
    assert_int_equal(w.f.n_flight, 2);
    guess(&w, 4, NONE_WRONG);
    compose(&w);
    assert_int_equal(w.f.n_flight, 3);
    assert_true(last_run(&w)->first_pos == 6 && last_run(&w)->n_rows == 5);
    answer(&w); /* dead, twice */
    answer(&w);
    assert_int_equal(w.n_tokens, 2);
    assert_int_equal(sequence(&w).n_issued, 11);
    answer(&w);
    assert_int_equal(w.n_tokens, 7);
    check_tokens(&w, 5);
    core_close(w.f.core);
}

/* A guess in the middle is wrong: those before it count, and the choice in its place. */
static void test_the_middle_one_is_wrong(void **state)
{
    (void)state;
    struct world w = begun(draft_config(4), 5, 12);
    compose(&w);
    guess(&w, 4, 2);
    compose(&w);
    answer(&w);
    answer(&w);
    assert_int_equal(w.n_tokens, 4);
    check_tokens(&w, 5);
    while (w.n_ended == 0) {
        compose(&w);
        w.f.now_ns += 50 * MS; /* the drafter is silent: its time is over */
        compose(&w);
        answer(&w);
    }
    assert_int_equal(w.n_tokens, 12);
    assert_int_equal(w.status, STATUS_OK);
    assert_int_equal(w.accept.runs, 1);
    assert_int_equal(w.accept.drafted, 4);
    assert_int_equal(w.accept.accepted, 2);
    assert_int_equal(w.accept.emitted, 2);
    assert_int_equal(w.accept.early, 1);
    assert_int_equal(w.accept.wasted, 2);
    check_tokens(&w, 5);
    core_close(w.f.core);
}

/* Only an answer to the last ask counts, only from its position on, and only with tokens of the
 * vocabulary; what it says of tokens that are known must be so. */
static void test_answers_that_count_for_nothing(void **state)
{
    (void)state;
    static const int32_t good[] = {10}, foreign[] = {50}, negative[] = {-1};
    const struct {
        uint64_t request;
        int serial; /* beside that of the ask */
        uint32_t first_pos;
        const int32_t *tokens;
    } cases[] = {{FIRST + 1, 0, 6, good}, {FIRST, -1, 6, good},   {FIRST, 1, 6, good},
                 {FIRST, 0, 7, good},     {FIRST, 0, 6, foreign}, {FIRST, 0, 6, negative}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct world w = begun(draft_config(4), 5, 100);
        compose(&w);
        uint64_t serial = w.ask.draft.serial;
        happen(&w, (struct event){.type = EV_DRAFT,
                                  .draft = {.request = cases[i].request,
                                            .serial = serial + (uint64_t)cases[i].serial,
                                            .first_pos = cases[i].first_pos,
                                            .n = 1,
                                            .tokens = cases[i].tokens}});
        assert_int_equal(sequence(&w).n_guessed, 6);
        compose(&w);
        assert_int_equal(w.f.n_flight, 1);
        assert_int_equal(w.ask.draft.serial, serial); /* nothing new is known: no other ask */
        answer(&w);
        compose(&w);
        answer(&w); /* position 7 is known before the guesses from 6 or 7 on come */
        guess(&w, 4, NONE_WRONG);
        assert_int_equal(sequence(&w).n_tokens, 8);
        assert_int_equal(sequence(&w).n_guessed, w.ask.draft.first_pos + 4);
        core_close(w.f.core);
    }
}

/* A page enters the index when the last of its rows is known to be right: another request does not
 * find it while it is guessed, and finds it afterwards. */
static void test_a_guessed_page_is_not_shared(void **state)
{
    (void)state;
    struct core_config k = draft_config(16);
    struct world w = begun(k, 14, 60);
    compose(&w);
    guess(&w, 16, NONE_WRONG);
    compose(&w);
    assert_int_equal(sequence(&w).n_issued, 31);
    assert_int_equal(ready_cache(&w.f).pages_cached, 0);
    ready_cancel(&w.f, FIRST); /* the rows are in flight, and most of them are guesses */
    assert_int_equal(ready_cache(&w.f).pages_cached, 0);
    core_close(w.f.core);

    w = begun(k, 14, 60);
    compose(&w);
    guess(&w, 16, NONE_WRONG);
    compose(&w);
    answer(&w);
    answer(&w);
    assert_int_equal(sequence(&w).n_right, 31);
    ready_cancel(&w.f, FIRST);
    assert_int_equal(ready_cache(&w.f).pages_cached, 1);
    core_close(w.f.core);
}

/* Another request has computed the page that a known row completes: the row is written into the
 * request's own page all the same, also where guesses go behind it in the same run, and the shared
 * one is read from the next Step on. */
static void test_a_page_that_another_has(void **state)
{
    (void)state;
    struct world w = begun(draft_config(4), 14, 60);
    compose(&w);
    ask_for(&w, FIRST + 1, 17, 1); /* its prompt is what the first one will say */
    compose(&w);
    assert_true(last_run(&w)->request == FIRST + 1 && last_run(&w)->n_rows == 17);
    uint32_t page = w.table[0];
    w.ignored = FIRST + 1;
    while (w.f.n_flight) answer(&w);
    assert_int_equal(sequence(&w).n_tokens, 16);
    guess(&w, 4, NONE_WRONG); /* the first of them is known by now */
    compose(&w);
    const struct msg_run *r = last_run(&w);
    assert_true(r->kind == RUN_VERIFY && r->first_pos == 15 && r->n_guesses == 3);
    assert_int_not_equal(w.table[0], page);
    assert_int_equal(sequence(&w).pages[0], page);
    core_close(w.f.core);
}

/* Nothing behind an end token counts, whatever is in flight behind it. */
static void test_an_end_in_a_run(void **state)
{
    (void)state;
    struct world w = begun(draft_config(4), 5, 100);
    w.end_at = 8;
    compose(&w);
    guess(&w, 4, NONE_WRONG); /* it guesses on, behind the end */
    compose(&w);
    guess(&w, 4, NONE_WRONG);
    compose(&w);
    answer(&w);
    answer(&w);
    assert_int_equal(w.n_ended, 1);
    assert_int_equal(w.status, STATUS_OK);
    assert_int_equal(w.n_tokens, 3);
    assert_int_equal(w.accept.accepted, 2);
    answer(&w);
    compose(&w);
    assert_int_equal(w.n_tokens, 3);
    assert_int_equal(w.f.n_flight, 0);
    check_tokens(&w, 5);
    core_close(w.f.core);
}

/* What a run of a known row and four guesses adds to its request's figures: the first guess is
 * wrong; all are right; an end token comes in place of the third. */
static void test_accounting(void **state)
{
    (void)state;
    static const struct {
        uint32_t wrong;
        int32_t end_at;
        uint32_t accepted, emitted;
    } cases[] = {{0, -1, 0, 1}, {NONE_WRONG, -1, 4, 5}, {NONE_WRONG, 8, 2, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct core_config k = draft_config(4);
        k.draft.pipelined = false;
        struct world w = begun(k, 5, 100);
        w.end_at = cases[i].end_at;
        compose(&w);
        guess(&w, 4, cases[i].wrong);
        compose(&w);
        assert_int_equal(last_run(&w)->n_rows, 5);
        answer(&w);
        struct msg_status s;
        core_status(w.f.core, &s);
        if (w.n_ended == 0)
            happen(&w, (struct event){.type = EV_CANCEL, .request = {FIRST, "asked"}});
        assert_int_equal(w.n_ended, 1);
        assert_int_equal(w.accept.runs, 1);
        assert_int_equal(w.accept.drafted, 4);
        assert_int_equal(w.accept.accepted, cases[i].accepted);
        assert_int_equal(w.accept.emitted, cases[i].emitted);
        assert_int_equal(w.accept.wasted, 5 - cases[i].emitted);
        assert_int_equal(s.replicas[0].draft.drafted, 4);
        assert_int_equal(s.replicas[0].draft.accepted, cases[i].accepted);
        core_close(w.f.core);
    }
}

/* An end token that is guessed is no row: nothing comes behind it. Where the request ignores ends
 * it is one like any other. */
static void test_a_guessed_end(void **state)
{
    (void)state;
    static const int32_t tokens[] = {10, 2, 11};
    struct world w = begun(draft_config(4), 5, 100);
    compose(&w);
    happen(&w, (struct event){.type = EV_DRAFT,
                              .draft = {.request = FIRST,
                                        .serial = w.ask.draft.serial,
                                        .first_pos = 6,
                                        .n = 3,
                                        .tokens = tokens}});
    assert_int_equal(sequence(&w).n_guessed, 7);
    core_close(w.f.core);
}

/* The last token is never an input, so that no guess stands in its place. */
static void test_limits(void **state)
{
    (void)state;
    struct world w = begun(draft_config(8), 5, 4);
    compose(&w);
    assert_int_equal(w.ask.draft.want, 2); /* positions 6 and 7; 8 is the last token's */
    guess(&w, 8, NONE_WRONG);
    assert_int_equal(sequence(&w).n_guessed, 8);
    compose(&w);
    answer(&w);
    answer(&w);
    assert_int_equal(w.n_ended, 1);
    assert_int_equal(w.n_tokens, 4);
    check_tokens(&w, 5);
    core_close(w.f.core);
}

static void say_dead(struct msg_run_result *x)
{
    x->n_tokens = 0;
    x->dead = true;
}

static void say_less(struct msg_run_result *x)
{
    x->n_tokens--;
}

static void say_more(struct msg_run_result *x)
{
    x->n_tokens++;
}

static void say_other(struct msg_run_result *x)
{
    static int32_t other[64];
    memcpy(other, x->tokens, x->n_tokens * sizeof *other);
    other[0]++;
    x->tokens = other;
}

static void say_both(struct msg_run_result *x)
{
    x->dead = true;
}

/* A run whose guesses nothing contradicts is answered row by row; what cannot be so ends the
 * generation, and nothing of it counts. */
static void test_lies(void **state)
{
    (void)state;
    void (*const lies[])(struct msg_run_result *) = {say_dead, say_less, say_more, say_other,
                                                     say_both};
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        struct world w = begun(draft_config(4), 5, 100);
        compose(&w);
        guess(&w, 4, NONE_WRONG);
        compose(&w);
        answer(&w);
        assert_int_equal(w.n_tokens, 2);
        answer_with(&w, lies[i]);
        assert_int_equal(w.n_tokens, 2);
        struct msg_status s;
        core_status(w.f.core, &s);
        assert_false(s.ready);
        core_close(w.f.core);
    }
}

static void say_error(struct msg_run_result *x)
{
    x->n_tokens = 2;
    x->error = "logits that are not finite";
}

/* A row in the middle of a run fails: the tokens before it count, as they would one by one. */
static void test_an_error_in_a_run(void **state)
{
    (void)state;
    struct world w = begun(draft_config(4), 5, 100);
    compose(&w);
    guess(&w, 4, NONE_WRONG);
    compose(&w);
    answer(&w);
    answer_with(&w, say_error);
    assert_int_equal(w.n_tokens, 4);
    assert_int_equal(w.n_ended, 1);
    assert_int_equal(w.status, STATUS_INTERNAL);
    assert_int_equal(w.accept.accepted, 3); /* the row that failed was that of a right guess */
    assert_int_equal(w.accept.emitted, 2);
    check_tokens(&w, 5);
    struct msg_status s;
    core_status(w.f.core, &s);
    assert_true(s.ready);
    core_close(w.f.core);
}

/* The synchronous form has one run under way. */
static void test_synchronous(void **state)
{
    (void)state;
    struct core_config k = draft_config(4);
    k.draft.pipelined = false;
    struct world w = begun(k, 5, 100);
    compose(&w);
    assert_int_equal(w.n_asks, 1);
    assert_int_equal(w.f.n_flight, 0); /* its row waits */
    guess(&w, 4, NONE_WRONG);
    compose(&w);
    assert_int_equal(w.f.n_flight, 1);
    assert_int_equal(last_run(&w)->n_rows, 5);
    assert_int_equal(w.n_asks, 1); /* and nothing is asked while it is under way */
    answer(&w);
    assert_int_equal(w.n_tokens, 6);
    compose(&w);
    assert_int_equal(w.n_asks, 2);
    assert_int_equal(w.ask.draft.n_tail, 0);
    check_tokens(&w, 5);
    core_close(w.f.core);
}

/* A drafter that does not answer holds a row up once, and not for long. */
static void test_a_silent_drafter(void **state)
{
    (void)state;
    struct core_config k = draft_config(4);
    k.draft.pipelined = false;
    struct world w = begun(k, 5, 100);
    compose(&w);
    assert_int_equal(w.f.n_flight, 0);
    w.f.now_ns += 50 * MS;
    compose(&w);
    assert_int_equal(w.f.n_flight, 1);
    assert_int_equal(last_run(&w)->kind, RUN_DECODE);
    answer(&w);
    compose(&w); /* the ask is still open: nobody waits for it again */
    assert_int_equal(w.f.n_flight, 1);
    core_close(w.f.core);
}

/* Of a worker that cannot tell guesses apart none is asked, nor of a request that wants none. */
static void test_without_guesses(void **state)
{
    (void)state;
    struct world w = begin(draft_config(4));
    ready_submit(&w.f, FIRST, 7, 5, 3, PRIORITY_NORMAL);
    for (int i = 0; i < 3; i++) {
        compose(&w);
        answer(&w);
    }
    assert_int_equal(w.n_asks, 0);
    assert_int_equal(w.n_ended, 1);
    core_close(w.f.core);
}

/* Guesses take no page from anybody: where another request needs one, a page that holds nothing
 * right goes back, and nobody is preempted. */
static void test_guesses_give_way(void **state)
{
    (void)state;
    struct core_config k = draft_config(16);
    k.n_pages = 4;
    k.ctx = 64;
    k.share = false;
    struct world w = begun(k, 15, 40);
    compose(&w);
    guess(&w, 16, 0);
    compose(&w);
    guess(&w, 16, NONE_WRONG);
    compose(&w);
    while (w.f.n_flight) answer(&w);
    assert_int_equal(sequence(&w).n_issued, 16);
    assert_int_equal(sequence(&w).n_pages, 3); /* of them two beyond its known tokens */
    ready_submit(&w.f, FIRST + 1, 9, 10, 8, PRIORITY_HIGH);
    w.ignored = FIRST + 1;
    for (int i = 0; i < 40 && w.n_ended == 0; i++) {
        w.f.now_ns += 50 * MS;
        compose(&w);
        if (w.f.n_flight) answer(&w);
    }
    assert_int_equal(w.n_ended, 1);
    assert_int_equal(ready_cache(&w.f).preemptions, 0);
    check_tokens(&w, 15);
    core_close(w.f.core);
}

/* A prompt that finds fewer pages than it needs keeps those that it has just taken: they are not
 * pages of guesses that could go back. */
static void test_a_prompt_keeps_what_it_takes(void **state)
{
    (void)state;
    struct core_config k = draft_config(16);
    k.n_pages = 6;
    k.ctx = 96;
    k.share = false;
    struct world w = begin(k);
    w.ignored = FIRST + 1;
    ask_for(&w, FIRST, 64, 2);
    ask_for(&w, FIRST + 1, 40, 2);
    compose(&w); /* the first one has four of six pages; the second one needs three */
    assert_int_equal(w.f.n_flight, 1);
    assert_int_equal(w.f.flight[0].n_runs, 2);
    assert_int_equal(w.f.flight[0].runs[0].n_rows, 64);
    assert_int_equal(w.f.flight[0].runs[1].n_rows, 32);
    for (int i = 0; i < 40 && w.n_ended < 2; i++) {
        w.f.now_ns += 50 * MS;
        compose(&w);
        if (w.f.n_flight) answer(&w);
    }
    assert_int_equal(w.n_ended, 2);
    assert_int_equal(w.status, STATUS_OK);
    assert_int_equal(w.n_tokens, 2);
    check_tokens(&w, 64);
    core_close(w.f.core);
}

/* A run ahead of a new line begins behind a known row of that line: what the last stage chose last
 * lies where the old one ended. */
static void test_a_new_line_begins_with_a_known_row(void **state)
{
    (void)state;
    struct core_config k = draft_config(16);
    k.n_pages = 4;
    k.ctx = 64;
    k.share = false;
    struct world w = begun(k, 15, 45);
    w.ignored = FIRST + 1;
    ready_submit(&w.f, FIRST + 1, 9, 15, 30, PRIORITY_NORMAL);
    compose(&w);
    guess(&w, 0, NONE_WRONG);
    answer(&w); /* both have their next token */
    compose(&w);
    assert_int_equal(w.f.n_flight, 2);
    guess(&w, 16, NONE_WRONG);
    compose(&w);
    assert_int_equal(w.f.n_flight, 3); /* the guesses end in a third page, the last free one */
    assert_int_equal(sequence(&w).n_pages, 3);
    answer(&w);
    answer(&w);
    compose(&w); /* the other request's next row needs a page: it is the guesses' */
    assert_int_equal(sequence(&w).n_pages, 2);
    assert_int_equal(sequence(&w).n_guessed, sequence(&w).n_tokens);
    uint32_t n = w.f.n_flight;
    guess(&w, 16, NONE_WRONG);
    assert_true(sequence(&w).n_guessed > sequence(&w).n_tokens);
    compose(&w);
    assert_int_equal(w.f.n_flight, n); /* what the last stage chose last may lie elsewhere */
    answer(&w);
    compose(&w);
    assert_true(last_run(&w)->request == FIRST && last_run(&w)->n_guesses < last_run(&w)->n_rows);
    while (w.f.n_flight) answer(&w);
    check_tokens(&w, 15);
    core_close(w.f.core);
}

/* What is lost with a generation is replayed from known tokens alone. */
static void test_a_lost_generation(void **state)
{
    (void)state;
    struct world w = begun(draft_config(4), 5, 100);
    compose(&w);
    guess(&w, 4, NONE_WRONG);
    compose(&w);
    ready_again(&w.f);
    assert_int_equal(sequence(&w).n_guessed, 6);
    compose(&w);
    assert_true(last_run(&w)->first_pos == 0 && last_run(&w)->n_rows == 6 &&
                last_run(&w)->n_guesses == 0);
    core_close(w.f.core);
}

/* A length that adapts goes up with acceptance, and where Steps of many rows take far more than
 * those of one, guesses are made for nothing but to be looked at. */
static void test_length_and_gain(void **state)
{
    (void)state;
    struct core_config k = draft_config(4);
    k.draft.length_max = 8;
    k.draft.adaptive = true;
    struct world w = begun(k, 5, 1000);
    uint32_t longest = 0;
    for (int i = 0; i < 40; i++) {
        compose(&w);
        guess(&w, w.ask.draft.want, NONE_WRONG);
        compose(&w);
        if (w.ask.draft.want > longest) longest = w.ask.draft.want;
        if (w.f.n_flight) answer(&w);
    }
    assert_int_equal(longest, 8);
    check_tokens(&w, 5);
    core_close(w.f.core);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_run_of_guesses),
        cmocka_unit_test(test_roll_back),
        cmocka_unit_test(test_the_middle_one_is_wrong),
        cmocka_unit_test(test_answers_that_count_for_nothing),
        cmocka_unit_test(test_a_guessed_page_is_not_shared),
        cmocka_unit_test(test_a_page_that_another_has),
        cmocka_unit_test(test_an_end_in_a_run),
        cmocka_unit_test(test_accounting),
        cmocka_unit_test(test_a_guessed_end),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_lies),
        cmocka_unit_test(test_an_error_in_a_run),
        cmocka_unit_test(test_synchronous),
        cmocka_unit_test(test_a_silent_drafter),
        cmocka_unit_test(test_without_guesses),
        cmocka_unit_test(test_guesses_give_way),
        cmocka_unit_test(test_a_prompt_keeps_what_it_takes),
        cmocka_unit_test(test_a_new_line_begins_with_a_known_row),
        cmocka_unit_test(test_a_lost_generation),
        cmocka_unit_test(test_length_and_gain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
