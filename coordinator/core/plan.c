/* The cut of layers for workers in a given order is dynamic programming: the slowest stage of the
 * first s workers over the first l layers, for all s and l. O(stages x layers x layers).
 *
 * All that is tried is: the order by name, and each other worker as the last, since only the last
 * stage has the output head; and for the KV pool's size a few numbers of pages, which decide how
 * many layers a worker has room for. */
#include "coordinator/core/plan.h"

#include "common/base/check.h"
#include "common/base/mem.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NOBODY UINT32_MAX
#define KEEP_FACTOR 1.25  /* of the best cut's slowest stage: some loaded slices are worth it */
#define POOL_FACTOR 1.1   /* a larger KV pool is worth it */
#define ORDER_FACTOR 0.97 /* another order than by name must be so much faster */
#define EVEN_FACTOR 1.05  /* an even cut is worth it: figures are no more exact */
#define SPEED_STEP 1.25   /* workers are equally fast within steps of this factor */

/* What one call works with. */
struct planning {
    const struct plan_ask *ask;
    const struct plan_worker *order[LIMIT_STAGES]; /* of the stages */
    double mean_byte_ns, mean_head_ns;             /* of workers that were measured; 0: none was */
    double *work;                                  /* n_layers + 1: bytes before each layer, */
    double *held;                                  /* and bytes of weights in memory, */
    uint32_t *windowed;                            /* and layers with windowed pages */
    double *slowest;                               /* n_stages x (n_layers + 1) */
    uint32_t *from;                                /* the same: where its last stage begins */
};

/* ---- what a stage takes ---- */

static double byte_ns(const struct planning *p, const struct plan_worker *w)
{
    return w->byte_ns > 0 ? w->byte_ns : p->mean_byte_ns;
}

static double head_ns(const struct planning *p, const struct plan_worker *w)
{
    return w->byte_ns > 0 ? w->head_ns : p->mean_head_ns;
}

/* Layers first..end-1. Without any measured worker, the number of their bytes. */
static double time_of(const struct planning *p, const struct plan_worker *w, uint32_t first,
                      uint32_t end)
{
    double head = end == p->ask->n_layers ? head_ns(p, w) : 0.0, each = byte_ns(p, w);
    return (p->work[end] - p->work[first]) * (each > 0 ? each : 1.0) + head;
}

/* Whether a worker may have these layers, and has room for them with so many pages. What a slice of
 * all layers has only once (tied_bytes) does not matter: then there is nothing to cut. */
static bool fits(const struct planning *p, const struct plan_worker *w, uint32_t first,
                 uint32_t end, double pages)
{
    const struct room_costs *k = p->ask->costs;
    uint32_t n = end - first;
    if (w->layers_max && n > w->layers_max) return false;
    if (!k->layer_bytes || w->room_bytes == UINT64_MAX || pages < 0) return true;
    double bytes = p->held[end] - p->held[first];
    if (end == p->ask->n_layers) bytes += (double)k->last_bytes;
    uint32_t windowed = p->windowed[end] - p->windowed[first];
    bytes += pages * ((double)(n - windowed) * (double)k->page_layer_bytes + (double)k->page_bytes);
    bytes += (double)room_windowed(k, (uint64_t)pages) * windowed * (double)k->page_layer_bytes;
    return bytes <= (double)w->room_bytes;
}

static double slowest_of(const struct planning *p, const struct plan_stage *stages)
{
    double most = 0.0;
    for (uint32_t s = 0; s < p->ask->n_stages; s++) {
        double t = time_of(p, p->order[s], stages[s].layer_first, stages[s].layer_last + 1);
        if (t > most) most = t;
    }
    return most;
}

static bool all_fit(const struct planning *p, const struct plan_stage *stages, double pages)
{
    for (uint32_t s = 0; s < p->ask->n_stages; s++)
        if (!fits(p, p->order[s], stages[s].layer_first, stages[s].layer_last + 1, pages))
            return false;
    return true;
}

/* ---- cuts ---- */

static void cut_even(const struct plan_ask *ask, struct plan_stage *stages)
{
    uint32_t each = ask->n_layers / ask->n_stages, more = ask->n_layers % ask->n_stages;
    for (uint32_t i = 0, at = 0; i < ask->n_stages; i++) {
        stages[i].layer_first = at;
        at += each + (i < more);
        stages[i].layer_last = at - 1;
    }
}

