/* Grammars: the automaton against a naive matcher on random trees, bytes that are none, masks
 * against tokens tried one by one, and the state of an answer against one found from its begin. */
#include "common/text/constraint.h"
#include "common/text/format.h"
#include "common/text/grammar_tree.h"

#include "common/base/mem.h"
#include "common/base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static uint64_t seed;
static uint32_t drawn;

static uint32_t draw(uint32_t n)
{
    return philox(seed, drawn++, 0, 0, 0).v[0] % n;
}

/* ---- a naive matcher ---- */

/* A tree of its own, so that it shares nothing with what it checks. */
enum kind { TEXT, CLASS, SEQ, ALT, REPEAT, RULE };

struct tree {
    enum kind kind;
    char text[3];
    struct tree *a, *b;
    uint32_t min, max;
};

#define TREES 64
static struct tree trees[TREES];
static uint32_t n_trees;
static struct tree *rule_is; /* the one rule */

static struct tree *new_tree(enum kind kind)
{
    struct tree *t = &trees[n_trees++];
    *t = (struct tree){.kind = kind};
    return t;
}

/* Random, of letters a to c; where it repeats something, that is never empty. */
static struct tree *random_tree(uint32_t depth, bool some)
{
    uint32_t kind = depth == 0 || n_trees > TREES - 12 ? draw(2) : draw(7);
    struct tree *t;
    switch (kind) {
    case 0:
        t = new_tree(TEXT);
        for (uint32_t i = 0, n = some ? 1 + draw(2) : draw(3); i < n; i++)
            t->text[i] = (char)('a' + draw(3));
        return t;
    case 1:
        t = new_tree(CLASS);
        t->min = 'a' + draw(2);
        t->max = t->min + draw(2);
        return t;
    case 2:
    case 3:
        t = new_tree(SEQ);
        t->a = random_tree(depth - 1, some);
        t->b = random_tree(depth - 1, false);
        return t;
    case 4:
        t = new_tree(ALT);
        t->a = random_tree(depth - 1, some);
        t->b = random_tree(depth - 1, some);
        return t;
    case 5:
        t = new_tree(REPEAT);
        t->a = random_tree(depth - 1, true);
        t->min = some ? 1 + draw(3) : draw(4);
        t->max = t->min + draw(3);
        if (t->max == 0) t->max = 1;
        if (draw(3) == 0) t->max = GRAMMAR_NO_MAX;
        return t;
    default: /* behind a letter, so that the rule does not begin with itself */
        t = new_tree(SEQ);
        t->a = new_tree(TEXT);
        t->a->text[0] = (char)('a' + draw(3));
        t->b = new_tree(RULE);
        return t;
    }
}

static gnode node_of(struct grammar_tree *g, const struct tree *t, uint32_t rule)
{
    const struct grammar_range r = {t->min, t->max};
    switch (t->kind) {
    case TEXT: return grammar_text(g, t->text, strlen(t->text));
    case CLASS: return grammar_class(g, &r, 1);
    case SEQ: return grammar_seq(g, node_of(g, t->a, rule), node_of(g, t->b, rule));
    case ALT: return grammar_alt(g, node_of(g, t->a, rule), node_of(g, t->b, rule));
    case REPEAT: return grammar_repeat(g, node_of(g, t->a, rule), t->min, t->max);
    default: return grammar_ref(g, rule);
    }
}

/* Where a match of t from `at` may end: a bit for each place. Texts are short. */
static uint32_t ends(const struct tree *t, const char *s, uint32_t n, uint32_t at, uint32_t depth)
{
    uint32_t all = 0, from;
    size_t len;
    if (depth > 60) return 0;
    switch (t->kind) {
    case TEXT:
        len = strlen(t->text);
        return at + len <= n && memcmp(s + at, t->text, len) == 0 ? 1u << (at + len) : 0;
    case CLASS:
        return at < n && (uint32_t)s[at] >= t->min && (uint32_t)s[at] <= t->max ? 2u << at : 0;
    case SEQ:
        from = ends(t->a, s, n, at, depth + 1);
        for (uint32_t i = at; i <= n; i++)
            if (from >> i & 1) all |= ends(t->b, s, n, i, depth + 1);
        return all;
    case ALT: return ends(t->a, s, n, at, depth + 1) | ends(t->b, s, n, at, depth + 1);
    case REPEAT:
        from = 1u << at;
        for (uint32_t k = 0; k <= n + 1 && from && (t->max == GRAMMAR_NO_MAX || k <= t->max); k++) {
            uint32_t next = 0;
            if (k >= t->min) all |= from;
            for (uint32_t i = at; i <= n; i++)
                if (from >> i & 1) next |= ends(t->a, s, n, i, depth + 1);
            from = next;
        }
        return all;
    default: return ends(rule_is, s, n, at, depth + 1);
    }
}

