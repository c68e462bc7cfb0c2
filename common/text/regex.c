#include "common/text/regex.h"

#include "common/base/utf8.h"
#include "common/text/grammar_chars.h"

#include <string.h>

#define NESTING_MAX 50u
#define ITEMS_MAX 256u /* of a sequence or of alternatives */
#define REPEAT_MAX 1000u

/* A part of a pattern: its node, and how many characters it has. */
struct part {
    gnode node;
    uint32_t min, max;
    /* Of a repetition: what is repeated, and how often. */
    bool repeats;
    gnode body;
    uint32_t body_min, body_max, low, high;
};

struct reader {
    struct grammar_tree *t;
    const char *s;
    size_t n, at;
    gnode any;
    uint32_t min, max, nesting;
    struct errmsg *em;
    int rc;
};

static void fail(struct reader *r, int rc, const char *what)
{
    if (r->rc == 0) r->rc = err_set(r->em, rc, "pattern, byte %zu: %s", r->at, what);
}

static void unsupported(struct reader *r, const char *what)
{
    if (r->rc == 0)
        r->rc =
            err_set(r->em, ERR_UNSUPPORTED, "pattern, byte %zu: %s is not supported", r->at, what);
}

static bool more(const struct reader *r)
{
    return r->rc == 0 && r->at < r->n;
}

static bool next_is(const struct reader *r, const char *text)
{
    size_t n = strlen(text);
    return n <= r->n - r->at && memcmp(r->s + r->at, text, n) == 0;
}

static bool take(struct reader *r, const char *text)
{
    bool is = r->rc == 0 && next_is(r, text);
    if (is) r->at += strlen(text);
    return is;
}

static uint32_t add_max(uint32_t a, uint32_t b)
{
    return a > REGEX_NO_MAX - b ? REGEX_NO_MAX : a + b;
}

static uint32_t times(uint32_t a, uint32_t b)
{
    uint64_t x = (uint64_t)a * b;
    return x > REGEX_NO_MAX ? REGEX_NO_MAX : (uint32_t)x;
}

/* ---- characters ---- */

static uint32_t character(struct reader *r)
{
    int32_t c = 0;
    size_t n = more(r) ? utf8_char(r->s + r->at, r->n - r->at, &c) : 0;
    if (n == 0) fail(r, ERR_FORMAT, "a character is missing");
    r->at += n;
    return (uint32_t)c;
}

/* What of other characters than ASCII's \s, \d, \w and their like are differs between dialects:
 * without them all agree. In a class that is negated, all that may be one are added. */