static void cut_as_given(const struct plan_ask *ask, struct plan_stage *stages)
{
    for (uint32_t i = 0, at = 0; i < ask->n_stages; i++) {
        stages[i].layer_first = at;
        at += ask->given[i];
        stages[i].layer_last = at - 1;
    }
}

/* The best place at which stage s, which ends before layer `end`, may begin. */
static void place_cut(struct planning *p, uint32_t s, uint32_t end, double pages)
{
    const struct plan_worker *w = p->order[s];
    uint32_t width = p->ask->n_layers + 1, at = end - 1;
    const double *before = p->slowest + (size_t)(s - 1) * width;
    double best = DBL_MAX;
    for (uint32_t i = end; i-- > s;) {
        double own = time_of(p, w, i, end);
        if (own >= best || !fits(p, w, i, end, pages)) break; /* with more layers still less */
        double t = before[i] > own ? before[i] : own;
        if (t >= best) continue;
        best = t;
        at = i;
    }
    p->slowest[(size_t)s * width + end] = best;
    p->from[(size_t)s * width + end] = at;
}

/* The time of the slowest stage of the best cut for workers in p->order; DBL_MAX: none fits. pages:
 * of the KV pool; below 0: whatever memory there is. */
static double cut_best(struct planning *p, double pages, struct plan_stage *stages)
{
    uint32_t n = p->ask->n_stages, width = p->ask->n_layers + 1;
    for (uint32_t end = 0; end < width; end++) {
        bool possible = end > 0 && fits(p, p->order[0], 0, end, pages);
        p->slowest[end] = possible ? time_of(p, p->order[0], 0, end) : DBL_MAX;
    }
    for (uint32_t s = 1; s < n; s++) {
        for (uint32_t end = 0; end <= s; end++) p->slowest[(size_t)s * width + end] = DBL_MAX;
        for (uint32_t end = s + 1; end < width; end++) place_cut(p, s, end, pages);
    }
    double best = p->slowest[(size_t)(n - 1) * width + p->ask->n_layers];
    if (best == DBL_MAX) return best;
    for (uint32_t s = n, end = p->ask->n_layers; s-- > 0;) {
        stages[s].layer_last = end - 1;
        end = s ? p->from[(size_t)s * width + end] : 0;
        stages[s].layer_first = end;
    }
    return best;
}

/* With as large a pool as costs little time. DBL_MAX: not even the smallest pool fits. */
static double cut_with_pool(struct planning *p, struct plan_stage *stages)
{
    struct plan_stage small[LIMIT_STAGES], large[LIMIT_STAGES];
    double best = cut_best(p, p->ask->pages_least, small);
    if (best == DBL_MAX) return best;
    for (uint32_t pages = p->ask->pages_most; pages > p->ask->pages_least; pages /= 2) {
        double t = cut_best(p, pages, large);
        if (t > best * POOL_FACTOR) continue;
        memcpy(stages, large, p->ask->n_stages * sizeof *stages);
        return t;
    }
    memcpy(stages, small, p->ask->n_stages * sizeof *stages);
    return best;
}

/* Where memory is too short for the smallest pool: the cut that has room for the largest; or, where
 * the weights alone have none, by speed. */
static double cut_for_memory(struct planning *p, struct plan_stage *stages)
{
    uint32_t low = 0, high = p->ask->pages_least;
    if (cut_best(p, 0.0, stages) == DBL_MAX) return cut_best(p, -1.0, stages);
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (cut_best(p, middle, stages) == DBL_MAX)
            high = middle;
        else
            low = middle;
    }
    return cut_best(p, low, stages);
}

/* ---- whom, in which order ---- */

static int speed_class(const struct plan_worker *w)
{
    return w->byte_ns > 0 ? (int)floor(log(w->byte_ns) / log(SPEED_STEP)) : 0;
}

/* By what is asked for, rank, speed, name, and the caller's number. */
static int compare(const void *left, const void *right)
{
    const struct plan_worker *a = left, *b = right;
    bool a_has = a->stage != PLAN_ANY_STAGE, b_has = b->stage != PLAN_ANY_STAGE;
    if (a_has != b_has) return a_has ? -1 : 1;
    if (a->rank != b->rank) return a->rank < b->rank ? -1 : 1;
    int a_speed = speed_class(a), b_speed = speed_class(b);
    if (a_speed != b_speed) return a_speed < b_speed ? -1 : 1;
    int names = strcmp(a->name, b->name);
    return names ? names : a->id < b->id ? -1 : a->id > b->id;
}

