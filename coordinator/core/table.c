/* A request's page tables. There are whole pages of all its positions. Where layers are windowed,
 * there are windowed ones of those positions that its rows to come may see, and of no others;
 * README.md of this folder, "Windowed layers keep only their window", says why that is safe. */
#include "coordinator/core/core_state.h"

#include "common/base/check.h"

bool table__grow(struct request *r)
{
    struct replica *rep = r->replica;
    if (!pages_take(rep->pages, &r->pages[r->n_pages])) return false;
    if (rep->windowed && !windowed_take(rep->windowed, &r->windowed[r->n_pages])) {
        pages_drop(rep->pages, r->pages[r->n_pages]);
        return false;
    }
    r->n_pages++;
    return true;
}

void table__shrink(struct request *r)
{
    struct replica *rep = r->replica;
    CHECK(r->n_pages > 0);
    r->n_pages--;
    if (r->n_ahead)
        r->n_ahead--;
    else if (rep->windowed && r->n_pages >= r->first_windowed)
        windowed_drop(rep->windowed, r->windowed[r->n_pages]);
    pages_drop(rep->pages, r->pages[r->n_pages]);
}

bool table__reserve(const struct core *c, struct request *r)
{
    struct replica *rep = r->replica;
    uint32_t n = (r->n_tokens + c->cfg.page - 1) / c->cfg.page, both = n;
    if (rep->windowed) both = room_window(c->cfg.attn_window, c->cfg.page, c->cfg.rows_max);
    while (r->n_pages < n && r->n_pages < both)
        if (!table__grow(r)) return false;
    for (; r->n_pages < n; r->n_pages++, r->n_ahead++)
        if (!pages_take(rep->pages, &r->pages[r->n_pages])) return false;
    return true;
}

/* The first page that a row sees in a windowed layer whose position is the first of page n. */
static uint32_t first_seen(const struct core *c, uint32_t n)
{
    uint32_t pos = n * c->cfg.page, behind = c->cfg.attn_window - 1;
    return pos > behind ? (pos - behind) / c->cfg.page : 0;
}

/* From the page's beginning on that the right positions have come to, not from the last of them:
 * when the request ends, a prompt may go on from there. Where pages were reserved, those that it
 * does not need any more are the ones of its rows to come. */
void table__slide(const struct core *c, struct request *r)
{
    struct replica *rep = r->replica;
    if (!rep->windowed) return;
    CHECK(r->put_in != rep->step_build);
    uint32_t first = first_seen(c, r->n_right / c->cfg.page);
    for (; r->first_windowed < first; r->first_windowed++) {
        uint32_t page = r->windowed[r->first_windowed];
        if (r->n_ahead)
            r->windowed[r->n_pages - r->n_ahead--] = page;
        else
            windowed_drop(rep->windowed, page);
    }
}

/* ---- prefixes ---- */

/* Whether a whole page that was found has its windowed page, which may be read in Step `step`. */
static enum pages_found find_attached(const struct replica *rep, uint32_t whole, uint64_t step)
{
    uint64_t written;
    if (windowed_of(rep->windowed, whole, &written) == WINDOWED_NONE) return PAGES_NONE;
    return written < step ? PAGES_HIT : PAGES_SOON;
}

/* The walk has come from page `start` to where it is; the tables hold the windowed pages that are
 * seen from there, and no others. */
static void hold_window(const struct core *c, struct request *r, uint32_t start)
{
    struct windowed *w = r->replica->windowed;
    uint32_t first = first_seen(c, r->n_walked);
    uint64_t step;
    for (uint32_t i = r->first_windowed; i < start && i < first; i++)
        windowed_drop(w, r->windowed[i]);
    for (uint32_t i = start > first ? start : first; i < r->n_walked; i++) {
        r->windowed[i] = windowed_of(w, r->pages[i], &step);
        windowed_hold(w, r->windowed[i]);
    }
    r->first_windowed = first;
}

uint32_t table__walk(const struct core *c, struct request *r, uint64_t step,
                     enum pages_found *ret_found)
{
    struct replica *rep = r->replica;
    uint32_t page = c->cfg.page, start = r->n_walked, good = start;
    uint32_t since = r->first_windowed; /* all windowed pages from there on may be read */
    struct prefix walk = r->walk;       /* behind the good pages */
    enum pages_found found = PAGES_HIT, missing = PAGES_NONE;
    CHECK(r->n_pages == start);
    while ((r->n_walked + 1) * page < r->n_tokens) {
        found = pages_find(rep->pages, &r->walk, r->tokens + r->n_walked * page, step,
                           &r->pages[r->n_walked]);
        if (found != PAGES_HIT) break;
        enum pages_found attached =
            rep->windowed ? find_attached(rep, r->pages[r->n_walked], step) : PAGES_HIT;
        if (attached != PAGES_HIT && r->n_walked == good) missing = attached;
        r->n_walked++;
        if (attached != PAGES_HIT) since = r->n_walked;
        if (rep->windowed && first_seen(c, r->n_walked) < since) continue;
        good = r->n_walked;
        walk = r->walk;
    }
    *ret_found = good == r->n_walked ? found : missing;
    while (r->n_walked > good) pages_drop(rep->pages, r->pages[--r->n_walked]);
    r->walk = walk;
    r->n_pages = good;
    if (rep->windowed && good > start) hold_window(c, r, start);
    return good - start;
}

uint32_t table__usable(const struct core *c, const struct replica *rep, struct index_found found,
                       uint32_t n_held)
{
    uint32_t usable = n_held;
    uint64_t step;
    if (!rep->windowed) return n_held;
    while (found.depth > first_seen(c, usable)) { /* what is before that is not seen from there */
        uint32_t i = found.depth - 1, whole = index_back(&found, rep->id);
        if (i >= n_held || whole == INDEX_NONE) continue;
        if (windowed_of(rep->windowed, whole, &step) == WINDOWED_NONE) usable = i;
    }
    return usable;
}

static void enter_windowed(struct replica *rep, struct request *r, uint64_t step)
{
    uint32_t i = r->n_walked, mine = r->windowed[i];
    CHECK(i >= r->first_windowed && rep->n_windowed_twice < rep->n_windowed);
    r->windowed[i] = windowed_attach(rep->windowed, r->pages[i], mine, step);
    if (r->windowed[i] != mine) rep->windowed_twice[rep->n_windowed_twice++] = mine;
}

void table__enter(const struct core *c, struct request *r, uint64_t step)
{
    struct replica *rep = r->replica;
    uint32_t page = c->cfg.page;
    CHECK(r->n_right <= r->n_issued && r->n_right <= r->n_tokens);
    if (r->embed) return; /* a text that is embedded once pushes out nothing that others need */
    while ((r->n_walked + 1) * page <= r->n_right) {
        CHECK(r->n_walked < r->n_pages);
        uint32_t mine = r->pages[r->n_walked];
        uint32_t kept =
            pages_enter(rep->pages, &r->walk, r->tokens + r->n_walked * page, step, mine);
        CHECK(rep->n_twice < rep->n_pages);
        if (kept != mine) rep->twice[rep->n_twice++] = mine;
        r->pages[r->n_walked] = kept;
        if (rep->windowed && c->cfg.share) enter_windowed(rep, r, step);
        r->n_walked++;
    }
}

void table__drop_twice(struct replica *rep)
{
    while (rep->n_twice) pages_drop(rep->pages, rep->twice[--rep->n_twice]);
    while (rep->n_windowed_twice)
        windowed_drop(rep->windowed, rep->windowed_twice[--rep->n_windowed_twice]);
}