static struct grammar_state a, b;

/* Whether the automaton takes the bytes; ends in `a`. */
static bool walk(const struct grammar *g, const char *s, size_t n)
{
    grammar_start(g, &a);
    for (size_t i = 0; i < n; i++) {
        if (!grammar_step(g, &a, (uint8_t)s[i], &b)) return false;
        a = b;
    }
    return true;
}

/* All texts of up to 7 letters, by the automaton and by the naive matcher. Whatever the automaton
 * lets through can be completed: no dead ends. */
static uint32_t compare(const struct grammar *g, const struct tree *root)
{
    uint32_t whole = 0;
    char s[8];
    for (uint32_t n = 0, many = 1; n <= 7; n++, many *= 3)
        for (uint32_t x = 0; x < many; x++) {
            for (uint32_t i = 0, y = x; i < n; i++, y /= 3) s[i] = (char)('a' + y % 3);
            bool right = ends(root, s, n, 0, 0) >> n & 1;
            bool taken = walk(g, s, n) && a.may_end;
            if (taken != right) {
                print_error("seed %llu: '%.*s' %d %d\n", (unsigned long long)seed, (int)n, s, taken,
                            right);
                fail();
            }
            whole += right;
        }
    return whole;
}

static void test_random_trees(void **state)
{
    (void)state;
    uint32_t compiled = 0, whole = 0;
    for (seed = 1; seed <= 300; seed++) {
        struct errmsg em = {0};
        struct grammar_tree *t = grammar_tree_open();
        struct buf code = {0};
        struct grammar g;
        drawn = n_trees = 0;
        rule_is = random_tree(3, false);
        struct tree *root = random_tree(3, false);
        uint32_t rule = grammar_rule(t);
        grammar_define(t, rule, node_of(t, rule_is, rule));
        int rc = grammar_compile(t, node_of(t, root, rule), &code, &em);
        grammar_tree_close(t);
        if (rc == 0) {
            assert_int_equal(grammar_open(code.data, code.len, &g, &em), 0);
            whole += compare(&g, root);
            compiled++;
        } else {
            assert_int_equal(rc, ERR_RANGE); /* the rule has no end */
        }
        buf_close(&code);
    }
    assert_true(compiled > 200 && whole > 5000);
}

/* ---- code that a peer sent ---- */

static struct buf compiled(const char *format)
{
    struct buf code = {0};
    struct errmsg em = {0};
    if (format_compile(format, strlen(format), FORMAT_PLAIN, false, &code, &em) < 0)
        fail_msg("%s", em.text);
    return code;
}

#define SCHEMA(s) "{\"type\":\"json_schema\",\"json_schema\":{\"schema\":" s "}}"

static void test_wrong_code(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t n;
    } wrong[] = {
        {"", 0},
        {"FG\1\0\0\0\0\0", 8},                    /* no code */
        {"FG\2\0\1\0\0\0\7", 9},                  /* another version */
        {"FG\1\0\2\0\0\0\7", 9},                  /* shorter than it says */
        {"FG\1\0\1\0\0\0\7\7", 10},               /* longer */
        {"FG\1\0\1\0\0\0\xff", 9},                /* no such operation */
        {"FG\1\0\1\0\0\0a", 9},                   /* falls out of its end */
        {"FG\1\0\2\0\0\0\1\7", 10},               /* so does this */
        {"FG\1\0\3\0\0\0\5\3\0", 11},             /* a jump out of it */
        {"FG\1\0\4\0\0\0\5\2\0\7", 12},           /* into an operation */
        {"FG\1\0\3\0\0\0\3\0\7", 11},             /* a set that is not there */
        {"FG\1\0\4\0\0\0\10\3\0\7", 12},          /* a count for what is no LOOP */
        {"FG\1\0\10\0\0\0\11\0\0\2\0\1\0\7", 16}, /* min above max */
        {"FG\1\0\10\0\0\0\11\0\0\0\0\0\0\7", 16}, /* none at all */
        {"FG\1\0\2\0\0\0\12\1", 10},              /* a PEEK that is cut off */
        {"FG\1\0\7\0\0\0\12\1ab\7\0\7", 15},      /* one that leads out */
    };
    struct errmsg em;
    struct grammar g;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        if (grammar_open(wrong[i].bytes, wrong[i].n, &g, &em) != ERR_FORMAT) fail_msg("%zu", i);
    assert_int_equal(grammar_open("FG\1\0\1\0\0\0\7", 9, &g, &em), 0); /* RET: the empty answer */
    grammar_start(&g, &a);
    assert_true(a.may_end && a.n_words == 0);
}

