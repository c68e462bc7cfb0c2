/*   root ::= "a" item+ | [b-d]{2,5} ( . "x" )?   # a comment
 *   item ::= "\"" [^"\\] "\""
 *
 * A rule ends where the next one begins, at a line's end outside of parentheses. */
#include "common/text/gbnf.h"

#include "common/base/hash.h"
#include "common/base/utf8.h"
#include "common/text/grammar_chars.h"

#include <inttypes.h>
#include <string.h>

#define NESTING_MAX 50u
#define TEXT_MAX 4096u /* bytes of one quoted text */

struct reader {
    struct grammar_tree *t;
    const char *s;
    size_t n, at;
    uint32_t line, nesting;
    struct smap names; /* to rules */
    uint8_t *defined;  /* by rule */
    struct errmsg *em;
    int rc;
};

static void fail(struct reader *r, int rc, const char *what)
{
    if (r->rc == 0) r->rc = err_set(r->em, rc, "grammar, line %" PRIu32 ": %s", r->line, what);
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

/* White space and comments; line ends only where `lines`. */
static void skip(struct reader *r, bool lines)
{
    while (more(r)) {
        char b = r->s[r->at];
        if (b == '#') {
            while (r->at < r->n && r->s[r->at] != '\n') r->at++;
        } else if (b == ' ' || b == '\t' || b == '\r' || (b == '\n' && lines)) {
            r->line += b == '\n';
            r->at++;
        } else {
            return;
        }
    }
}

static bool is_name(char b)
{
    return (b >= 'a' && b <= 'z') || (b >= 'A' && b <= 'Z') || (b >= '0' && b <= '9') || b == '-' ||
           b == '_';
}

/* The rule of a name, which is made where it is new. */
static uint32_t name(struct reader *r)
{
    size_t from = r->at;
    while (r->at < r->n && is_name(r->s[r->at])) r->at++;
    if (r->at == from) fail(r, ERR_FORMAT, "the name of a rule is missing");
    const uint32_t *known = smap_get(&r->names, r->s + from, r->at - from);
    if (known || r->rc < 0) return known ? *known : 0;
    uint32_t rule = grammar_rule(r->t);
    if (grammar_is_full(r->t))
        fail(r, ERR_LIMIT, "too many rules or parts");
    else
        (void)smap_put(&r->names, r->s + from, r->at - from, rule);
    return rule;
}

/* A character of a text or a class, perhaps escaped. */
static uint32_t character(struct reader *r)
{
    static const char names[] = "nrt\\\"[]-^", values[] = "\n\r\t\\\"[]-^";
    int32_t whole = 0;
    uint32_t c = 0;
    if (take(r, "\\") && more(r)) {
        char b = r->s[r->at++];
        size_t digits = b == 'x' ? 2 : b == 'u' ? 4 : b == 'U' ? 8 : 0;
        const char *known = b ? strchr(names, b) : NULL;
        if (known) return (uint8_t)values[known - names];
        if (!digits || !grammar_hex(r->s + r->at, r->n - r->at, digits, &c) ||
            c > GRAMMAR_CODE_POINT_MAX || (c >= 0xd800 && c <= 0xdfff))
            fail(r, ERR_FORMAT, "an unknown escape");
        else
            r->at += digits;
        return c;
    }
    size_t n = more(r) ? utf8_char(r->s + r->at, r->n - r->at, &whole) : 0;
    if (n == 0 || whole == '\n') fail(r, ERR_FORMAT, "a text or class that does not end");
    r->at += n;
    return (uint32_t)whole;
}

/* Behind its quotation mark. */
static gnode text(struct reader *r)
{
    gnode items[TEXT_MAX];
    size_t n = 0;
    while (more(r) && !next_is(r, "\"") && n < TEXT_MAX) {
        uint32_t c = character(r);
        const struct grammar_range one = {c, c};
        items[n++] = grammar_class(r->t, &one, 1);
    }
    if (!take(r, "\""))
        fail(r, ERR_FORMAT, "a text that does not end, or of more than 4096 characters");
    return grammar_seqs(r->t, items, n);
}

/* Behind its bracket. */
static gnode class(struct reader *r)
{
    struct grammar_chars c = {.n = 0};
    bool other = take(r, "^"), ended = false;
    while (more(r) && !(ended = take(r, "]"))) {
        uint32_t low = character(r), high = low;
        if (next_is(r, "-") && !next_is(r, "-]")) {
            r->at++;
            high = character(r);
        }
        if (high < low) fail(r, ERR_FORMAT, "a wrong range");
        grammar_chars_add(&c, low, high);
    }
    if (!ended) fail(r, ERR_FORMAT, "a class that does not end");
    if (other) grammar_chars_negate(&c);
    if (c.full) fail(r, ERR_LIMIT, "a class of too many ranges");
    grammar_chars_sort(&c);
    return grammar_chars_plain(r->t, &c);
}

static gnode alternatives(struct reader *r, bool lines);

static gnode item(struct reader *r)
{
    if (take(r, "\"")) return text(r);
    if (take(r, "[")) return class(r);
    if (take(r, ".")) {
        static const struct grammar_range any = {0, GRAMMAR_CODE_POINT_MAX};
        return grammar_class(r->t, &any, 1);
    }
    if (take(r, "(")) {
        gnode a = alternatives(r, true);
        skip(r, true);
        if (!take(r, ")")) fail(r, ERR_FORMAT, "a group that does not end");
        return a;
    }
    if (next_is(r, "<") || next_is(r, "!<")) fail(r, ERR_UNSUPPORTED, "tokens are not supported");
    return grammar_ref(r->t, name(r));
}

static bool number(struct reader *r, uint32_t *ret)
{
    size_t from = r->at;
    for (*ret = 0; more(r) && r->s[r->at] >= '0' && r->s[r->at] <= '9'; r->at++)
        *ret = *ret > GRAMMAR_COUNT_MAX ? *ret : *ret * 10 + (uint32_t)(r->s[r->at] - '0');
    if (*ret > GRAMMAR_COUNT_MAX) fail(r, ERR_LIMIT, "more than 65000 times");
    return r->at > from;
}

/* {m}, {m,}, {,n} and {m,n}, behind the brace. */
static void bounds(struct reader *r, uint32_t *low, uint32_t *high)
{
    skip(r, false);
    bool some = number(r, low);
    skip(r, false);
    *high = *low;
    if (take(r, ",")) {
        skip(r, false);
        if (!number(r, high)) *high = GRAMMAR_NO_MAX;
        some = true;
        skip(r, false);
    }
    if (!take(r, "}") || !some || *high < *low) fail(r, ERR_FORMAT, "wrong bounds of a repetition");
}

static gnode repetitions(struct reader *r)
{
    gnode a = item(r);
    uint32_t low, high;
    for (bool again = true; again && r->rc == 0;) {
        low = 0;
        high = GRAMMAR_NO_MAX;
        skip(r, false);
        if (take(r, "{"))
            bounds(r, &low, &high);
        else if (take(r, "+"))
            low = 1;
        else if (take(r, "?"))
            high = 1;
        else
            again = take(r, "*");
        if (again) a = grammar_repeat(r->t, a, low, high);
    }
    return a;
}

/* Whether a rule begins here: a name and ::=. */
static bool rule_begins(const struct reader *r)
{
    size_t at = r->at;
    while (at < r->n && is_name(r->s[at])) at++;
    if (at == r->at) return false;
    while (at < r->n && (r->s[at] == ' ' || r->s[at] == '\t')) at++;
    return r->n - at >= 3 && memcmp(r->s + at, "::=", 3) == 0;
}

/* Items side by side are built from the left, and then bent to the right, as lists are compiled. */
static gnode sequence(struct reader *r, bool lines)
{
    gnode items[1024];
    size_t n = 0;
    for (;;) {
        skip(r, lines);
        if (!more(r) || strchr("|)\n", r->s[r->at]) || (lines && rule_begins(r))) break;
        if (n == sizeof items / sizeof items[0]) {
            fail(r, ERR_LIMIT, "more than 1024 items side by side");
            break;
        }
        items[n++] = repetitions(r);
    }
    return grammar_seqs(r->t, items, n);
}

/* lines: line ends are white space, as within parentheses. */
static gnode alternatives(struct reader *r, bool lines)
{
    gnode all = GRAMMAR_NONE;
    if (r->nesting++ == NESTING_MAX) fail(r, ERR_LIMIT, "groups nest deeper than 50");
    for (bool again = true; again && r->rc == 0;) {
        skip(r, lines);
        all = grammar_alt(r->t, sequence(r, lines), all);
        /* Alternatives may go on in the next line. */
        size_t at = r->at;
        uint32_t line = r->line;
        skip(r, true);
        again = take(r, "|");
        if (again) skip(r, true);
        if (!again && !lines) {
            r->at = at;
            r->line = line;
        }
    }
    r->nesting--;
    return all;
}

static void rule(struct reader *r)
{
    uint32_t which = name(r);
    skip(r, false);
    if (!take(r, "::=")) fail(r, ERR_FORMAT, "'::=' is missing");
    skip(r, true);
    gnode is = alternatives(r, false);
    skip(r, false);
    if (more(r) && r->s[r->at] != '\n') fail(r, ERR_FORMAT, "something that is no part of a rule");
    if (r->rc < 0) return;
    if (r->defined[which]) fail(r, ERR_FORMAT, "a rule that is defined already");
    r->defined[which] = 1;
    grammar_define(r->t, which, is);
}

int gbnf_build(struct grammar_tree *t, const char *s, size_t bytes, gnode *ret, struct errmsg *em)
{
    uint8_t defined[GRAMMAR_RULES_MAX + 1] = {0};
    struct reader r = {.t = t, .s = s, .n = bytes, .line = 1, .defined = defined, .em = em};
    for (skip(&r, true); more(&r); skip(&r, true)) rule(&r);
    const uint32_t *root = smap_get(&r.names, "root", 4);
    if (r.rc == 0 && (!root || !defined[*root])) fail(&r, ERR_FORMAT, "there is no rule 'root'");
    for (uint32_t i = 0; r.rc == 0 && i < GRAMMAR_RULES_MAX && i < r.names.used; i++)
        if (!defined[i]) fail(&r, ERR_FORMAT, "a rule is used that is not defined");
    if (r.rc == 0) *ret = grammar_ref(t, *root);
    smap_close(&r.names);
    return r.rc;
}
