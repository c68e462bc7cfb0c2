/* Numbers of a schema. A range is a range of digits: numbers with as many digits as its end are
 * compared digit by digit, from the left, and those with fewer or more are in it or not as a whole.
 *
 * Numbers that need not be whole are counted in millionths, so that a range's ends have 6 digits
 * behind the point; where both a number's and an end's digits so far are alike, the next one
 * decides. */
#include "common/text/schema_state.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS 16u  /* before the point, at most */
#define FRACTION 6u /* behind it, where there is a range */
#define MILLION 1000000
#define LIMIT 1e12 /* ends beyond it are as good as none for numbers that need not be whole */

static gnode digit(struct schema *s, char low, char high)
{
    const struct grammar_range r = {(uint8_t)low, (uint8_t)high};
    return low > high ? GRAMMAR_NONE : grammar_class(s->t, &r, 1);
}

static gnode digits(struct schema *s, uint32_t min, uint32_t max)
{
    return grammar_repeat(s->t, digit(s, '0', '9'), min, max);
}

/* 0, or up to so many digits of which the first is none. */
static gnode natural(struct schema *s, uint32_t most)
{
    return grammar_alt(s->t, schema__text(s, "0"),
                       grammar_seq(s->t, digit(s, '1', '9'), digits(s, 0, most - 1)));
}

gnode schema__any_number(struct schema *s, bool whole)
{
    static const struct grammar_range e[] = {{'E', 'E'}, {'e', 'e'}};
    static const struct grammar_range sign[] = {{'+', '+'}, {'-', '-'}};
    gnode n =
        grammar_seq(s->t, grammar_repeat(s->t, schema__text(s, "-"), 0, 1), natural(s, DIGITS));
    if (whole) return n;
    gnode fraction = grammar_seq(s->t, schema__text(s, "."), digits(s, 1, 15));
    const gnode exponent[] = {grammar_class(s->t, e, 2),
                              grammar_repeat(s->t, grammar_class(s->t, sign, 2), 0, 1),
                              digits(s, 1, 2)};
    const gnode all[] = {n, grammar_repeat(s->t, fraction, 0, 1),
                         grammar_repeat(s->t, grammar_seqs(s->t, exponent, 3), 0, 1)};
    return grammar_seqs(s->t, all, 3);
}

/* A range of numbers of at least 0, as texts of equally many digits: `whole` before the point, then
 * `behind` of them. */
struct span {
    struct schema *s;
    char low[40], high[40];
    uint32_t whole, behind;
};

/* From digit i on: `from`, `to`: the digits so far are those of that end. */
static gnode rest(const struct span *x, uint32_t i, bool from, bool to)
{
    struct grammar_tree *t = x->s->t;
    uint32_t n = x->whole + x->behind;
    gnode none = grammar_text(t, "", 0);
    if (i == n) return none;
    if (!from && !to) {
        gnode tail = digits(x->s, i < x->whole ? x->whole - i : 0, i < x->whole ? x->whole - i : 0);
        if (i < x->whole && !x->behind) return tail;
        if (i <= x->whole) {
            gnode point = grammar_seq(t, schema__text(x->s, "."), digits(x->s, 1, x->behind));
            point = grammar_repeat(t, point, 0, 1);
            return i == x->whole ? point : grammar_seq(t, tail, point);
        }
        return digits(x->s, 0, n - i);
    }
    char low = from ? x->low[i] : '0', high = to ? x->high[i] : '9';
    gnode all = GRAMMAR_NONE;
    if (from && to && low == high) {
        const char one[2] = {low, 0};
        all = grammar_seq(t, schema__text(x->s, one), rest(x, i + 1, true, true));
    } else {
        char first = low, last = high;
        if (from) {
            const char one[2] = {first++, 0};
            all = grammar_alt(
                t, grammar_seq(t, schema__text(x->s, one), rest(x, i + 1, true, false)), all);
        }
        if (to) {
            const char one[2] = {last--, 0};
            all = grammar_alt(
                t, grammar_seq(t, schema__text(x->s, one), rest(x, i + 1, false, true)), all);
        }
        if (first <= last)
            all = grammar_alt(
                t, grammar_seq(t, digit(x->s, first, last), rest(x, i + 1, false, false)), all);
    }
    if (i < x->whole) return all;
    /* Behind the point the number may end, as if zeros followed. */
    bool zeros = !from || strspn(x->low + i, "0") == n - i;
    if (i == x->whole) all = grammar_seq(t, schema__text(x->s, "."), all);
    return zeros ? grammar_alt(t, all, none) : all;
}

/* All numbers with first to last digits before the point. */
static gnode all_of_digits(struct schema *s, uint32_t first, uint32_t last, uint32_t behind)
{
    gnode point = grammar_seq(s->t, schema__text(s, "."), digits(s, 1, behind));
    gnode begin = digit(s, first == 1 && last == 1 ? '0' : '1', '9');
    gnode whole = grammar_seq(s->t, begin, digits(s, first - 1, last - 1));
    return behind ? grammar_seq(s->t, whole, grammar_repeat(s->t, point, 0, 1)) : whole;
}

/* low to high, of at least 0: numbers of as many digits as an end are a part of their own; all of
 * those between are one. */
