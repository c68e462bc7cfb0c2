#include "coordinator/draft/accept.h"

static bool is_end(int32_t token, const int32_t *ends, uint32_t n_ends)
{
    for (uint32_t i = 0; i < n_ends; i++)
        if (ends[i] == token) return true;
    return false;
}

struct accept accept_run(const int32_t *draft, uint32_t n_draft, const int32_t *choices,
                         uint32_t n_choices, const int32_t *ends, uint32_t n_ends)
{
    struct accept a = {0};
    while (a.emitted < n_choices && a.emitted <= n_draft && !a.ended) {
        uint32_t i = a.emitted++;
        a.ended = is_end(choices[i], ends, n_ends);
        if (i == n_draft || draft[i] != choices[i]) break;
        a.accepted++;
    }
    return a;
}

void accept_note(struct accept_stats *s, uint32_t n_draft, const struct accept *a)
{
    s->runs++;
    s->drafted += n_draft;
    s->accepted += a->accepted;
    s->emitted += a->emitted;
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
