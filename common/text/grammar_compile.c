/* A tree to its automaton: what each node may begin with and how much stack it needs (analyse),
 * what cannot work is refused (check), then the root and all rules that it calls become code, one
 * behind the other.
 *
 * Alternatives that begin with different bytes are told apart by PEEK, so that an answer mostly is
 * at one position; others are tried side by side (SPLIT). Where rules call themselves, ROOM keeps
 * whoever nests from a depth at which the answer could no longer end: each position can always be
 * completed within the stack. */
#include "common/text/grammar_tree.h"

#include "common/base/mem.h"
#include "common/text/grammar_tree_state.h"

#include <string.h>

#define NEVER 0xffffu /* the need of what has no answer */
#define PASSES_MAX                                                                                 \
    512u /* of an analysis; rules that are built before those that use them need few */
#define VISITS_MAX (4u << 20) /* of nodes, of all passes */
#define GROWS_PASSES 16u  /* what nests deeper with each of so many is taken to nest without end */
#define BRANCHES_MAX 512u /* of one choice that PEEK decides */
#define NESTING_MAX 2000u /* of nodes */

struct site {
    uint32_t at, rule;
};

struct compiler {
    struct grammar_tree *t;
    struct errmsg *em;
    int rc;
    uint32_t nesting;
    bool room; /* ROOMs are needed */
    uint8_t code[GRAMMAR_BYTES_MAX];
    uint32_t n_code;
    uint8_t sets[255][GRAMMAR_SET_BYTES];
    uint32_t n_sets;
    struct site *sites; /* n_sites: targets that are rules */
    uint32_t n_sites, sites_cap;
};

static int refuse(struct compiler *c, int rc, const char *why)
{
    if (c->rc == 0) c->rc = err_set(c->em, rc, "%s", why);
    return c->rc;
}

/* ---- analysis ---- */

static uint16_t larger(uint16_t a, uint16_t b)
{
    return a > b ? a : b;
}

static uint16_t plus_one(uint16_t a)
{
    return a == NEVER ? a : (uint16_t)(a + 1);
}

static void first_of_bytes(struct grammar_node *x, uint32_t low, uint32_t high)
{
    for (uint32_t b = low; b <= high; b++) x->first[b / 64] |= (uint64_t)1 << b % 64;
}

static void join_first(struct grammar_node *x, const struct grammar_node *from)
{
    for (int i = 0; i < 4; i++) x->first[i] |= from->first[i];
}

static void of_repeat(struct grammar_node *x, const struct grammar_node *a)
{
    uint16_t count = x->max > 1 && !(x->max == GRAMMAR_NO_MAX && x->min < 2);
    x->nullable = x->min == 0 || a->nullable;
    x->need = x->min == 0 ? 0 : a->need == NEVER ? NEVER : (uint16_t)(a->need + count);
    x->deepest = a->need == NEVER ? 0 : (uint16_t)(a->deepest + count);
    join_first(x, a);
}

static void of_seq(struct grammar_node *x, const struct grammar_node *a,
                   const struct grammar_node *b)
{
    x->nullable = a->nullable && b->nullable;
    x->need = larger(a->need, b->need);
    x->deepest = x->need == NEVER ? 0 : larger(a->deepest, b->deepest);
    join_first(x, a);
    if (a->nullable) join_first(x, b);
}

static void of_alt(struct grammar_node *x, const struct grammar_node *a,
                   const struct grammar_node *b)
{
    x->nullable = a->nullable || b->nullable;
    x->need = a->need < b->need ? a->need : b->need;
    x->deepest = larger(a->deepest, b->deepest);
    if (a->need != NEVER) join_first(x, a);
    if (b->need != NEVER) join_first(x, b);
}