static bool holds(const struct plan_worker *w, const struct plan_stage *s)
{
    return w->holds && w->layer_first == s->layer_first && w->layer_last == s->layer_last;
}

static bool is_placed(const struct planning *p, const struct plan_worker *w)
{
    for (uint32_t s = 0; s < p->ask->n_stages; s++)
        if (p->order[s] == w) return true;
    return false;
}

/* Those that are to have a certain stage have it; of two that are, the better one. */
static void place_fixed(struct planning *p, const struct plan_worker *workers, uint32_t n)
{
    memset(p->order, 0, sizeof p->order);
    for (uint32_t i = 0; i < n; i++)
        if (workers[i].stage < p->ask->n_stages && !p->order[workers[i].stage])
            p->order[workers[i].stage] = &workers[i];
}

static uint32_t n_placed(const struct planning *p)
{
    uint32_t n = 0;
    for (uint32_t s = 0; s < p->ask->n_stages; s++) n += p->order[s] != NULL;
    return n;
}

/* What a worker prefers, as a place in the chain. */
static int place_of(const struct plan_worker *w)
{
    return w->prefer == PLAN_FIRST ? 0 : w->prefer == PLAN_LAST ? 2 : 1;
}

/* By what they prefer, then by name. */
static bool goes_before(const struct plan_worker *a, const struct plan_worker *b)
{
    if (a->prefer != b->prefer) return place_of(a) < place_of(b);
    int names = strcmp(a->name, b->name);
    return names ? names < 0 : a->id < b->id;
}

/* The best of the others have the stages that are left, in the order of their names but for what
 * they prefer. */
static void fill(struct planning *p, const struct plan_worker *workers, uint32_t n)
{
    const struct plan_worker *list[LIMIT_STAGES];
    uint32_t n_list = 0, left = p->ask->n_stages - n_placed(p);
    for (uint32_t i = 0; i < n && n_list < left; i++) {
        if (is_placed(p, &workers[i])) continue;
        uint32_t at = n_list++;
        for (; at && goes_before(&workers[i], list[at - 1]); at--) list[at] = list[at - 1];
        list[at] = &workers[i];
    }
    for (uint32_t s = 0, i = 0; s < p->ask->n_stages; s++)
        if (!p->order[s]) p->order[s] = list[i++];
}

/* Whether those who may have any stage have one that they prefer. */
static bool are_where_they_prefer(const struct planning *p)
{
    int before = 0;
    for (uint32_t s = 0; s < p->ask->n_stages; s++) {
        if (p->order[s]->stage != PLAN_ANY_STAGE) continue;
        if (place_of(p->order[s]) < before) return false;
        before = place_of(p->order[s]);
    }
    return true;
}

/* Gives each stage, whose layers are known, a worker: those of the best ranks, and of equals those
 * that hold a stage's layers already. Counts the stages that keep theirs. */
static uint32_t place_holders(struct planning *p, const struct plan_worker *workers, uint32_t n,
                              const struct plan_stage *stages)
{
    place_fixed(p, workers, n);
    uint32_t n_stages = p->ask->n_stages, left = n_stages - n_placed(p), must = 0, kept = 0;
    uint32_t last_rank = 0;
    for (uint32_t i = 0, seen = 0; i < n && seen < left; i++)
        if (!is_placed(p, &workers[i])) {
            last_rank = workers[i].rank;
            seen++;
        }
    /* Those of a better rank than the last that is needed are all taken: `must` of them are left.
     */
    for (uint32_t i = 0; i < n; i++)
        must += !is_placed(p, &workers[i]) && workers[i].rank < last_rank;
    for (uint32_t s = 0; s < n_stages; s++) { /* whoever holds a stage's layers keeps it */
        if (p->order[s]) continue;
        for (uint32_t i = 0; i < n; i++) {
            const struct plan_worker *w = &workers[i];
            if (w->rank > last_rank || !holds(w, &stages[s]) || is_placed(p, w)) continue;
            if (w->rank == last_rank && left == must) continue;
            must -= w->rank < last_rank;
            left--;
            p->order[s] = w;
            break;
        }
    }
    fill(p, workers, n);
    for (uint32_t s = 0; s < n_stages; s++) kept += holds(p->order[s], &stages[s]);
    return kept;
}