static void add_doubtful(struct grammar_chars *c, char name)
{
    static const struct grammar_range spaces[] = {
        {0x1c, 0x1f},     {0x85, 0x85},     {0xa0, 0xa0},     {0x1680, 0x1680},
        {0x180e, 0x180e}, {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f},
        {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
    if (name == 's')
        for (size_t i = 0; i < sizeof spaces / sizeof spaces[0]; i++)
            grammar_chars_add(c, spaces[i].low, spaces[i].high);
    else
        grammar_chars_add(c, 0x80, GRAMMAR_CODE_POINT_MAX);
    if (name == 'S') grammar_chars_add(c, 0x1c, 0x1f);
}

/* \d and its like. */
static bool add_named(struct grammar_chars *c, char name, bool negated)
{
    if (negated && name && strchr("dDwWsS", name)) add_doubtful(c, name);
    switch (name) {
    case 'd': grammar_chars_add(c, '0', '9'); return true;
    case 'D':
        grammar_chars_add(c, 0, '0' - 1);
        grammar_chars_add(c, '9' + 1, 0x7f);
        return true;
    case 'w':
        grammar_chars_add(c, '0', '9');
        grammar_chars_add(c, 'A', 'Z');
        grammar_chars_add(c, '_', '_');
        grammar_chars_add(c, 'a', 'z');
        return true;
    case 'W':
        grammar_chars_add(c, 0, '0' - 1);
        grammar_chars_add(c, '9' + 1, 'A' - 1);
        grammar_chars_add(c, 'Z' + 1, '_' - 1);
        grammar_chars_add(c, '`', '`');
        grammar_chars_add(c, 'z' + 1, 0x7f);
        return true;
    case 's':
        grammar_chars_add(c, '\t', '\r');
        grammar_chars_add(c, ' ', ' ');
        return true;
    case 'S':
        grammar_chars_add(c, 0, '\t' - 1);
        grammar_chars_add(c, '\r' + 1, 0x1b); /* 0x1c to 0x1f are white space to some */
        grammar_chars_add(c, ' ' + 1, 0x7f);
        return true;
    default: return false;
    }
}

/* What stands behind a reverse solidus, if it is one character. */
static uint32_t escape(struct reader *r)
{
    static const char names[] = "fnrtv", values[] = "\f\n\r\t\v";
    uint32_t c = character(r);
    const char *name = c && c < 0x80 ? strchr(names, (int)c) : NULL;
    if (r->rc < 0) return 0;
    if (name) return (uint8_t)values[name - names];
    if (c == 'x' || c == 'u') {
        size_t digits = c == 'x' ? 2 : 4;
        if (!grammar_hex(r->s + r->at, r->n - r->at, digits, &c) || (c >= 0xd800 && c <= 0xdfff))
            unsupported(r, "this escape");
        else
            r->at += digits;
        return c;
    }
    if (c >= '1' && c <= '9') unsupported(r, "a reference to a group");
    if (c == 'b' || c == 'B') unsupported(r, "\\b");
    if (c == 'p' || c == 'P') unsupported(r, "\\p");
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '0') unsupported(r, "this escape");
    return c;
}

/* An item of a class; false: it is several characters, which are added. */
static bool class_item(struct reader *r, struct grammar_chars *c, bool negated, uint32_t *ret)
{
    *ret = character(r);
    if (*ret != '\\') return true;
    if (more(r) && add_named(c, r->s[r->at], negated)) {
        r->at++;
        return false;
    }
    if (take(r, "b"))
        *ret = '\b';
    else
        *ret = escape(r);
    return true;
}

static gnode class_node(struct reader *r, struct grammar_chars *c)
{
    if (c->full) fail(r, ERR_LIMIT, "a class of too many ranges");
    grammar_chars_sort(c);
    return grammar_chars_json(r->t, c);
}

/* Behind its bracket. */
static gnode class(struct reader *r)
{
    struct grammar_chars c = {.n = 0};
    bool other = take(r, "^"), ended = false;
    while (more(r) && !(ended = take(r, "]"))) {
        uint32_t low, high;
        if (!class_item(r, &c, other, &low)) continue;
        high = low;
        if (next_is(r, "-") && !next_is(r, "-]")) {
            r->at++;
            if (!class_item(r, &c, other, &high) || high < low)
                fail(r, ERR_FORMAT, "a wrong range");
        }
        grammar_chars_add(&c, low, high);
    }
    if (!ended) fail(r, ERR_FORMAT, "a class that does not end");
    if (other) grammar_chars_negate(&c);
    return class_node(r, &c);
}

static gnode dot(struct reader *r)
{
    struct grammar_chars c = {.n = 0};
    grammar_chars_add(&c, '\n', '\n');
    grammar_chars_add(&c, '\r', '\r');
    grammar_chars_add(&c, 0x2028, 0x2029);
    grammar_chars_negate(&c);
    return class_node(r, &c);
}

/* ---- structure ---- */

static struct part alternatives(struct reader *r, bool top);

static struct part group(struct reader *r)
{
    if (next_is(r, "?=") || next_is(r, "?!") || next_is(r, "?<=") || next_is(r, "?<!"))
        unsupported(r, "looking around");
    if (take(r, "?P<") || take(r, "?<"))
        while (more(r) && !take(r, ">")) r->at++;
    else if (!take(r, "?:") && next_is(r, "?"))
        unsupported(r, "this group");
    struct part p = alternatives(r, false);
    if (!take(r, ")")) fail(r, ERR_FORMAT, "a group that does not end");
    p.repeats = false;
    return p;
}

static struct part atom(struct reader *r)
{
    struct part p = {.min = 1, .max = 1};
    struct grammar_chars c = {.n = 0};
    if (take(r, "(")) return group(r);
    if (take(r, "[")) {
        p.node = class(r);
    } else if (take(r, ".")) {
        p.node = dot(r);
    } else if (next_is(r, "^") || next_is(r, "$")) {
        unsupported(r, "'^' or '$' elsewhere than at an end");
    } else if (next_is(r, "*") || next_is(r, "+") || next_is(r, "?") || next_is(r, "{")) {
        fail(r, ERR_FORMAT, "nothing to repeat");
    } else if (take(r, "\\")) {
        if (more(r) && add_named(&c, r->s[r->at], false)) {
            r->at++;
        } else {
            uint32_t x = escape(r);
            grammar_chars_add(&c, x, x);
        }
        p.node = class_node(r, &c);
    } else {
        uint32_t x = character(r);
        grammar_chars_add(&c, x, x);
        p.node = class_node(r, &c);
    }
    return p;
}

static bool number(struct reader *r, uint32_t *ret)
{
    size_t from = r->at;
    for (*ret = 0; more(r) && r->s[r->at] >= '0' && r->s[r->at] <= '9'; r->at++)
        *ret = *ret > REPEAT_MAX ? *ret : *ret * 10 + (uint32_t)(r->s[r->at] - '0');
    if (*ret > REPEAT_MAX) fail(r, ERR_LIMIT, "more than 1000 times");
    return r->at > from;
}

/* {m}, {m,} and {m,n}. */
static void bounds(struct reader *r, uint32_t *low, uint32_t *high)
{
    if (!number(r, low)) fail(r, ERR_FORMAT, "'{' without a number");
    *high = *low;
    if (take(r, ",") && !number(r, high)) *high = REGEX_NO_MAX;
    if (!take(r, "}") || *high < *low) fail(r, ERR_FORMAT, "wrong bounds of a repetition");
}

static void set_times(struct reader *r, struct part *p)
{
    p->node =
        grammar_repeat(r->t, p->body, p->low, p->high == REGEX_NO_MAX ? GRAMMAR_NO_MAX : p->high);
    p->min = times(p->body_min, p->low);
    p->max = p->high == REGEX_NO_MAX && p->body_max ? REGEX_NO_MAX : times(p->body_max, p->high);
}

static struct part repetition(struct reader *r)
{
    struct part p = atom(r);
    uint32_t low, high = REGEX_NO_MAX;
    if (take(r, "*")) {
        low = 0;
    } else if (take(r, "+")) {
        low = 1;
    } else if (take(r, "?")) {
        low = 0;
        high = 1;
    } else if (take(r, "{")) {
        bounds(r, &low, &high);
    } else {
        return p;
    }
    (void)take(r, "?"); /* which of several matches is taken does not matter */
    if (more(r) && strchr("*+{", r->s[r->at])) fail(r, ERR_FORMAT, "a repetition of a repetition");
    p = (struct part){.repeats = true,
                      .body = p.node,
                      .body_min = p.min,
                      .body_max = p.max,
                      .low = low,
                      .high = high};
    set_times(r, &p);
    return p;
}

/* A repetition of something of a fixed length is told how often, so that the whole has min to max
 * characters. `others`: how many all else has. */
static void fit(struct reader *r, struct part *p, uint32_t others)
{
    uint32_t k = p->body_min, low = r->min > others ? (r->min - others + k - 1) / k : 0;
    uint32_t high = r->max == REGEX_NO_MAX ? REGEX_NO_MAX
                    : r->max < others      ? 0
                                           : (r->max - others) / k;
    if (low > p->low) p->low = low;
    if (high < p->high) p->high = high;
    bool none = p->low > p->high || r->max < others;
    if (none || p->low > GRAMMAR_COUNT_MAX ||
        (p->high != REGEX_NO_MAX && p->high > GRAMMAR_COUNT_MAX))
        fail(r, ERR_UNSUPPORTED,
             "a pattern whose texts cannot have the lengths of minLength and maxLength");
    else
        set_times(r, p);
}

/* The parts of a whole alternative, so that their lengths fit. */
static void fit_all(struct reader *r, struct part *parts, size_t n)
{
    uint32_t min = 0, max = 0;
    struct part *varies = NULL;
    size_t n_vary = 0;
    for (size_t i = 0; i < n; i++) {
        min = add_max(min, parts[i].min);
        max = add_max(max, parts[i].max);
        if (parts[i].min == parts[i].max) continue;
        varies = &parts[i];
        n_vary++;
    }
    if (min >= r->min && max <= r->max) return;
    if (n_vary == 1 && varies->repeats && varies->body_min == varies->body_max && varies->body_min)
        fit(r, varies, min - varies->min);
    else
        fail(r, ERR_UNSUPPORTED, "minLength and maxLength with such a pattern are not supported");
}

static struct part sequence(struct reader *r, bool top)
{
    struct part parts[ITEMS_MAX + 2], whole = {.node = GRAMMAR_NONE};
    gnode nodes[ITEMS_MAX + 2];
    size_t n = 0;
    const struct part anything = {.node = grammar_repeat(r->t, r->any, 0, GRAMMAR_NO_MAX),
                                  .max = REGEX_NO_MAX,
                                  .repeats = true,
                                  .body = r->any,
                                  .body_min = 1,
                                  .body_max = 1,
                                  .high = REGEX_NO_MAX};
    bool ends = false;
    if (top && !take(r, "^")) parts[n++] = anything;
    while (more(r) && !next_is(r, "|") && (top || !next_is(r, ")")) && !ends) {
        if (n == ITEMS_MAX) fail(r, ERR_LIMIT, "more than 256 parts");
        ends = top && next_is(r, "$") && (r->at + 1 == r->n || r->s[r->at + 1] == '|');
        if (ends)
            r->at++;
        else if (top && next_is(r, ")"))
            fail(r, ERR_FORMAT, "')' without its '('");
        else if (n < ITEMS_MAX)
            parts[n++] = repetition(r);
    }
    if (top && !ends) parts[n++] = anything;
    if (top && r->rc == 0) fit_all(r, parts, n);
    for (size_t i = 0; i < n; i++) {
        nodes[i] = parts[i].node;
        whole.min = add_max(whole.min, parts[i].min);
        whole.max = add_max(whole.max, parts[i].max);
    }
    whole.node = grammar_seqs(r->t, nodes, n);
    return whole;
}

static struct part alternatives(struct reader *r, bool top)
{
    if (r->nesting++ == NESTING_MAX) fail(r, ERR_LIMIT, "groups nest deeper than 50");
    struct part all = {.node = GRAMMAR_NONE};
    if (r->rc == 0) all = sequence(r, top);
    while (take(r, "|")) {
        struct part p = sequence(r, top);
        all.node = grammar_alt(r->t, p.node, all.node);
        if (p.min < all.min) all.min = p.min;
        if (p.max > all.max) all.max = p.max;
    }
    r->nesting--;
    return all;
}

int regex_build(struct grammar_tree *t, const char *pattern, size_t bytes, gnode any, uint32_t min,
                uint32_t max, gnode *ret, struct errmsg *em)
{
    struct reader r = {
        .t = t, .s = pattern, .n = bytes, .any = any, .min = min, .max = max, .em = em};
    struct part all = alternatives(&r, true);
    if (r.rc == 0) *ret = all.node;
    return r.rc;
}