static struct grammar_node of_node(const struct grammar_tree *t, gnode i)
{
    struct grammar_node x = t->nodes[i];
    const struct grammar_node *a = x.kind >= NODE_SEQ && x.kind != NODE_REF ? &t->nodes[x.a] : NULL;
    switch (x.kind) {
    case NODE_NONE: break;
    case NODE_TEXT:
        x.need = 0;
        x.nullable = x.b == 0;
        if (x.b) first_of_bytes(&x, (uint8_t)t->bytes.data[x.a], (uint8_t)t->bytes.data[x.a]);
        break;
    case NODE_RANGE:
        x.need = 0;
        first_of_bytes(&x, x.a, x.b);
        break;
    case NODE_SET:
        x.need = 0;
        x.first[0] = x.ascii[0];
        x.first[1] = x.ascii[1];
        break;
    case NODE_SEQ: of_seq(&x, a, &t->nodes[x.b]); break;
    case NODE_ALT: of_alt(&x, a, &t->nodes[x.b]); break;
    case NODE_REPEAT: of_repeat(&x, a); break;
    case NODE_REF:
        a = &t->nodes[t->rules[x.a].is];
        x.nullable = a->nullable;
        x.need = plus_one(a->need);
        x.deepest = plus_one(a->deepest);
        join_first(&x, a);
        break;
    }
    if (x.need > GRAMMAR_DEPTH_MAX) x.need = NEVER;
    if (x.deepest > GRAMMAR_DEPTH_MAX) x.deepest = GRAMMAR_DEPTH_MAX + 1;
    return x;
}

static int analyse(struct compiler *c)
{
    struct grammar_tree *t = c->t;
    for (gnode i = 0; i < t->n; i++) t->nodes[i].need = NEVER;
    for (uint32_t pass = 0; pass < PASSES_MAX && (uint64_t)pass * t->n < VISITS_MAX; pass++) {
        bool changed = false;
        for (gnode i = 1; i < t->n; i++) {
            struct grammar_node x = of_node(t, i), *old = &t->nodes[i];
            if (pass >= GROWS_PASSES && x.deepest > old->deepest) x.deepest = GRAMMAR_DEPTH_MAX + 1;
            changed |= x.need != old->need || x.deepest != old->deepest ||
                       x.nullable != old->nullable ||
                       memcmp(x.first, old->first, sizeof x.first) != 0;
            *old = x;
        }
        if (!changed) return 0;
    }
    return refuse(c, ERR_LIMIT, "its rules depend on each other too deeply");
}

/* ---- what cannot work ---- */

/* Walks what the node may begin with; a rule that is met again without a byte between would call
 * itself for ever. */
static void look_left(struct compiler *c, gnode i)
{
    if (c->nesting++ == NESTING_MAX) (void)refuse(c, ERR_LIMIT, "it nests too deeply");
    while (c->rc == 0) {
        const struct grammar_node *x = &c->t->nodes[i];
        if (x->kind == NODE_REPEAT) {
            i = x->a;
        } else if (x->kind == NODE_ALT || x->kind == NODE_SEQ) {
            look_left(c, x->a);
            if (x->kind == NODE_SEQ && !c->t->nodes[x->a].nullable) break;
            i = x->b;
        } else if (x->kind == NODE_REF) {
            struct grammar_rule *r = &c->t->rules[x->a];
            if (r->walk == RULE_BEGUN) (void)refuse(c, ERR_RANGE, "a rule begins with itself");
            if (r->walk != RULE_NEW) break;
            r->walk = RULE_BEGUN;
            look_left(c, r->is);
            r->walk = RULE_DONE;
            break;
        } else {
            break;
        }
    }
    c->nesting--;
}

static int check(struct compiler *c, gnode root)
{
    struct grammar_tree *t = c->t;
    if (t->nodes[root].need == NEVER)
        return refuse(c, ERR_RANGE, "no answer is possible, or each nests too deeply");
    for (uint32_t i = 0; i < t->n_rules; i++) t->rules[i].walk = RULE_NEW;
    look_left(c, root);
    for (uint32_t i = 0; i < t->n_rules && c->rc == 0; i++) {
        if (t->rules[i].walk != RULE_NEW) continue;
        t->rules[i].walk = RULE_BEGUN;
        look_left(c, t->rules[i].is);
        t->rules[i].walk = RULE_DONE;
    }
    for (gnode i = 1; i < t->n; i++) {
        const struct grammar_node *x = &t->nodes[i];
        if (x->kind == NODE_REPEAT && x->max > 1 && t->nodes[x->a].nullable)
            return refuse(c, ERR_RANGE, "something that may be empty is repeated");
    }
    return c->rc;
}

/* ---- code ---- */

static void put(struct compiler *c, const uint8_t *bytes, uint32_t n)
{
    if (n > GRAMMAR_BYTES_MAX - c->n_code) (void)refuse(c, ERR_LIMIT, "it is too large");
    if (c->rc < 0) return;
    memcpy(c->code + c->n_code, bytes, n);
    c->n_code += n;
}

static void put_op(struct compiler *c, enum grammar_op op)
{
    uint8_t b = (uint8_t)op;
    put(c, &b, 1);
}