/* The best n_stages workers, in the order of their names; whoever `last` is comes last of those
 * that may be anywhere. */
static void place_by_name(struct planning *p, const struct plan_worker *workers, uint32_t n,
                          const struct plan_worker *last)
{
    const struct plan_worker *list[LIMIT_STAGES];
    place_fixed(p, workers, n);
    uint32_t n_list = 0, left = p->ask->n_stages - n_placed(p);
    for (uint32_t i = 0; i < n && n_list < left; i++) {
        const struct plan_worker *w = &workers[i];
        if (is_placed(p, w)) continue;
        uint32_t at = n_list++;
        for (; at && (list[at - 1] == last || (w != last && goes_before(w, list[at - 1]))); at--)
            list[at] = list[at - 1];
        list[at] = w;
    }
    for (uint32_t s = 0, i = 0; s < p->ask->n_stages; s++)
        if (!p->order[s]) p->order[s] = list[i++];
}

/* Whether the last stage is open to whoever is best there. */
static bool may_be_last(const struct planning *p, const struct plan_worker *w)
{
    const struct plan_worker *now = p->order[p->ask->n_stages - 1];
    return w->prefer == PLAN_ANYWHERE && now->prefer != PLAN_LAST && w->stage == PLAN_ANY_STAGE &&
           now->stage == PLAN_ANY_STAGE;
}

/* ---- the best plan, and the one that is kept ---- */

/* Cuts for p->order. */
static double cut(struct planning *p, struct plan_stage *stages)
{
    struct plan_stage even[LIMIT_STAGES];
    double best = cut_with_pool(p, stages);
    if (best == DBL_MAX) return best;
    cut_even(p->ask, even);
    double t = slowest_of(p, even);
    if (t > best * EVEN_FACTOR || !all_fit(p, even, p->ask->pages_least)) return best;
    memcpy(stages, even, p->ask->n_stages * sizeof *stages);
    return t;
}

/* By speed: the order by name, or another last worker. */
static double plan_best(struct planning *p, const struct plan_worker *workers, uint32_t n,
                        struct plan_stage *stages)
{
    struct plan_stage other[LIMIT_STAGES];
    const struct plan_worker *chosen[LIMIT_STAGES], *last = NULL;
    uint32_t n_stages = p->ask->n_stages;
    place_by_name(p, workers, n, NULL);
    memcpy(chosen, p->order, sizeof chosen);
    double best = cut(p, stages);
    for (uint32_t i = 0; i + 1 < n_stages; i++) {
        if (!may_be_last(p, chosen[i])) continue;
        place_by_name(p, workers, n, chosen[i]);
        double most = best == DBL_MAX ? best : best * ORDER_FACTOR;
        double t = cut_best(p, p->ask->pages_least, other) < most ? cut(p, other) : DBL_MAX;
        if (t < most) {
            best = t;
            last = chosen[i];
            memcpy(stages, other, n_stages * sizeof *stages);
        }
        memcpy(p->order, chosen, sizeof chosen);
    }
    place_by_name(p, workers, n, last);
    return best == DBL_MAX ? cut_for_memory(p, stages) : best;
}

/* The cut of which workers hold slices: such that follow each other, and one stage for each gap.
 * False: there is none of n_stages. */
static bool cut_as_held(const struct plan_ask *ask, const struct plan_worker *workers, uint32_t n,
                        struct plan_stage *stages)
{
    uint32_t at = 0, s = 0;
    for (; at < ask->n_layers && s < ask->n_stages; s++) {
        uint32_t end = 0, next = ask->n_layers;
        for (uint32_t i = 0; i < n; i++) {
            const struct plan_worker *w = &workers[i];
            if (!w->holds || w->layer_first > w->layer_last || w->layer_last >= ask->n_layers)
                continue;
            if (w->layer_first == at && end == 0) end = w->layer_last + 1;
            if (w->layer_first > at && w->layer_first < next) next = w->layer_first;
        }
        stages[s].layer_first = at;
        at = end ? end : next;
        stages[s].layer_last = at - 1;
    }
    return at == ask->n_layers && s == ask->n_stages;
}

