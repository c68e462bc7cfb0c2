#include "common/text/grammar_chars.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void grammar_chars_add(struct grammar_chars *c, uint32_t low, uint32_t high)
{
    if (low > high) return;
    if (c->n == GRAMMAR_RANGES_MAX)
        c->full = true;
    else
        c->r[c->n++] = (struct grammar_range){low, high};
}

static int by_low(const void *a, const void *b)
{
    const struct grammar_range *x = a, *y = b;
    return x->low < y->low ? -1 : x->low > y->low;
}

void grammar_chars_sort(struct grammar_chars *c)
{
    uint32_t n = 0;
    qsort(c->r, c->n, sizeof c->r[0], by_low);
    for (uint32_t i = 0; i < c->n; i++) {
        if (n && c->r[i].low <= c->r[n - 1].high + 1) {
            if (c->r[i].high > c->r[n - 1].high) c->r[n - 1].high = c->r[i].high;
        } else {
            c->r[n++] = c->r[i];
        }
    }
    c->n = n;
}

void grammar_chars_negate(struct grammar_chars *c)
{
    struct grammar_chars others = {.full = c->full};
    uint32_t from = 0;
    grammar_chars_sort(c);
    for (uint32_t i = 0; i < c->n; i++) {
        if (c->r[i].low > from) grammar_chars_add(&others, from, c->r[i].low - 1);
        from = c->r[i].high + 1;
    }
    grammar_chars_add(&others, from, GRAMMAR_CODE_POINT_MAX);
    *c = others;
}

gnode grammar_chars_plain(struct grammar_tree *t, struct grammar_chars *c)
{
    return grammar_class(t, c->r, c->n);
}

static bool has(const struct grammar_chars *c, uint32_t x)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (x >= c->r[i].low && x <= c->r[i].high) return true;
    return false;
}

static gnode escape_of(struct grammar_tree *t, uint32_t c)
{
    static const char names[] = "\b\f\n\r\t\"\\", letters[] = "bfnrt\"\\";
    char text[8] = {'\\'};
    const char *name = memchr(names, (int)c, sizeof names - 1);
    if (name)
        text[1] = letters[name - names];
    else
        (void)snprintf(text, sizeof text, "\\u%04x", c);
    return grammar_text(t, text, name ? 2 : 6);
}

gnode grammar_chars_json(struct grammar_tree *t, struct grammar_chars *c)
{
    static const struct grammar_range raw[] = {
        {0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, GRAMMAR_CODE_POINT_MAX}};
    struct grammar_chars plain = {.n = 0};
    gnode escaped = GRAMMAR_NONE;
    for (uint32_t i = 0; i < c->n; i++)
        for (int k = 0; k < 3; k++) {
            uint32_t low = c->r[i].low > raw[k].low ? c->r[i].low : raw[k].low;
            uint32_t high = c->r[i].high < raw[k].high ? c->r[i].high : raw[k].high;
            grammar_chars_add(&plain, low, high);
        }
    for (uint32_t x = 0; x <= '\\'; x++)
        if ((x < 0x20 || x == '"' || x == '\\') && has(c, x))
            escaped = grammar_alt(t, escape_of(t, x), escaped);
    return grammar_alt(t, grammar_chars_plain(t, &plain), escaped);
}

static gnode text(struct grammar_tree *t, const char *s)
{
    return grammar_text(t, s, strlen(s));
}

/* One of the characters of s, which are ASCII. */
static gnode one_of(struct grammar_tree *t, const char *s)
{
    struct grammar_chars c = {.n = 0};
    for (; *s; s++) grammar_chars_add(&c, (uint8_t)*s, (uint8_t)*s);
    grammar_chars_sort(&c);
    return grammar_chars_plain(t, &c);
}

gnode grammar_chars_any_json(struct grammar_tree *t)
{
    static const struct grammar_range raw[] = {
        {0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, GRAMMAR_CODE_POINT_MAX}};
    static const char hex[] = "0123456789abcdefABCDEF";
    gnode h = one_of(t, hex), hh = grammar_seq(t, h, h);
    /* No surrogates: one alone is no character. */
    gnode high = grammar_alt(t, grammar_seq(t, one_of(t, "0123456789abcefABCEF"), h),
                             grammar_seq(t, one_of(t, "dD"), one_of(t, "01234567")));
    gnode u = grammar_seq(t, text(t, "u"), grammar_seq(t, high, hh));
    gnode escape = grammar_seq(t, text(t, "\\"), grammar_alt(t, one_of(t, "\"\\/bfnrt"), u));
    return grammar_alt(t, grammar_class(t, raw, 3), escape);
}

bool grammar_hex(const char *s, size_t bytes, size_t n, uint32_t *ret)
{
    *ret = 0;
    if (bytes < n) return false;
    for (size_t i = 0; i < n; i++) {
        char b = s[i];
        uint32_t d = b >= '0' && b <= '9'   ? (uint32_t)(b - '0')
                     : b >= 'a' && b <= 'f' ? (uint32_t)(b - 'a') + 10
                     : b >= 'A' && b <= 'F' ? (uint32_t)(b - 'A') + 10
                                            : 16;
        if (d == 16) return false;
        *ret = *ret << 4 | d;
    }
    return true;
}