static gnode positive(struct schema *s, uint64_t low, uint64_t high, uint32_t behind)
{
    gnode all = GRAMMAR_NONE;
    uint64_t unit = behind ? MILLION : 1, begin = 0, end = 10 * unit - 1;
    uint32_t first = 0, last = 0; /* numbers of digits of which all are in it, above 1 */
    for (uint32_t n = 1; n <= DIGITS && begin <= high; n++) {
        uint64_t a = low > begin ? low : begin, b = high < end ? high : end;
        if (a == begin && b == end && n > 1) {
            first = first ? first : n;
            last = n;
        } else if (a == begin && b == end) {
            all = all_of_digits(s, 1, 1, behind);
        } else if (a <= b) {
            struct span x = {.s = s, .whole = n, .behind = behind};
            (void)snprintf(x.low, sizeof x.low, "%0*llu", (int)(n + behind), (unsigned long long)a);
            (void)snprintf(x.high, sizeof x.high, "%0*llu", (int)(n + behind),
                           (unsigned long long)b);
            all = grammar_alt(s->t, rest(&x, 0, true, true), all);
        }
        begin = end + 1;
        if (end > UINT64_MAX / 10 - 10) break;
        end = (end + 1) * 10 - 1;
    }
    return first ? grammar_alt(s->t, all_of_digits(s, first, last, behind), all) : all;
}

static gnode range(struct schema *s, int64_t low, int64_t high, uint32_t behind)
{
    if (low > high) return GRAMMAR_NONE;
    gnode all = GRAMMAR_NONE;
    if (high >= 0) all = positive(s, low > 0 ? (uint64_t)low : 0, (uint64_t)high, behind);
    if (low < 0) {
        uint64_t least = high < 0 ? (uint64_t)-high : 1;
        gnode below = positive(s, least, (uint64_t)-low, behind);
        all = grammar_alt(s->t, grammar_seq(s->t, schema__text(s, "-"), below), all);
    }
    return all;
}

/* ---- the ends of a range ---- */

struct ends {
    bool has_low, has_high, open_low, open_high;
    double low, high;
};

static void read_end(struct schema *s, const struct json *j, const char *key, double *at, bool *has,
                     bool *open, bool is_open, int side)
{
    const struct json *v = json_get(j, key);
    double x;
    if (!v) return;
    if (!json_as_real(v, &x)) {
        (void)schema__wrong(s, key, "a number");
        return;
    }
    bool tighter = !*has || (side > 0 ? x > *at : x < *at) || (x == *at && is_open);
    if (!tighter) return;
    *has = true;
    *at = x;
    *open = is_open;
}

/* Whether v millionths, or v itself, is at least x (side 1) or at most x (side -1). */
static bool inside(int64_t v, uint32_t behind, double x, bool open, int side)
{
    char text[48];
    double d;
    if (behind) {
        uint64_t a = v < 0 ? (uint64_t)-v : (uint64_t)v;
        (void)snprintf(text, sizeof text, "%s%llu.%06llu", v < 0 ? "-" : "",
                       (unsigned long long)(a / MILLION), (unsigned long long)(a % MILLION));
        d = strtod(text, NULL); /* as whoever checks it reads it */
    } else {
        d = (double)v;
    }
    return side > 0 ? (open ? d > x : d >= x) : (open ? d < x : d <= x);
}

/* The outermost number that is inside. */
static int64_t end_of(double x, bool open, uint32_t behind, int side)
{
    double scaled = behind ? x * MILLION : x;
    int64_t v = (int64_t)(side > 0 ? floor(scaled) - 1 : ceil(scaled) + 1);
    for (int i = 0; i < 4096 && !inside(v, behind, x, open, side); i++) v += side;
    return v;
}

gnode schema__number(struct schema *s, const struct json *j, bool whole)
{
    struct ends e = {0};
    uint32_t behind = whole ? 0 : FRACTION;
    double multiple, most = whole ? 9e15 : LIMIT;
    read_end(s, j, "minimum", &e.low, &e.has_low, &e.open_low, false, 1);
    read_end(s, j, "exclusiveMinimum", &e.low, &e.has_low, &e.open_low, true, 1);
    read_end(s, j, "maximum", &e.high, &e.has_high, &e.open_high, false, -1);
    read_end(s, j, "exclusiveMaximum", &e.high, &e.has_high, &e.open_high, true, -1);
    if (json_get(j, "multipleOf")) {
        if (!json_as_real(json_get(j, "multipleOf"), &multiple) || multiple != 1)
            return schema__unsupported(s, "multipleOf", "");
        whole = true;
        behind = 0;
    }
    if (s->rc < 0) return GRAMMAR_NONE;
    if (!e.has_low && !e.has_high) return schema__any_number(s, whole);
    if ((e.has_low && fabs(e.low) > most) || (e.has_high && fabs(e.high) > most))
        return schema__unsupported(s, e.has_low ? "minimum" : "maximum", "of this size");
    /* Where an end is missing, numbers have as many digits as others. */
    int64_t far = behind ? (int64_t)LIMIT * MILLION - 1 : (int64_t)9999999999999999;
    int64_t low = e.has_low ? end_of(e.low, e.open_low, behind, 1) : -far;
    int64_t high = e.has_high ? end_of(e.high, e.open_high, behind, -1) : far;
    return range(s, low, high, behind);
}
