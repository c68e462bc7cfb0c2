/* The size of the KV pool, chosen when a generation begins: by then it is known which workers have
 * which layers, and what memory they have.
 *
 * A pool that its workers hold already is kept while it fits, even where a little more or less
 * would fit now: another size means that they load their slices again. */
#include "coordinator/core/room.h"

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/machine.h"
#include "common/base/mem.h"
#include "coordinator/core/core_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define RETRY_NS (1 * NS_PER_S)        /* memory may become free */
#define BYTES_MOST ((uint64_t)1 << 50) /* of one figure that a peer tells: sums do not overflow */
#define MIB (1024.0 * 1024.0)

/* ---- how much fits ---- */

static uint64_t bounded(uint64_t bytes)
{
    return bytes < BYTES_MOST ? bytes : BYTES_MOST;
}

/* 0: there is no such place. Nobody shares what it may take with another. */
static uint64_t place_of(const struct room_stage *s, enum room_place place)
{
    return place == ROOM_WISH    ? s->most_bytes
           : place == ROOM_GROUP ? s->memory.group
                                 : s->memory.machine;
}

static bool shares(const struct room_stage *a, const struct room_stage *b, enum room_place place)
{
    return a == b || (place != ROOM_WISH && place_of(a, place) == place_of(b, place));
}

/* What is left there beside what the workers hold; of what a worker may take, all of it. */
static uint64_t free_bytes(const struct room_stage *s, enum room_place place)
{
    if (place == ROOM_WISH) return bounded(s->most_bytes);
    return bounded(place == ROOM_GROUP ? s->memory.group_free : s->memory.machine_free);
}

static uint64_t held_bytes(const struct room_stage *s, enum room_place place)
{
    return place == ROOM_WISH ? 0 : bounded(s->memory.held);
}

/* What stays free of so many bytes: nothing of what a worker may take. */
static uint64_t reserve_of(uint64_t have, enum room_place place, bool spare)
{
    return place == ROOM_WISH ? 0 : machine_reserve(have) / (spare ? 1 : 2);
}

/* Of each worker, whatever its layers are. */
static uint64_t buffers_of(const struct room_costs *costs, const struct room_stage *s)
{
    return costs->worker_bytes + s->threads * costs->thread_bytes;
}

static uint64_t weights_of(const struct room_costs *costs, uint32_t n_layers,
                           const struct room_stage *s)
{
    uint64_t bytes = 0;
    for (uint32_t l = s->layer_first; l <= s->layer_last; l++) bytes += costs->layer_bytes[l];
    bool all = s->layer_first == 0 && s->layer_last == n_layers - 1;
    return all ? bytes - costs->tied_bytes : bytes;
}

uint32_t room_windowed(const struct room_costs *costs, uint64_t n_pages)
{
    uint64_t n = n_pages / 4;
    if (n < costs->windowed_least) n = costs->windowed_least;
    if (n > costs->windowed_most) n = costs->windowed_most;
    return (uint32_t)(n < n_pages ? n : n_pages);
}

uint32_t room_layers_windowed(const struct room_costs *costs, uint32_t first, uint32_t end)
{
    uint32_t n = 0;
    for (uint32_t l = first; l < end && costs->layer_windowed; l++) n += costs->layer_windowed[l];
    return n;
}

/* Bytes of a pool with so many whole pages. */
static uint64_t pool_bytes(const struct room_costs *costs, const struct room *r, uint64_t n_pages)
{
    return n_pages * r->page_bytes + room_windowed(costs, n_pages) * r->windowed_bytes;
}