/* Code that never ends, calls itself, or is at many positions: bounded, and no answer is made up.
 */
static void test_hostile_code(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t n;
    } hostile[] = {
        {"FG\1\0\3\0\0\0\5\0\0", 11},                    /* a jump to itself */
        {"FG\1\0\7\0\0\0\4\0\0\5\0\0\7", 15},            /* a split into itself */
        {"FG\1\0\4\0\0\0\6\0\0\7", 12},                  /* a call of itself */
        {"FG\1\0\5\0\0\0\6\0\0a\7", 13},                 /* the same with a byte behind */
        {"FG\1\0\13\0\0\0\10\3\0\11\0\0\1\0\2\0\7", 19}, /* a count that only counts */
        {"FG\1\0\10\0\0\0\11\0\0\1\0\2\0\7", 16},        /* a LOOP without its count */
    };
    struct grammar g;
    struct errmsg em;
    for (size_t i = 0; i < sizeof hostile / sizeof hostile[0]; i++) {
        if (grammar_open(hostile[i].bytes, hostile[i].n, &g, &em) < 0) fail_msg("%zu", i);
        grammar_start(&g, &a);
        for (uint32_t c = 0; c < 256; c++) (void)grammar_step(&g, &a, (uint8_t)c, &b);
    }
}

/* 40 alternatives at each of 20 nested levels: what does not fit is dropped, and what is left leads
 * to answers. */
static void test_many_positions(void **state)
{
    (void)state;
    char text[4096] = "{\"type\":\"grammar\",\"grammar\":\"root ::= x\\n";
    for (int i = 0; i < 40; i++)
        (void)snprintf(text + strlen(text), sizeof text - strlen(text),
                       "r%d ::= [a-c] x? \\\"%d\\\"\\n", i, i);
    (void)strcat(text, "x ::= ");
    for (int i = 0; i < 40; i++)
        (void)snprintf(text + strlen(text), sizeof text - strlen(text), "%sr%d", i ? " | " : "", i);
    (void)strcat(text, "\"}");
    struct buf code = compiled(text);
    struct grammar g;
    struct errmsg em;
    assert_int_equal(grammar_open(code.data, code.len, &g, &em), 0);
    assert_true(walk(&g, "aaaaaaaaaaaaaaaaaaaa", 20));
    assert_true(a.n_words > GRAMMAR_STATE_WORDS / 2 && a.n_words <= GRAMMAR_STATE_WORDS);
    for (int i = 0; i < 400 && !(a.may_end && a.n_words == 0); i++) { /* it comes to an end */
        uint32_t c = '0';
        while (c <= '9' && !grammar_step(&g, &a, (uint8_t)c, &b)) c++;
        assert_true(c <= '9');
        a = b;
    }
    assert_true(a.may_end);
    buf_close(&code);
}

/* ---- tokens ---- */

#define TOKENS 600u
#define END 7

static char texts[TOKENS][40];

/* All bytes, random pieces of JSON, some of them long, a control token, one without bytes, and an
 * end. */
static struct vocab *open_vocab(void)
{
    static const char *const pieces[] = {"{",  "}",    "[",    "]",  "\"",   ":",    ",",
                                         " ",  "\n",   "a",    "b",  "null", "true", "1",
                                         "25", "\xc3", "\xa9", "\\", "n",    "ab"};
    struct vocab_string tokens[TOKENS];
    int32_t types[TOKENS];
    float scores[TOKENS];
    for (uint32_t i = 0; i < TOKENS; i++) {
        types[i] = TOKEN_NORMAL;
        if (i < 256) {
            types[i] = TOKEN_BYTE;
            (void)snprintf(texts[i], sizeof texts[i], "<0x%02X>", i);
        } else {
            texts[i][0] = 0;
            uint32_t n = 1 + draw(draw(8) ? 4 : 30);
            while (n-- && strlen(texts[i]) < sizeof texts[i] - 5)
                (void)strcat(texts[i], pieces[draw(20)]);
        }
    }
    types[300] = types[301] = TOKEN_CONTROL;
    (void)strcpy(texts[300], "<|im_end|>");
    (void)strcpy(texts[301], "a");
    texts[302][0] = 0;
    for (uint32_t i = 0; i < TOKENS; i++) {
        tokens[i] = (struct vocab_string){texts[i], strlen(texts[i])};
        scores[i] = -(float)i;
    }
    const struct vocab_spec s = {.model = {"llama", 5},
                                 .tokens = tokens,
                                 .types = types,
                                 .scores = scores,
                                 .n_tokens = TOKENS,
                                 .bos = -1,
                                 .eos = -1,
                                 .eot = -1,
                                 .eom = -1,
                                 .unknown = -1,
                                 .decodes_only = true};
    struct vocab *v = NULL;
    struct errmsg em = {0};
    if (vocab_open(&s, &v, &em) < 0) fail_msg("%s", em.text);
    return v;
}