/* Keeps what the workers hold, where that is worth it; p->order is then theirs. */
static bool keep(struct planning *p, const struct plan_worker *workers, uint32_t n, double best,
                 struct plan_stage *stages)
{
    const struct plan_worker *fresh[LIMIT_STAGES];
    struct plan_stage held[LIMIT_STAGES] = {{0}};
    if (!cut_as_held(p->ask, workers, n, held)) return false;
    memcpy(fresh, p->order, sizeof fresh);
    uint32_t kept = place_holders(p, workers, n, held);
    bool worth = kept == p->ask->n_stages || (kept && slowest_of(p, held) <= best * KEEP_FACTOR);
    if (worth && are_where_they_prefer(p) && all_fit(p, held, p->ask->pages_least)) {
        memcpy(stages, held, p->ask->n_stages * sizeof *stages);
        return true;
    }
    memcpy(p->order, fresh, sizeof fresh);
    return false;
}

/* ---- the whole ---- */

static void take_means(struct planning *p, const struct plan_worker *workers, uint32_t n)
{
    uint32_t measured = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (workers[i].byte_ns <= 0) continue;
        p->mean_byte_ns += workers[i].byte_ns;
        p->mean_head_ns += workers[i].head_ns;
        measured++;
    }
    if (measured == 0) return;
    p->mean_byte_ns /= measured;
    p->mean_head_ns /= measured;
}

static void open_tables(struct planning *p)
{
    const struct plan_ask *ask = p->ask;
    size_t width = ask->n_layers + 1, n = ask->n_stages * width;
    p->work = mem_zalloc(width * sizeof *p->work);
    p->held = mem_zalloc(width * sizeof *p->held);
    p->windowed = mem_zalloc(width * sizeof *p->windowed);
    p->slowest = mem_zalloc(n * sizeof *p->slowest);
    p->from = mem_zalloc(n * sizeof *p->from);
    for (uint32_t l = 0; l < ask->n_layers; l++) {
        p->work[l + 1] = p->work[l] + (ask->work ? (double)ask->work[l] : 1.0);
        p->held[l + 1] =
            p->held[l] + (ask->costs->layer_bytes ? (double)ask->costs->layer_bytes[l] : 0.0);
        p->windowed[l + 1] = p->windowed[l] + room_layers_windowed(ask->costs, l, l + 1);
    }
}

static void close_tables(struct planning *p)
{
    mem_free(p->work);
    mem_free(p->held);
    mem_free(p->windowed);
    mem_free(p->slowest);
    mem_free(p->from);
}

static void make(struct planning *p, const struct plan_worker *workers, uint32_t n,
                 struct plan_stage *stages)
{
    const struct plan_ask *ask = p->ask;
    if (ask->split == PLAN_BY_SPEED && p->mean_byte_ns > 0) {
        double best = plan_best(p, workers, n, stages);
        (void)keep(p, workers, n, best, stages);
    } else {
        if (ask->split == PLAN_GIVEN)
            cut_as_given(ask, stages);
        else
            cut_even(ask, stages);
        (void)place_holders(p, workers, n, stages);
    }
    for (uint32_t s = 0; s < ask->n_stages; s++) {
        stages[s].worker = p->order[s]->id;
        stages[s].ns = p->mean_byte_ns > 0 ? time_of(p, p->order[s], stages[s].layer_first,
                                                     stages[s].layer_last + 1)
                                           : 0.0;
    }
}

uint32_t plan_layers_max(const struct plan_ask *ask, const struct plan_worker *workers)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < ask->n_stages; i++)
        sum += workers[i].layers_max ? workers[i].layers_max : ask->n_layers;
    return sum < ask->n_layers ? (uint32_t)sum : ask->n_layers;
}

enum plan_result plan_make(const struct plan_ask *ask, struct plan_worker *workers,
                           uint32_t n_workers, struct plan_stage *ret_stages)
{
    struct planning p = {.ask = ask};
    CHECK(ask->n_stages > 0 && ask->n_stages <= ask->n_layers && ask->n_stages <= LIMIT_STAGES);
    if (n_workers < ask->n_stages) return PLAN_TOO_FEW_WORKERS;
    qsort(workers, n_workers, sizeof *workers, compare);
    if (plan_layers_max(ask, workers) < ask->n_layers) return PLAN_TOO_FEW_LAYERS;
    take_means(&p, workers, n_workers);
    open_tables(&p);
    make(&p, workers, n_workers, ret_stages);
    close_tables(&p);
    return PLAN_MADE;
}