/* The most whole pages of a pool of so many bytes. */
static uint64_t pages_in(const struct room_costs *costs, const struct room *r, uint64_t bytes)
{
    uint64_t low = 0, high = r->page_bytes ? bytes / r->page_bytes : UINT32_MAX;
    if (r->windowed_bytes == 0) return high;
    while (low < high) {
        uint64_t mid = low + (high - low + 1) / 2;
        if (pool_bytes(costs, r, mid) <= bytes)
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

/* What the stages in the place of stage `at` have room for. */
static struct room room_in(const struct room_costs *costs, uint32_t n_layers,
                           const struct room_stage *stages, uint32_t n_stages, uint32_t at,
                           enum room_place place, bool spare)
{
    struct room r = {.tightest = at, .place = place};
    uint64_t left = BYTES_MOST, held = 0;
    for (uint32_t i = 0; i < n_stages; i++) {
        const struct room_stage *s = &stages[i];
        if (!shares(s, &stages[at], place)) continue;
        uint64_t seen = free_bytes(s, place);
        if (seen < left) left = seen; /* they looked at different moments */
        held += held_bytes(s, place);
        uint32_t n = s->layer_last - s->layer_first + 1;
        uint32_t windowed = room_layers_windowed(costs, s->layer_first, s->layer_last + 1);
        r.page_bytes += (n - windowed) * costs->page_layer_bytes + costs->page_bytes;
        r.windowed_bytes += windowed * costs->page_layer_bytes;
        r.rest_bytes += weights_of(costs, n_layers, s) + buffers_of(costs, s) +
                        (s->layer_last == n_layers - 1 ? costs->last_bytes : 0);
        r.n_sharing++;
    }
    r.have_bytes = left + held;
    uint64_t taken = r.rest_bytes + reserve_of(r.have_bytes, place, spare);
    r.taken_bytes = taken;
    r.pages = r.have_bytes > taken ? pages_in(costs, &r, r.have_bytes - taken) : 0;
    return r;
}

struct room room_of(const struct room_costs *costs, uint32_t n_layers,
                    const struct room_stage *stages, uint32_t n_stages, bool spare)
{
    struct room least = {.pages = ROOM_UNKNOWN};
    for (uint32_t i = 0; i < n_stages; i++)
        for (int place = 0; place < ROOM_PLACES; place++) {
            enum room_place x = (enum room_place)place;
            if (place_of(&stages[i], x) == 0) continue;
            struct room r = room_in(costs, n_layers, stages, n_stages, i, x, spare);
            if (r.pages < least.pages) least = r;
        }
    return least;
}

uint64_t room_for_slice(const struct room_costs *costs, const struct room_stage *stage, bool spare)
{
    uint64_t least = UINT64_MAX;
    for (int place = 0; place < ROOM_PLACES; place++) {
        enum room_place x = (enum room_place)place;
        if (place_of(stage, x) == 0) continue;
        uint64_t have = free_bytes(stage, x) + held_bytes(stage, x);
        uint64_t taken = buffers_of(costs, stage) + reserve_of(have, x, spare);
        uint64_t left = have > taken ? have - taken : 0;
        if (left < least) least = left;
    }
    return least;
}

/* ---- the pool of a generation ---- */

static uint64_t pages_for(const struct core *c, uint64_t positions)
{
    return (positions + c->cfg.page - 1) / c->cfg.page;
}

/* The size that the stages hold which keep their slices; 0: none does, or they differ. */
static uint32_t held_pages(struct core *c, const struct replica *r, const struct room_stage *stages)
{
    uint32_t pages = 0;
    for (uint32_t i = 0; i < r->n_stages; i++) {
        const struct worker *w = replica__at(c, r, i);
        const struct msg_holding *h = &w->hello.holding;
        if (!w->hello.holds || h->model_digest != c->cfg.model_digest ||
            h->layer_first != stages[i].layer_first || h->layer_last != stages[i].layer_last)
            continue;
        if (pages && pages != stages[i].memory.held_pages) return 0;
        pages = stages[i].memory.held_pages;
    }
    return pages;
}

/* The number of pages, or 0: too few fit. spare, close: the room where the whole reserve stays
 * free, or half of it; held: the size of the pool that the stages hold, or 0. */
static uint32_t choose(const struct core *c, const struct room *spare, const struct room *close,
                       uint32_t held)
{
    if (c->cfg.n_pages) return c->cfg.n_pages <= close->pages ? c->cfg.n_pages : 0;
    uint32_t least = c->cfg.pages_least, most = c->cfg.pages_most;
    if (held >= least && held <= most && held <= close->pages) return held;
    uint64_t n = spare->pages;
    if (n == ROOM_UNKNOWN) n = 2 * pages_for(c, c->cfg.ctx);
    if (n < least && close->pages >= least) n = least;
    if (n > most) n = most;
    return n < least ? 0 : (uint32_t)n;
}

/* What no longer fits ends. What asked for more than any pool has that is known ends sooner, by
 * whoever serves when it is sent. */
static void fit_requests(struct core *c)
{
    uint32_t ctx = c->ctx;
    for (uint32_t i = c->n_queued; i-- > 0;) {
        struct request *r = &c->requests[c->queued[i]];
        r->open_ended |= r->n_prompt + r->max_new > room__known_ctx(c, r->n_tokens);
        if (r->n_tokens >= ctx)
            request__end(c, r, STATUS_RESOURCE_EXHAUSTED, FINISH_NONE,
                         core__text(c,
                                    "%" PRIu32 " tokens do not fit the context of %" PRIu32
                                    ": the workers have room for no more ('kv_tokens')",
                                    r->n_tokens, ctx));
    }
}

/* The place that bounds the pool, in words. */
static const char *place_text(struct core *c, const struct replica *r, const struct room *room)
{
    static const char *const places[ROOM_PLACES] = {
        "on the machine", "below the memory group's limit", "by the key 'memory'"};
    if (room->pages == ROOM_UNKNOWN) return "no worker tells its memory";
    if (room->tightest == ROOM_TABLES) return "the coordinator's tables of pages";
    const char *others =
        room->n_sharing > 1 ? core__text(c, " and %" PRIu32 " more", room->n_sharing - 1) : "";
    return core__text(c, "worker %s%s, which ha%s %.0f MiB %s, %.0f of it for weights and buffers",
                      replica__at(c, r, room->tightest)->hello.name, others,
                      room->n_sharing > 1 ? "ve" : "s", (double)room->have_bytes / MIB,
                      places[room->place], (double)room->rest_bytes / MIB);
}

/* What matters most comes first: a client is told the beginning. */
static void refuse(struct core *c, struct replica *r, const struct room *room)
{
    uint64_t wanted = c->cfg.n_pages ? c->cfg.n_pages : c->cfg.pages_least;
    double missing = (double)room->taken_bytes + (double)pool_bytes(&c->cfg.costs, room, wanted) -
                     (double)room->have_bytes;
    const char *more = room->page_bytes && missing > 0
                           ? core__text(c, " %.0f MiB more are needed;", missing / MIB + 0.5)
                           : "";
    (void)snprintf(r->why, sizeof r->why,
                   "no room for '%s' of %" PRIu64
                   ":%s the largest 'kv_tokens' or 'ctx' that fits is %" PRIu64
                   "; the tightest: %s",
                   c->cfg.n_pages ? "kv_tokens" : "ctx", wanted * c->cfg.page, more,
                   room->pages * c->cfg.page, place_text(c, r, room));
    if (!r->cramped) core__note(c, "%sno generation can begin: %s", core__of_replica(c, r), r->why);
    r->cramped = true;
    r->retry_ns = c->now_ns + RETRY_NS;
    fleet__dismiss(c, r);
}

void room__drop_pages(struct replica *r)
{
    pages_close(r->pages);
    windowed_close(r->windowed);
    mem_free(r->twice);
    mem_free(r->windowed_twice);
}

/* The positions of a sequence in this replica's pool; 0: it has none, or it does not serve. */
static uint32_t ctx_of(const struct core *c, uint32_t replica, bool serving)
{
    const struct replica *r = &c->replicas[replica];
    if (serving) return c->loads[replica].ctx; /* in a flat array: this is asked in arrivals */
    return r->n_pages ? r->ctx : 0;
}

static uint32_t longest(const struct core *c, bool serving)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < c->cfg.n_replicas; i++)
        if (ctx_of(c, i, serving) > most) most = ctx_of(c, i, serving);
    return most;
}