static void put_u16(struct compiler *c, uint32_t x)
{
    uint8_t b[2] = {(uint8_t)x, (uint8_t)(x >> 8)};
    put(c, b, 2);
}

/* The 2 bytes at `at` become the present end of the code. */
static void land(struct compiler *c, uint32_t at)
{
    if (c->rc < 0) return;
    c->code[at] = (uint8_t)c->n_code;
    c->code[at + 1] = (uint8_t)(c->n_code >> 8);
}

/* An operation with a target that is not known yet; returns where it is to be put. */
static uint32_t put_jump(struct compiler *c, enum grammar_op op)
{
    put_op(c, op);
    put_u16(c, 0);
    return c->n_code - 2;
}

static void put_byte(struct compiler *c, uint8_t b)
{
    if (b < 0x20 || b >= 0x7f) put_op(c, GRAMMAR_BYTE);
    put(c, &b, 1);
}

static void put_range(struct compiler *c, uint32_t low, uint32_t high)
{
    uint8_t b[3] = {GRAMMAR_RANGE, (uint8_t)low, (uint8_t)high};
    if (low == high)
        put_byte(c, (uint8_t)low);
    else
        put(c, b, 3);
}

static bool has(const uint64_t *set, uint32_t b)
{
    return set[b / 64] >> b % 64 & 1;
}

/* The next range of the bytes in a set, from `from` on. */
static bool next_range(const uint64_t *set, uint32_t from, uint32_t *ret_low, uint32_t *ret_high)
{
    while (from < 256 && !has(set, from)) from++;
    if (from == 256) return false;
    *ret_low = *ret_high = from;
    while (*ret_high < 255 && has(set, *ret_high + 1)) ++*ret_high;
    return true;
}

static void put_set(struct compiler *c, const struct grammar_node *x)
{
    uint64_t set[4] = {x->ascii[0], x->ascii[1], 0, 0};
    uint32_t low, high, more_low, more_high, i = 0;
    if (!next_range(set, 0, &low, &high)) return;
    if (!next_range(set, high + 1, &more_low, &more_high)) {
        put_range(c, low, high);
        return;
    }
    uint8_t bits[GRAMMAR_SET_BYTES] = {0};
    for (uint32_t b = 0; b < 128; b++)
        if (has(set, b)) bits[b / 8] = (uint8_t)(bits[b / 8] | 1u << b % 8);
    while (i < c->n_sets && memcmp(c->sets[i], bits, sizeof bits) != 0) i++;
    if (i == sizeof c->sets / sizeof c->sets[0]) {
        (void)refuse(c, ERR_LIMIT, "it has too many different sets of characters");
        return;
    }
    if (i == c->n_sets) memcpy(c->sets[c->n_sets++], bits, sizeof bits);
    uint8_t op[2] = {GRAMMAR_SET, (uint8_t)i};
    put(c, op, 2);
}

static void generate(struct compiler *c, gnode i, bool tail);

/* The branches of a choice that have answers; more than `most`: most + 1. */
static uint32_t branches_of(const struct compiler *c, gnode i, gnode *ret, uint32_t most)
{
    uint32_t n = 0;
    const struct grammar_node *nodes = c->t->nodes;
    for (;; i = nodes[i].b) {
        gnode branch = nodes[i].kind == NODE_ALT ? nodes[i].a : i;
        if (nodes[branch].need != NEVER) {
            if (n < most) ret[n] = branch;
            if (n++ == most) return n;
        }
        if (nodes[i].kind != NODE_ALT) return n;
    }
}

/* How many ranges tell the branches apart by their first bytes; 0: these do not. */
static uint32_t count_ranges(const struct compiler *c, const gnode *branches, uint32_t n)
{
    uint64_t all[4] = {0};
    uint32_t ranges = 0, low, high;
    for (uint32_t i = 0; i < n; i++) {
        const struct grammar_node *x = &c->t->nodes[branches[i]];
        if (x->nullable) return 0;
        for (int k = 0; k < 4; k++) {
            if (all[k] & x->first[k]) return 0;
            all[k] |= x->first[k];
        }
        for (uint32_t from = 0; next_range(x->first, from, &low, &high); from = high + 1) ranges++;
    }
    return ranges;
}

/* A branch that needs more stack than another may be begun only where there is room for it. */
static void put_room(struct compiler *c, uint16_t need, uint16_t least)
{
    uint8_t op[2] = {GRAMMAR_ROOM, (uint8_t)need};
    if (c->room && need > least) put(c, op, 2);
}