static const char *const formats[] = {
    "{\"type\":\"json_object\"}",
    SCHEMA("{\"type\":\"string\",\"maxLength\":50,\"minLength\":40}"),
    SCHEMA("{\"type\":\"array\",\"items\":{\"type\":[\"integer\",\"null\"]},\"minItems\":3,"
           "\"maxItems\":70}"),
    SCHEMA("{\"$ref\":\"#/$defs/"
           "n\",\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":"
           "\"string\"},\"b\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/"
           "n\"}}},\"required\":[\"b\"]}}}"),
    "{\"type\":\"grammar\",\"grammar\":\"root ::= ([ab]{30,60} \\\"1\\\"){2,9}\"}",
};

static bool in(const uint64_t *mask, uint32_t i)
{
    return mask[i / 64] >> i % 64 & 1;
}

static int32_t told[2000];

static const int32_t *said(const void *arg, uint32_t pos, uint32_t *ret_n)
{
    (void)arg;
    *ret_n = 16 - pos % 16; /* as pages have it */
    return told + pos;
}

/* Along random answers: a mask holds the tokens that are allowed one by one, whether it is made or
 * known; the state found from where the answer was before is the one found from its begin. */
static void test_masks(void **state)
{
    (void)state;
    struct errmsg em = {0};
    seed = 77;
    drawn = 0;
    struct vocab *v = open_vocab();
    struct masks *m, *other;
    assert_int_equal(masks_open(v, TOKENS + 10, &m, &em), 0); /* the model has more rows */
    assert_int_equal(masks_open(v, TOKENS + 10, &other, &em), 0);
    struct constraint *c = mem_alloc(sizeof *c), *fresh = mem_alloc(sizeof *fresh);
    uint32_t ends_seen = 0, chosen = 0;
    bool is_dear;
    uint64_t work = 0;
    for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++) {
        struct buf code = compiled(formats[f]);
        for (uint32_t round = 0; round < 4; round++) {
            uint32_t boundary = 5, pos = boundary;
            assert_int_equal(constraint_open(c, code.data, code.len, &em), 0);
            while (pos < 700) {
                const struct grammar_state *s = constraint_seek(c, m, boundary, pos, said, NULL);
                const uint64_t *mask = masks_all(m, &c->grammar, s, &is_dear);
                assert_false(is_dear);
                uint32_t n = 0, list[TOKENS + 10];
                for (uint32_t i = 0; i < TOKENS + 10; i++) {
                    bool one = masks_allow(other, &c->grammar, s, (int32_t)i, &work);
                    if (in(mask, i) != one) fail_msg("format %zu, token %u: %d", f, i, one);
                    if (one) list[n++] = i;
                }
                assert_true(n > 0);
                assert_false(in(mask, 301) || in(mask, 302) || in(mask, TOKENS));
                assert_int_equal(in(mask, 300), s->may_end);
                uint32_t t = list[draw(n)];
                if (t == 300) {
                    ends_seen++;
                    break;
                }
                chosen++;
                told[pos++] = (int32_t)t;
                if (draw(12) ==
                    0) { /* up to 64 tokens were guesses, some of them impossible ones */
                    uint32_t guesses = draw(64);
                    for (uint32_t i = 0; i < guesses; i++) told[pos + i] = (int32_t)draw(TOKENS);
                    for (uint32_t i = 0; i <= guesses; i++)
                        (void)constraint_seek(c, m, boundary, pos + i, said, NULL);
                    assert_int_equal(constraint_open(fresh, code.data, code.len, &em), 0);
                    uint32_t at = pos > 70 + boundary ? pos - draw(64) : pos;
                    const struct grammar_state *x =
                        constraint_seek(fresh, m, boundary, at, said, NULL);
                    const struct grammar_state *y = constraint_seek(c, m, boundary, at, said, NULL);
                    assert_int_equal(x->n_words, y->n_words);
                    assert_memory_equal(x->words, y->words, x->n_words * sizeof *x->words);
                    assert_int_equal(x->may_end, y->may_end);
                    assert_int_equal(x->work, y->work);
                }
            }
        }
        buf_close(&code);
    }
    assert_true(ends_seen > 3 && chosen > 1000);
    struct masks_counts counts = masks_counts(m);
    assert_true(counts.kept > 1000 && counts.made < 2 * chosen);
    mem_free(c);
    mem_free(fresh);
    masks_close(m);
    masks_close(other);
    vocab_close(v);
}

