#include "common/text/grammar_tree.h"

#include "common/base/mem.h"
#include "common/text/grammar_tree_state.h"

#include <string.h>

/* Node 0 is GRAMMAR_NONE. */
struct grammar_tree *grammar_tree_open(void)
{
    struct grammar_tree *t = mem_zalloc(sizeof *t);
    t->cap = 256;
    t->nodes = mem_zalloc(t->cap * sizeof *t->nodes);
    t->n = 1;
    return t;
}

void grammar_tree_close(struct grammar_tree *t)
{
    if (!t) return;
    mem_free(t->nodes);
    mem_free(t->rules);
    buf_close(&t->bytes);
    mem_free(t);
}

bool grammar_is_full(const struct grammar_tree *t)
{
    return t->full;
}

static gnode add(struct grammar_tree *t, struct grammar_node x)
{
    if (t->n == GRAMMAR_NODES_MAX) t->full = true;
    if (t->full) return GRAMMAR_NONE;
    if (t->n == t->cap) {
        struct grammar_node *more = mem_try_zeroed(2 * (size_t)t->cap, sizeof *more);
        if (!more) {
            t->full = true;
            return GRAMMAR_NONE;
        }
        memcpy(more, t->nodes, t->n * sizeof *more);
        mem_free(t->nodes);
        t->nodes = more;
        t->cap *= 2;
    }
    t->nodes[t->n] = x;
    return t->n++;
}

gnode grammar_text(struct grammar_tree *t, const char *text, size_t bytes)
{
    t->bytes.max = (size_t)GRAMMAR_NODES_MAX * 16;
    struct grammar_node x = {.kind = NODE_TEXT, .a = (uint32_t)t->bytes.len, .b = (uint32_t)bytes};
    if (bytes && buf_append(&t->bytes, text, bytes) < 0) {
        t->full = true;
        return GRAMMAR_NONE;
    }
    return add(t, x);
}

gnode grammar_seq(struct grammar_tree *t, gnode a, gnode b)
{
    return add(t, (struct grammar_node){.kind = NODE_SEQ, .a = a, .b = b});
}

gnode grammar_alt(struct grammar_tree *t, gnode a, gnode b)
{
    if (a == GRAMMAR_NONE) return b;
    if (b == GRAMMAR_NONE) return a;
    return add(t, (struct grammar_node){.kind = NODE_ALT, .a = a, .b = b});
}

gnode grammar_seqs(struct grammar_tree *t, const gnode *items, size_t n)
{
    if (n == 0) return grammar_text(t, "", 0);
    gnode all = items[n - 1];
    while (--n) all = grammar_seq(t, items[n - 1], all);
    return all;
}

gnode grammar_alts(struct grammar_tree *t, const gnode *items, size_t n)
{
    gnode all = GRAMMAR_NONE;
    while (n--) all = grammar_alt(t, items[n], all);
    return all;
}

gnode grammar_repeat(struct grammar_tree *t, gnode a, uint32_t min, uint32_t max)
{
    if (max == 0) return grammar_text(t, "", 0);
    if (min == 1 && max == 1) return a;
    return add(t, (struct grammar_node){
                      .kind = NODE_REPEAT, .a = a, .min = (uint16_t)min, .max = (uint16_t)max});
}

uint32_t grammar_rule(struct grammar_tree *t)
{
    if (t->n_rules == GRAMMAR_RULES_MAX) t->full = true;
    if (t->full) return 0;
    if (t->n_rules == t->rules_cap) {
        t->rules_cap = t->rules_cap ? 2 * t->rules_cap : 64;
        t->rules = mem_realloc(t->rules, t->rules_cap * sizeof *t->rules);
    }
    t->rules[t->n_rules] = (struct grammar_rule){.is = GRAMMAR_NONE};
    return t->n_rules++;
}

void grammar_define(struct grammar_tree *t, uint32_t rule, gnode is)
{
    if (rule < t->n_rules) t->rules[rule].is = is;
}

void grammar_mark_character(struct grammar_tree *t, uint32_t rule)
{
    t->character = rule + 1;
}

gnode grammar_ref(struct grammar_tree *t, uint32_t rule)
{
    return add(t, (struct grammar_node){.kind = NODE_REF, .a = rule});
}

gnode grammar_bytes(struct grammar_tree *t, uint8_t low, uint8_t high)
{
    return add(t, (struct grammar_node){.kind = NODE_RANGE, .a = low, .b = high});
}

/* ---- characters ---- */

/* Bytes low[i]..high[i], one behind the other. */
static gnode byte_ranges(struct grammar_tree *t, const uint8_t *low, const uint8_t *high, size_t n)
{
    gnode items[4];
    for (size_t i = 0; i < n; i++) items[i] = grammar_bytes(t, low[i], high[i]);
    return grammar_seqs(t, items, n);
}

static size_t encode(uint32_t c, uint8_t *to)
{
    if (c < 0x80) {
        to[0] = (uint8_t)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n; i-- > 1; c >>= 6) to[i] = (uint8_t)(0x80 | (c & 0x3f));
    to[0] = (uint8_t)(0xf00 >> n | c);
    return n;
}

/* Splits [low, high], all of one length, until its bytes vary independently of each other. */
static gnode split_range(struct grammar_tree *t, uint32_t low, uint32_t high, gnode rest)
{
    uint8_t a[4], b[4];
    size_t n = encode(low, a);
    (void)encode(high, b);
    for (size_t i = 1; i < n; i++) {
        uint32_t m = (1u << 6 * i) - 1; /* of the last i bytes */
        if ((low & ~m) == (high & ~m)) continue;
        if (low & m) return split_range(t, low, low | m, split_range(t, (low | m) + 1, high, rest));
        if ((high & m) != m)
            return split_range(t, low, (high & ~m) - 1, split_range(t, high & ~m, high, rest));
    }
    return grammar_alt(t, byte_ranges(t, a, b, n), rest);
}

/* Alternatives come in descending order of their code points, which nobody minds. */
gnode grammar_class(struct grammar_tree *t, const struct grammar_range *ranges, size_t n)
{
    static const struct grammar_range lengths[] = {
        {0, 0x7f}, {0x80, 0x7ff}, {0x800, 0xd7ff}, {0xe000, 0xffff}, {0x10000, 0x10ffff}};
    gnode all = GRAMMAR_NONE;
    struct grammar_node ascii = {.kind = NODE_SET};
    bool any = false;
    for (size_t i = n; i-- > 0;)
        for (size_t k = 5; k-- > 0;) {
            uint32_t low = ranges[i].low, high = ranges[i].high;
            if (low < lengths[k].low) low = lengths[k].low;
            if (high > lengths[k].high) high = lengths[k].high;
            if (low > high) continue;
            any |= k == 0;
            for (uint32_t c = low; k == 0 && c <= high; c++)
                ascii.ascii[c / 64] |= (uint64_t)1 << c % 64;
            if (k > 0) all = split_range(t, low, high, all);
        }
    return any ? grammar_alt(t, add(t, ascii), all) : all;
}