/* Leaves a choice: out of the rule, or to the choice's end, which is linked into a list that begins
 * at *link. */
static void leave(struct compiler *c, bool tail, uint32_t *link)
{
    if (tail) {
        put_op(c, GRAMMAR_RET);
        return;
    }
    put_op(c, GRAMMAR_JUMP);
    put_u16(c, *link);
    *link = c->n_code - 2;
}

static void land_all(struct compiler *c, uint32_t link)
{
    while (link && c->rc == 0) {
        uint32_t next = c->code[link] | (uint32_t)c->code[link + 1] << 8;
        land(c, link);
        link = next;
    }
}

static void generate_peek(struct compiler *c, const gnode *branches, uint32_t n, uint32_t ranges,
                          uint16_t least, bool tail)
{
    uint8_t op[2] = {GRAMMAR_PEEK, (uint8_t)ranges};
    uint32_t at = c->n_code + 2, low, high, link = 0;
    static const uint8_t none[4];
    put(c, op, 2);
    for (uint32_t i = 0; i < ranges; i++) put(c, none, 4);
    for (uint32_t i = 0; i < n && c->rc == 0; i++) {
        const struct grammar_node *x = &c->t->nodes[branches[i]];
        for (uint32_t from = 0; next_range(x->first, from, &low, &high); from = high + 1, at += 4) {
            c->code[at] = (uint8_t)low;
            c->code[at + 1] = (uint8_t)high;
            land(c, at + 2);
        }
        put_room(c, x->need, least);
        generate(c, branches[i], tail);
        if (i + 1 < n) leave(c, tail, &link);
    }
    land_all(c, link);
}

static void generate_alt(struct compiler *c, gnode i, bool tail)
{
    gnode *branches = mem_alloc((BRANCHES_MAX + 1) * sizeof *branches);
    uint16_t least = c->t->nodes[i].need;
    uint32_t n = branches_of(c, i, branches, BRANCHES_MAX), link = 0;
    uint32_t ranges = n > 1 && n <= BRANCHES_MAX ? count_ranges(c, branches, n) : 0;
    const struct grammar_node *nodes = c->t->nodes;
    if (ranges && ranges <= 255) {
        generate_peek(c, branches, n, ranges, least, tail);
        mem_free(branches);
        return;
    }
    mem_free(branches);
    for (uint32_t done = 0; c->rc == 0; i = nodes[i].b) {
        gnode branch = nodes[i].kind == NODE_ALT ? nodes[i].a : i;
        if (nodes[branch].need != NEVER) {
            bool last = nodes[i].kind != NODE_ALT || branches_of(c, nodes[i].b, NULL, 0) == 0;
            uint32_t next = last ? 0 : put_jump(c, GRAMMAR_SPLIT);
            put_room(c, nodes[branch].need, least);
            generate(c, branch, tail);
            done++;
            if (last) break;
            leave(c, tail, &link);
            land(c, next);
        }
        if (nodes[i].kind != NODE_ALT) break;
    }
    land_all(c, link);
}

static void generate_repeat(struct compiler *c, const struct grammar_node *x)
{
    uint32_t end = 0, begin = 0;
    uint16_t need = c->t->nodes[x->a].need;
    if (need == NEVER) return; /* none of it: min is 0, or nobody comes here */
    bool counts = x->max > 1 && !(x->max == GRAMMAR_NO_MAX && x->min < 2);
    bool star = !counts && x->max == GRAMMAR_NO_MAX;
    uint32_t top = c->n_code;
    if (x->min == 0) end = put_jump(c, GRAMMAR_SPLIT);
    if (x->min == 0) put_room(c, (uint16_t)(need + counts), 0);
    if (counts) begin = put_jump(c, GRAMMAR_BEGIN);
    if (x->min > 0) top = c->n_code;
    uint32_t body = c->n_code;
    generate(c, x->a, false);
    if (counts) {
        land(c, begin);
        put_op(c, GRAMMAR_LOOP);
        put_u16(c, body);
        put_u16(c, x->min);
        put_u16(c, x->max);
    } else if (star) {
        put_op(c, x->min == 0 ? GRAMMAR_JUMP : GRAMMAR_SPLIT);
        put_u16(c, top);
    }
    if (end) land(c, end);
}