/* Whatever character comes, what follows it may be nothing in 2^14 ways. */
static struct buf dear_grammar(void)
{
    char text[8192] = "{\"type\":\"grammar\",\"grammar\":\"root ::= (";
    for (uint32_t c = 1; c < 127; c++)
        (void)snprintf(text + strlen(text), sizeof text - strlen(text), "%s\\\"\\\\x%02x\\\" y",
                       c > 1 ? " | " : "", c);
    (void)strcat(text, ")*\\ny ::= w w w w w w w w w w w w w w\\n"
                       "w ::= \\\"q\\\"? | \\\"r\\\"?\"}");
    return compiled(text);
}

/* A grammar that takes too much work is told apart, whoever asks, and whatever was asked before. */
static void test_dear(void **state)
{
    (void)state;
    struct errmsg em = {0};
    struct vocab *v = open_vocab();
    struct masks *m;
    assert_int_equal(masks_open(v, TOKENS, &m, &em), 0);
    struct buf code = dear_grammar();
    struct constraint *c = mem_alloc(sizeof *c);
    assert_int_equal(constraint_open(c, code.data, code.len, &em), 0);
    for (int i = 0; i < 900; i++) told[i] = '!';
    bool is_dear = false;
    const struct grammar_state *s = constraint_seek(c, m, 0, 1, said, NULL);
    for (int i = 0; i < 2; i++) {
        (void)masks_all(m, &c->grammar, s, &is_dear);
        assert_true(is_dear);
    }
    uint64_t work = 0;
    assert_true(masks_allow(m, &c->grammar, s, '!', &work));
    assert_in_range(work, 1000, 100000);
    assert_false(constraint_is_dear(c)); /* a few tokens may take more than their share */
    uint32_t n = 1;
    for (; n < 900 && !constraint_is_dear(c); n++)
        (void)constraint_seek(c, m, 0, n + 1, said, NULL);
    assert_in_range(n, 10, 400);
    assert_int_equal(constraint_open(c, code.data, code.len, &em), 0);
    (void)constraint_seek(c, m, 0, n - 1, said, NULL);
    assert_false(constraint_is_dear(c));
    uint64_t before = c->now.state.work;
    (void)constraint_seek(c, m, 0, 900, said, NULL);
    assert_true(constraint_is_dear(c));
    assert_in_range(c->now.state.work - before, 1, 100000); /* what comes behind is not read */
    mem_free(c);
    buf_close(&code);
    masks_close(m);
    vocab_close(v);
}

/* An answer that begins anew at the same place, or elsewhere, is another one. */
static void test_seek_back(void **state)
{
    (void)state;
    struct errmsg em = {0};
    seed = 77;
    drawn = 0;
    struct vocab *v = open_vocab();
    struct masks *m;
    assert_int_equal(masks_open(v, TOKENS, &m, &em), 0);
    struct buf code = compiled(
        "{\"type\":\"grammar\",\"grammar\":\"root ::= (\\\"a\\\" | \\\"b\\\"){0,600} \\\"1\\\"\"}");
    struct constraint *c = mem_alloc(sizeof *c);
    assert_int_equal(constraint_open(c, code.data, code.len, &em), 0);
    for (int i = 0; i < 900; i++) told[i] = 'a';
    assert_false(grammar_is_dead(constraint_seek(c, m, 0, 500, said, NULL)));
    told[300] = '1'; /* far back: the state is found all the same */
    assert_true(constraint_seek(c, m, 0, 301, said, NULL)->may_end);
    assert_true(grammar_is_dead(constraint_seek(c, m, 0, 302, said, NULL)));
    told[300] = 'b';
    assert_false(grammar_is_dead(constraint_seek(c, m, 0, 302, said, NULL)));
    assert_false(grammar_is_dead(constraint_seek(c, m, 0, 0, said, NULL)));
    assert_false(grammar_is_dead(constraint_seek(c, m, 0, 600, said, NULL)));
    assert_true(grammar_is_dead(constraint_seek(c, m, 0, 601, said, NULL)));
    mem_free(c);
    buf_close(&code);
    masks_close(m);
    vocab_close(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_trees), cmocka_unit_test(test_wrong_code),
        cmocka_unit_test(test_hostile_code), cmocka_unit_test(test_many_positions),
        cmocka_unit_test(test_masks),        cmocka_unit_test(test_seek_back),
        cmocka_unit_test(test_dear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