/* The positions of a sequence in a pool of so many pages; 0: nobody knows how many. */
static uint32_t ctx_of_pages(const struct core *c, uint32_t n_pages)
{
    uint64_t positions = (uint64_t)n_pages * c->cfg.page;
    return n_pages == 0 || positions > c->cfg.ctx ? c->cfg.ctx : (uint32_t)positions;
}

/* Whether a replica that is wanted has no pool yet: who knows how large it will be. */
static bool lacks_pool(const struct core *c)
{
    uint32_t n = c->cfg.n_wanted ? c->cfg.n_wanted : c->cfg.n_replicas;
    for (uint32_t i = 0; i < n; i++)
        if (c->replicas[i].n_pages == 0) return true;
    return false;
}

void room__set_pages(struct core *c, struct replica *r, uint32_t n_pages)
{
    CHECK(r->n_running == 0); /* nobody holds a page of the old pool */
    room__drop_pages(r);
    if (c->cfg.attn_window) {
        r->n_windowed = room_windowed(&c->cfg.costs, n_pages);
        r->windowed = windowed_open(r->n_windowed, n_pages);
        r->windowed_twice = mem_zalloc((r->n_windowed + 1) * sizeof *r->windowed_twice);
    }
    struct pages_config pages = {.index = c->index,
                                 .replica = r->id,
                                 .n_pages = n_pages,
                                 .share = c->cfg.share,
                                 .windowed = r->windowed};
    r->pages = pages_open(&pages);
    r->twice = mem_zalloc((n_pages + 1) * sizeof *r->twice);
    r->n_pages = n_pages;
    r->ctx = ctx_of_pages(c, n_pages);
    c->pool_ctx = longest(c, false);
    c->ctx = lacks_pool(c) ? ctx_of_pages(c, c->cfg.n_pages) : c->pool_ctx;
}