static void generate_ref(struct compiler *c, uint32_t rule, bool tail)
{
    if (c->n_sites == c->sites_cap) {
        c->sites_cap = c->sites_cap ? 2 * c->sites_cap : 64;
        c->sites = mem_realloc(c->sites, c->sites_cap * sizeof *c->sites);
    }
    c->sites[c->n_sites++] = (struct site){put_jump(c, tail ? GRAMMAR_JUMP : GRAMMAR_CALL), rule};
    c->t->rules[rule].wanted = true;
}

/* tail: behind it comes the end of the rule. */
static void generate(struct compiler *c, gnode i, bool tail)
{
    if (c->nesting++ == NESTING_MAX) (void)refuse(c, ERR_LIMIT, "it nests too deeply");
    const struct grammar_node *x = &c->t->nodes[i];
    for (; x->kind == NODE_SEQ && c->rc == 0; x = &c->t->nodes[i]) {
        generate(c, x->a, false);
        i = x->b;
    }
    if (c->rc < 0) {
        c->nesting--;
        return;
    }
    switch (x->kind) {
    case NODE_TEXT:
        for (uint32_t k = 0; k < x->b; k++) put_byte(c, (uint8_t)c->t->bytes.data[x->a + k]);
        break;
    case NODE_RANGE: put_range(c, x->a, x->b); break;
    case NODE_SET: put_set(c, x); break;
    case NODE_ALT: generate_alt(c, i, tail); break;
    case NODE_REPEAT: generate_repeat(c, x); break;
    case NODE_REF: generate_ref(c, x->a, tail); break;
    case NODE_NONE:
    case NODE_SEQ: break;
    }
    c->nesting--;
}

static void generate_all(struct compiler *c, gnode root)
{
    struct grammar_tree *t = c->t;
    for (uint32_t i = 0; i < t->n_rules; i++) t->rules[i].wanted = t->rules[i].placed = false;
    generate(c, root, true);
    put_op(c, GRAMMAR_RET);
    for (bool more = true; more && c->rc == 0;) {
        more = false;
        for (uint32_t i = 0; i < t->n_rules && c->rc == 0; i++) {
            struct grammar_rule *r = &t->rules[i];
            if (!r->wanted || r->placed) continue;
            r->placed = more = true;
            r->at = c->n_code;
            generate(c, r->is, true);
            put_op(c, GRAMMAR_RET);
        }
    }
    for (uint32_t i = 0; i < c->n_sites && c->rc == 0; i++) {
        uint32_t at = t->rules[c->sites[i].rule].at;
        c->code[c->sites[i].at] = (uint8_t)at;
        c->code[c->sites[i].at + 1] = (uint8_t)(at >> 8);
    }
}

int grammar_compile(struct grammar_tree *t, gnode root, struct buf *ret, struct errmsg *em)
{
    if (t->full) return err_set(em, ERR_LIMIT, "it has too many parts");
    struct compiler *c = mem_try_zeroed(1, sizeof *c);
    if (!c) return err_set(em, ERR_NOMEM, "no memory to compile it");
    c->t = t;
    c->em = em;
    int rc = analyse(c);
    if (rc == 0) rc = check(c, root);
    c->room = t->nodes[root].deepest > GRAMMAR_DEPTH_MAX;
    if (rc == 0) generate_all(c, root);
    size_t bytes = GRAMMAR_HEAD_BYTES + c->n_sets * GRAMMAR_SET_BYTES + c->n_code;
    if (c->rc == 0 && bytes > GRAMMAR_BYTES_MAX)
        (void)err_set(em, c->rc = ERR_LIMIT, "it has %zu bytes, the limit is %u", bytes,
                      GRAMMAR_BYTES_MAX);
    rc = c->rc;
    if (rc == 0) {
        const struct grammar_rule *any = t->character ? &t->rules[t->character - 1] : NULL;
        uint32_t character = any && any->placed ? any->at + 1 : 0;
        uint8_t head[GRAMMAR_HEAD_BYTES] = {'F',
                                            'G',
                                            1,
                                            (uint8_t)c->n_sets,
                                            (uint8_t)c->n_code,
                                            (uint8_t)(c->n_code >> 8),
                                            (uint8_t)character,
                                            (uint8_t)(character >> 8)};
        (void)buf_append(ret, head, sizeof head);
        (void)buf_append(ret, c->sets, c->n_sets * GRAMMAR_SET_BYTES);
        (void)buf_append(ret, c->code, c->n_code);
    }
    mem_free(c->sites);
    mem_free(c);
    return rc;
}
