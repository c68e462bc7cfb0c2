#include "common/text/detok.h"

#include "common/base/mem.h"
#include "common/base/utf8.h"

#include <stdint.h>
#include <string.h>

#define REPLACEMENT "\xef\xbf\xbd"

void detok_init(struct detok *d, const char *const *stops, size_t n_stops)
{
    *d = (struct detok){0};
    for (size_t i = 0; i < n_stops && d->n_stops < DETOK_STOPS_MAX; i++) {
        if (!stops[i][0]) continue;
        d->given[d->n_stops] = i;
        d->stops[d->n_stops++] = mem_strdup(stops[i]);
    }
}

void detok_close(struct detok *d)
{
    buf_close(&d->pending);
    buf_close(&d->text);
    buf_close(&d->held);
    for (size_t i = 0; i < d->n_stops; i++) mem_free(d->stops[i]);
    d->n_stops = 0;
}

/* The character at s[0..n) (n > 0). A NUL counts as broken: it would end the text for those who
 * read C strings. */
static enum utf8_kind character_at(const char *s, size_t n, size_t *ret_len)
{
    int32_t c;
    enum utf8_kind kind = utf8_decode(s, n, ret_len, &c);
    return kind == UTF8_WHOLE && c == 0 ? UTF8_BROKEN : kind;
}

/* Bytes at the end of s that a stop string could begin with. */
static size_t stop_prefix(const struct detok *d, const char *s, size_t n)
{
    size_t longest = 0;
    for (size_t i = 0; i < d->n_stops; i++) {
        size_t len = strlen(d->stops[i]);
        for (size_t k = len - 1 < n ? len - 1 : n; k > longest; k--)
            if (memcmp(s + n - k, d->stops[i], k) == 0) longest = k;
    }
    return longest;
}

/* Characters pass through `held` into `text`. */
static void pass(struct detok *d, const char *s, size_t n)
{
    if (d->stopped || n == 0) return;
    if (d->n_stops == 0) {
        (void)buf_append(&d->text, s, n);
        return;
    }
    (void)buf_append(&d->held, s, n);
    size_t first = SIZE_MAX;
    for (size_t i = 0; i < d->n_stops; i++) {
        const char *at = memmem(d->held.data, d->held.len, d->stops[i], strlen(d->stops[i]));
        if (!at || (size_t)(at - d->held.data) >= first) continue;
        first = (size_t)(at - d->held.data);
        d->stop = d->given[i];
    }
    d->stopped = first != SIZE_MAX;
    size_t show = d->stopped ? first : d->held.len - stop_prefix(d, d->held.data, d->held.len);
    (void)buf_append(&d->text, d->held.data, show);
    buf_drop(&d->held, d->stopped ? d->held.len : show);
}

void detok_push(struct detok *d, const char *bytes, size_t n)
{
    (void)buf_append(&d->pending, bytes, n);
    const char *s = d->pending.data;
    size_t at = 0, start = 0, len;
    while (at < d->pending.len) {
        enum utf8_kind kind = character_at(s + at, d->pending.len - at, &len);
        if (kind == UTF8_UNFINISHED) break;
        if (kind == UTF8_BROKEN) {
            pass(d, s + start, at - start);
            pass(d, REPLACEMENT, 3);
            start = at + len;
        }
        at += len;
    }
    pass(d, s + start, at - start);
    buf_drop(&d->pending, at);
}

void detok_finish(struct detok *d)
{
    if (d->pending.len) pass(d, REPLACEMENT, 3);
    buf_drop(&d->pending, d->pending.len);
    if (!d->stopped && d->held.len) (void)buf_append(&d->text, d->held.data, d->held.len);
    buf_drop(&d->held, d->held.len);
}