uint32_t room__known_ctx(const struct core *c, uint32_t n)
{
    return c->pool_ctx > n ? c->pool_ctx : c->ctx;
}

bool room__some_serve(const struct core *c, uint32_t n)
{
    return longest(c, true) > n;
}

uint32_t room__open_ctx(const struct core *c, uint32_t n)
{
    bool serving = room__some_serve(c, n);
    uint32_t most = longest(c, serving), least = most;
    if (most <= n) return c->ctx;
    for (uint32_t i = 0; i < c->cfg.n_replicas; i++) {
        uint32_t ctx = ctx_of(c, i, serving);
        if (ctx > n && ctx < least && ctx >= most / 2) least = ctx;
    }
    return least;
}

/* What a worker's machine or group has left for this replica: workers there that have loaded
 * nothing yet, and may serve another replica, need their part too. */
static uint64_t part_of(const struct core *c, const struct replica *r, const struct worker *w,
                        bool group)
{
    uint64_t bytes = group ? w->memory.group_free : w->memory.machine_free;
    uint32_t mine = 0, others = 0, most = (c->cfg.n_replicas - 1) * c->cfg.n_stages;
    for (uint32_t i = 0; i < c->cfg.max_workers; i++) {
        const struct worker *x = &c->workers[i];
        bool there =
            group ? x->memory.group == w->memory.group : x->memory.machine == w->memory.machine;
        if (!x->used || !there) continue;
        mine += x->replica == r;
        others += x->replica != r && !x->hello.holds;
    }
    if (others > most) others = most;
    return others ? bytes / (mine + others) * mine : bytes;
}

/* That there are, or are to be, as far as is known. */
static uint32_t n_replicas(const struct core *c)
{
    uint32_t n = fleet__n_known(c) / c->cfg.n_stages, wanted = c->cfg.n_wanted;
    if (wanted == 0 || n > c->cfg.n_replicas) n = c->cfg.n_replicas;
    return n > wanted ? n : wanted;
}

/* That the coordinator takes for a page, in tables. */
static uint64_t table_bytes(const struct core *c)
{
    return pages_bytes(c->cfg.page) + (c->cfg.attn_window ? windowed_bytes() : 0);
}

bool room__plan(struct core *c, struct replica *r)
{
    const struct room_costs *costs = &c->cfg.costs;
    struct room_stage stages[LIMIT_STAGES];
    if (!costs->layer_bytes) return true; /* the pool was opened with the core */
    for (uint32_t i = 0; i < r->n_stages; i++) {
        const struct worker *w = replica__at(c, r, i);
        stages[i] = fleet__memory(w);
        stages[i].layer_first = r->first[i];
        stages[i].layer_last = r->last[i];
        stages[i].memory.machine_free = part_of(c, r, w, false);
        stages[i].memory.group_free = part_of(c, r, w, true);
    }
    struct room spare = room_of(costs, c->cfg.n_layers, stages, r->n_stages, true);
    struct room close = room_of(costs, c->cfg.n_layers, stages, r->n_stages, false);
    uint64_t tables = costs->table_bytes / n_replicas(c) / table_bytes(c);
    if (costs->table_bytes && tables < close.pages)
        close = (struct room){.pages = tables, .tightest = ROOM_TABLES};
    if (costs->table_bytes && tables < spare.pages) spare = close;
    uint32_t n = choose(c, &spare, &close, held_pages(c, r, stages));
    if (n == 0) {
        refuse(c, r, &close);
        return false;
    }
    r->cramped = false;
    if (n == r->n_pages) return true;
    room__set_pages(c, r, n);
    core__note(c, "%sKV pool of %" PRIu64 " tokens, contexts of %" PRIu32 "; the tightest: %s",
               core__of_replica(c, r), (uint64_t)n * c->cfg.page, r->ctx, place_text(c, r, &spare));
    fit_requests(c);
    return true;
}
