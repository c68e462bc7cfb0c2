#include "coordinator/draft/accept.h"

#include <stdbool.h>

static bool is_end(int32_t token, const int32_t *ends, uint32_t n_ends)
{
    for (uint32_t i = 0; i < n_ends; i++)
        if (ends[i] == token) return true;
    return false;
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* The token of row i was chosen behind the row before it, so that row `emitted` has the last token
 * that is emitted; of the rows up to that one, the live ones were guessed right. */
struct accept accept_run(const struct accept_rows *x)
{
    struct accept a = {0};
    uint32_t most = least(x->n_choices, x->room), n_known = x->n_rows - x->n_draft;
    while (a.emitted < most)
        if (is_end(x->choices[a.emitted++], x->ends, x->n_ends)) break;
    uint32_t right = least(x->n_live, a.emitted + 1);
    a.accepted = right > n_known ? right - n_known : 0;
    return a;
}

void accept_note(struct accept_stats *s, uint32_t n_rows, uint32_t n_draft, struct accept a)
{
    s->runs++;
    s->drafted += n_draft;
    s->accepted += a.accepted;
    s->emitted += a.emitted;
    s->wasted += n_rows - a.emitted;
}

void accept_add(struct accept_stats *s, const struct accept_stats *more)
{
    s->runs += more->runs;
    s->drafted += more->drafted;
    s->accepted += more->accepted;
    s->emitted += more->emitted;
    s->early += more->early;
    s->wasted += more->wasted;
    s->on_ns += more->on_ns;
    s->on_tokens += more->on_tokens;
    s->off_ns += more->off_ns;
    s->off_tokens += more->off_tokens;
}

double accept_rate(const struct accept_stats *s)
{
    return s->drafted ? (double)s->accepted / (double)s->drafted : 0.0;
}

double accept_speedup(const struct accept_stats *s)
{
    if (!s->on_tokens || !s->off_tokens || !s->on_ns || !s->off_ns) return 0.0;
    return ((double)s->off_ns / (double)s->off_tokens) / ((double)s->on_ns / (double)s->on_tokens);
}
