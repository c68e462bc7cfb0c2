/* What must hold of every action and after every event. Nothing here shares code with the core. */
#include "coordinator/sim/world.h"

#include "common/base/clock.h"

#include <inttypes.h>
#include <string.h>

#define DEADLINE_SLACK_NS (2 * NS_PER_S)
#define WAIT_SLACK_NS (3 * NS_PER_S)  /* beyond replica_wait: a coordinator may not run so long */
#define READY_MOST_NS (90 * NS_PER_S) /* to find out what was left broken, and to begin anew */
#define SPARE_MOST_NS                                                                              \
    (300 * NS_PER_S) /* the same beside a worker that stays broken: two losses at the most */
#define HUNG_SLACK_NS (500 * NS_PER_MS) /* two heartbeats */
#define IDLE_MOST_NS (100 * NS_PER_MS)  /* until a Step is issued where something is due */
#define ATTEMPTS_MAX 3u

/* ---- tokens and ends ---- */

/* 1. Exactly once; and the time in the queue that the action tells is right. */
static void check_tokens(struct world *w, const struct action *a)
{
    struct world_request *r = check__find(w, a->tokens.request);
    if (!r || r->ended || !r->submitted) {
        world__fail(w, "tokens for request %" PRIu64 ", which has ended", a->tokens.request);
        return;
    }
    if (a->tokens.queued_ns != r->begun_ns - r->submitted_ns)
        world__fail(w, "request %" PRIu64 " waited %" PRIu64 " ns for its first row, not %" PRIu64,
                    r->id, r->begun_ns - r->submitted_ns, a->tokens.queued_ns);
    for (uint32_t i = 0; i < a->tokens.n; i++) {
        uint32_t p = r->n_prompt + a->tokens.first_index + i;
        if (p != r->n_tokens || p >= r->n_oracle || a->tokens.tokens[i] != r->tokens[p]) {
            world__fail(w, "request %" PRIu64 ": token %" PRId32 " at %" PRIu32 ", have %" PRIu32,
                        r->id, a->tokens.tokens[i], p, r->n_tokens);
            return;
        }
        r->n_tokens++;
        r->lost_in_flight = 0;
        w->report->tokens++;
        w->n_tokens_now++;
    }
}

/* 1. Once, to one who wants it, and of all rows of the prompt in their order. */
static void check_embedding(struct world *w, const struct action *a)
{
    struct world_request *r = check__find(w, a->embedding.request);
    if (!r || r->ended || !r->submitted || !r->embed || r->embedded) {
        world__fail(w, "an embedding for request %" PRIu64 ", which wants none",
                    a->embedding.request);
        return;
    }
    if (!check__is_embedding(r, a->embedding.values, a->embedding.n))
        world__fail(w, "request %" PRIu64 ": another embedding", r->id);
    r->embedded = true;
    r->lost_in_flight = 0;
    w->report->embeddings++;
    w->n_tokens_now++;
}

/* Live requests of a client, by our count: the one that is being refused has ended already. */
static uint32_t live_of(const struct world *w, uint64_t client)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->n_requests; i++) {
        const struct world_request *r = &w->requests[i];
        n += r->submitted && !r->ended && r->client == client;
    }
    return n;
}

/* Since when a live request waits for a replica. */
static uint64_t waits_since(const struct world *w, const struct world_request *r)
{
    return r->submitted_ns > w->unready_ns ? r->submitted_ns : w->unready_ns;
}

static const char *unavailable_too_early(const struct world *w, const struct world_request *r)
{
    if (w->was_ready && w->n_lost_now == 0) return "unavailable while all was well";
    if (world__ready(w)) return "unavailable while a replica is ready";
    uint64_t since = w->was_ready ? w->now_ns : waits_since(w, r);
    return w->now_ns - since < w->cfg.replica_wait_ns ? "did not wait for a replica" : NULL;
}

/* A request is given up when it may be what ends generations, or when a stage cannot go on. */
static const char *given_up(const struct world *w, const struct world_request *r)
{
    if (r->erred) return NULL;
    if (w->faultless) return "given up, but nothing broke";
    return r->lost_in_flight < ATTEMPTS_MAX ? "given up too early" : NULL;
}

/* Every status has its reason. */
static void check_reason(struct world *w, const struct world_request *r, enum status status)
{
    const char *wrong = NULL;
    switch (status) {
    case STATUS_OK: break;
    case STATUS_CANCELLED: wrong = r->cancelled ? NULL : "cancelled by nobody"; break;
    case STATUS_DEADLINE_EXCEEDED:
        wrong = w->now_ns >= r->deadline_at_ns ? NULL : "ended before its deadline";
        break;
    case STATUS_UNAVAILABLE: wrong = unavailable_too_early(w, r); break;
    case STATUS_INTERNAL: wrong = given_up(w, r); break;
    case STATUS_RESOURCE_EXHAUSTED:
        wrong = core_n_sequences(w->core) < w->cfg.max_live &&
                        live_of(w, r->client) < w->cfg.max_per_client
                    ? "refused with room to spare"
                    : NULL;
        break;
    case STATUS_INVALID_ARGUMENT:
        wrong = r->n_prompt < w->cfg.ctx ? "refused though it fits" : NULL;
        break;
    default: wrong = "a status that nothing asks for"; break;
    }
    if (wrong) world__fail(w, "request %" PRIu64 ": %s", r->id, wrong);
}

static void check_terminal(struct world *w, const struct action *a)
{
    struct world_request *r = check__find(w, a->end.request);
    if (!r || r->ended) {
        world__fail(w, "request %" PRIu64 " ended twice", a->end.request);
        return;
    }
    r->ended = true;
    r->status = a->end.status;
    bool ok = r->status == STATUS_OK;
    bool complete = r->embed ? r->embedded : r->n_tokens == r->n_oracle;
    enum finish_reason reason = !ok                          ? FINISH_NONE
                                : r->stopped_by_us || r->eog ? FINISH_STOP
                                : r->embed                   ? FINISH_NONE
                                                             : FINISH_LENGTH;
    if (ok && !complete && !r->stopped_by_us)
        world__fail(w, "request %" PRIu64 ": OK after %" PRIu32 " of %" PRIu32 " tokens", r->id,
                    r->n_tokens, r->n_oracle);
    if (reason != a->end.finish_reason)
        world__fail(w, "request %" PRIu64 ": finish reason '%s', not '%s'", r->id,
                    finish_text(a->end.finish_reason), finish_text(reason));
    if ((r->status == STATUS_RESOURCE_EXHAUSTED) != (a->end.retry_ms > 0))
        world__fail(w, "request %" PRIu64 ": asked to try again in %" PRIu32 " ms", r->id,
                    a->end.retry_ms);
    check_reason(w, r, r->status);
    w->report->drafted += a->end.accept.drafted;
    w->report->accepted += a->end.accept.accepted;
    w->report->early += a->end.accept.early;
    w->report->wasted += a->end.accept.wasted;
    if (ok) w->report->completed++;
    w->report->requests++;
}

/* ---- Steps ---- */

/* Of anybody, up to now. */
static uint64_t preemptions(const struct world *w)
{
    struct msg_status s;
    uint64_t sum = 0;
    core_status(w->core, &s);
    for (uint32_t i = 0; i < s.n_replicas; i++) sum += s.replicas[i].cache.preemptions;
    return sum;
}

/* Guesses are in runs of their own kind, wanted by the request, told apart by workers that can, and
 * never beyond what it may generate. A guess is nobody's known token. */
static void check_guesses(struct world *w, const struct msg_step *s, const struct msg_run *r,
                          const struct world_request *q)
{
    uint32_t known = r->first_pos + r->n_rows - r->n_guesses;
    if ((r->kind == RUN_VERIFY) != (r->n_guesses > 0))
        world__fail(w, "request %" PRIu64 ": %" PRIu32 " guesses in a run of kind %d", q->id,
                    r->n_guesses, (int)r->kind);
    if (!r->n_guesses) return;
    if (!q->drafts || w->unverified || s->epoch.replica >= w->cfg.n_replicas)
        world__fail(w, "request %" PRIu64 " wants no guesses, and has some", q->id);
    else if (r->first_pos + r->n_rows >= q->n_prompt + q->max_new)
        world__fail(w, "request %" PRIu64 ": guesses up to %" PRIu32 ", beyond its last token",
                    q->id, r->first_pos + r->n_rows);
    else if (known > r->first_pos ? known != q->n_tokens : known < q->n_tokens)
        world__fail(
            w, "request %" PRIu64 ": guesses from %" PRIu32 " on, but %" PRIu32 " tokens are known",
            q->id, known, q->n_tokens);
    else if (!w->cfg.draft.pipelined && known == r->first_pos)
        world__fail(w, "request %" PRIu64 ": a run is sent before the answer to the last", q->id);
    w->report->guesses += r->n_guesses;
}

/* Where layers are windowed, a run's table of windowed pages begins with what a row sees that comes
 * at the beginning of the page to which the right positions have come, no earlier and no later; and
 * all that its rows see of that was issued. */
static void check_window(struct world *w, const struct world_replica *x, const struct msg_run *r,
                         const struct world_request *q)
{
    uint32_t page = w->cfg.page;
    uint32_t right = r->first_pos < q->n_tokens ? r->first_pos : q->n_tokens;
    uint32_t first = check__first_seen(w, right / page * page) / page;
    if (r->window_first != first || r->window_first + r->n_window_pages != r->n_pages) {
        world__fail(w,
                    "request %" PRIu64 ": %" PRIu32 " windowed pages from %" PRIu32
                    ", not from %" PRIu32 ", of %" PRIu32,
                    q->id, r->n_window_pages, r->window_first, first, r->n_pages);
        return;
    }
    for (uint32_t k = check__first_seen(w, r->first_pos); k < r->first_pos; k++)
        if (x->windowed[r->window_pages[k / page - first]].tags[k % page] != q->fed[k]) {
            world__fail(w, "request %" PRIu64 ": %" PRIu32 " is seen, but its page has gone", q->id,
                        k);
            return;
        }
    w->report->slid += r->window_first > 0;
}

static void note_row(struct world_page *page, const struct world *w, const struct msg_step *s,
                     const struct world_request *q, uint32_t p)
{
    page->tags[p % w->cfg.page] = q->fed[p];
    page->wrote_in = s->number;
    page->wrote_by = q->id;
    page->end = p + 1;
    page->tenant = q->tenant;
}

/* 5., 6.: a run's rows as the core has them written: all before the first are there, in pages that
 * it may read, and none is issued twice but after a preemption. */
static void check_issued(struct world *w, const struct msg_step *s, const struct msg_run *r,
                         struct world_request *q)
{
    struct world_page *pages = w->replicas[s->epoch.replica].pages;
    if (r->n_guesses < r->n_rows) memcpy(q->fed, q->tags, r->first_pos * sizeof *q->fed);
    for (uint32_t k = 0; k < r->first_pos; k++)
        if (pages[r->pages[k / w->cfg.page]].tags[k % w->cfg.page] != q->fed[k]) {
            world__fail(
                w, "request %" PRIu64 ": rows from %" PRIu32 ", but %" PRIu32 " was never issued",
                q->id, r->first_pos, k);
            return;
        }
    struct world_page *windowed = w->replicas[s->epoch.replica].windowed;
    if (w->cfg.attn_window) check_window(w, &w->replicas[s->epoch.replica], r, q);
    if (w->failed) return;
    uint32_t least = q->drafts ? q->right : q->issued;
    if (r->first_pos < least && preemptions(w) == q->preemptions)
        world__fail(w, "request %" PRIu64 ": rows from %" PRIu32 " again after %" PRIu32, q->id,
                    r->first_pos, least);
    check_guesses(w, s, r, q);
    if (r->attempt > q->lost + 1)
        world__fail(w, "request %" PRIu64 ": attempt %" PRIu32, q->id, r->attempt);
    q->issued = r->first_pos + r->n_rows;
    q->preemptions = w->preemptions;
    for (uint32_t p = r->first_pos; p < q->issued && p < WORLD_TOKENS_MAX; p++) {
        uint32_t at = p / w->cfg.page;
        q->fed[p] = check__mix(p ? q->fed[p - 1] : check__root(q->tenant),
                               (uint64_t)r->tokens[p - r->first_pos] + 1);
        note_row(&pages[r->pages[at]], w, s, q, p);
        if (w->cfg.attn_window)
            note_row(&windowed[r->window_pages[at - r->window_first]], w, s, q, p);
    }
}

/* Whether the core says that a request runs in a replica. */
static bool runs_in(const struct world *w, uint64_t request, uint32_t replica)
{
    for (uint32_t i = 0; i < core_n_sequences(w->core); i++) {
        struct core_sequence s = core_sequence_at(w->core, i);
        if (s.request == request) return s.running && s.replica == replica;
    }
    return false;
}

/* What a last stage keeps of a request is given up with the first Step after its end, or after it
 * was admitted to another replica. */
static void check_closed(struct world *w, const struct msg_step *s)
{
    uint32_t replica = s->epoch.replica;
    for (uint32_t i = 0; i < s->n_closed; i++) {
        struct world_request *q = check__find(w, s->closed[i]);
        if (!q || !q->told[replica] || (!q->ended && runs_in(w, q->id, replica)))
            world__fail(w, "request %" PRIu64 " is closed, but was not open", s->closed[i]);
        else
            q->told[replica] = false;
    }
    for (uint32_t i = 0; i < w->n_requests; i++) {
        const struct world_request *q = &w->requests[i];
        if (q->told[replica] && (q->ended || (q->was_running && q->replica != replica)))
            world__fail(w, "request %" PRIu64 " has ended or left, and is not closed", q->id);
    }
}

/* Steps are numbered without a gap, in one generation. */
static void check_number(struct world *w, const struct msg_step *s)
{
    struct world_replica *x = &w->replicas[s->epoch.replica];
    if (!epoch_eq(s->epoch, x->flight_epoch)) {
        x->flight_epoch = s->epoch;
        x->flight_first = x->flight_next = 1;
    }
    if (s->number != x->flight_next)
        world__fail(w, "Step %" PRIu64 " is issued, not %" PRIu64, s->number, x->flight_next);
    x->flight_next = s->number + 1;
    x->steps_now++;
}

/* 6. Positions in order; 7. attempts and rows within their limits. */
static void check_step(struct world *w, const struct msg_step *s)
{
    uint32_t rows = 0, logits = 0;
    if (s->epoch.replica >= w->cfg.n_replicas) {
        world__fail(w, "a Step of replica %" PRIu32, s->epoch.replica);
        return;
    }
    check_number(w, s);
    for (uint32_t i = 0; i < s->n_runs && !w->failed; i++) {
        const struct msg_run *r = &s->runs[i];
        rows += r->n_rows;
        logits += r->n_logits;
        if (r->kind == RUN_PROBE) continue;
        struct world_request *q = check__find(w, r->request);
        if (!q || q->ended || !q->submitted) {
            world__fail(w, "a Step with rows of request %" PRIu64 ", which has ended", r->request);
            return;
        }
        if (!q->begun_ns) q->begun_ns = w->now_ns;
        q->in_step = true;
        q->replica = s->epoch.replica;
        q->told[q->replica] |= r->has_open || r->embed;
        if (r->embed != (q->embed ? q->n_prompt : 0) || (q->embed && r->n_logits))
            world__fail(w, "request %" PRIu64 ": a run for an embedding of %" PRIu32 " rows", q->id,
                        r->embed);
        q->last_step = s->number;
        check_issued(w, s, r, q);
    }
    check_closed(w, s);
    if (rows != s->rows || rows > w->cfg.rows_max || logits > w->cfg.logits_max)
        world__fail(w, "Step %" PRIu64 " has %" PRIu32 " rows, %" PRIu32 " logits", s->number, rows,
                    logits);
}

/* A replica's generation has ended: nothing is written anywhere, nothing is in flight, nobody runs
 * there. */
static void check_loss(struct world *w, uint32_t replica)
{
    const struct world_replica *x = &w->replicas[replica];
    uint64_t oldest = x->result_step ? x->result_step : x->flight_first;
    w->n_lost_now++;
    w->hung_ns = 0;
    for (uint32_t i = 0; i < w->n_requests; i++) {
        struct world_request *r = &w->requests[i];
        if (!r->submitted || r->replica != replica) continue;
        r->lost++;
        r->lost_in_flight += r->last_step >= oldest && r->last_step > 0;
    }
    order__new_generation(w, replica);
    if (w->faultless && !w->ordering && !x->was_draining && !x->was_rebalancing)
        world__fail(w, "nothing broke, but a generation was lost");
}

/* Nobody speaks to a worker that said goodbye. */
static void check_spoken_to(struct world *w, struct instance to)
{
    for (uint32_t i = 0; i < w->n_gone && i < WORLD_GONE; i++)
        if (instance_eq(w->gone[i], to)) world__fail(w, "a message to a worker that said goodbye");
}

void check__action(struct world *w, const struct action *a)
{
    switch (a->type) {
    case ACT_TOKENS: check_tokens(w, a); break;
    case ACT_EMBEDDING: check_embedding(w, a); break;
    case ACT_END: check_terminal(w, a); break;
    case ACT_STEP: check_step(w, a->step); break;
    case ACT_LINK_CLOSE: check_loss(w, a->link.epoch.replica); break;
    case ACT_TO_WORKER:
        check_spoken_to(w, a->to_worker.instance);
        if (a->to_worker.msg->type == TO_ASSIGN) admin__assigned(w, a->to_worker.instance);
        break;
    default: break;
    }
}

/* ---- results ---- */

bool check__counts(struct world *w, const struct msg_result *m, enum lie lie, uint64_t lied)
{
    struct world_replica *x = &w->replicas[m->epoch.replica];
    bool counts = m->epoch.replica < w->cfg.n_replicas && epoch_eq(m->epoch, x->flight_epoch) &&
                  x->flight_first < x->flight_next && m->number == x->flight_first;
    if (!counts) return false;
    x->result_step = m->number;
    x->flight_first++;
    struct world_request *r = check__find(w, lied);
    if (r && lie == LIE_ERROR) r->erred = true;
    return true;
}

/* A result that lies counts for no request of its Step. An error of a run ends its request. */
void check__result(struct world *w, bool counted, enum lie lie, uint64_t lied)
{
    struct world_request *r = check__find(w, lied);
    bool live = r && r->submitted && (!r->ended || !r->was_ended);
    for (uint32_t i = 0; i < w->cfg.n_replicas; i++) w->replicas[i].result_step = 0;
    if (w->failed || !counted || lie == LIE_NONE || lie == LIE_CUT_SHORT || !live) return;
    if (lie == LIE_ERROR) {
        if (!r->ended || r->status != STATUS_INTERNAL)
            world__fail(w, "request %" PRIu64 " goes on over an error of its stage", r->id);
        return;
    }
    if (w->n_tokens_now)
        world__fail(w, "request %" PRIu64 " has tokens of a result that is a lie", r->id);
}

/* ---- pages ---- */

/* Positions that the core takes for right are: their rows were issued with the tokens that are
 * known. There are ever more of them, until the request is preempted or its generation is lost. */
static void check_right(struct world *w, const struct core_sequence *s)
{
    struct world_request *q = check__find(w, s->request);
    uint32_t least = s->n_issued < q->n_tokens ? s->n_issued : q->n_tokens;
    if (s->n_tokens != q->n_tokens || s->n_right != least || s->n_guessed < s->n_tokens ||
        (s->n_guessed > s->n_tokens && !q->drafts))
        world__fail(w,
                    "request %" PRIu64 ": %" PRIu32 " right rows of %" PRIu32 ", %" PRIu32
                    " tokens and %" PRIu32 " with guesses",
                    q->id, s->n_right, s->n_issued, s->n_tokens, s->n_guessed);
    q->right = s->n_right;
}

/* 3. An embedding that runs has all the pages that it will ever need: whole ones of its prompt, and
 * windowed ones as many as a chunk of it has with the window before. */
static void check_reserved(struct world *w, const struct core_sequence *s)
{
    const struct world_request *q = check__find(w, s->request);
    uint32_t page = w->cfg.page, window = w->cfg.attn_window;
    if (!s->running || !q->embed) return;
    uint32_t most = (window + page - 2) / page + (w->cfg.rows_max + 2 * page - 2) / page;
    bool windowed =
        !window || s->end_windowed == s->n_pages || s->end_windowed == s->first_windowed + most;
    if (s->n_pages * page < q->n_prompt || !windowed)
        world__fail(w,
                    "request %" PRIu64 ": an embedding runs with %" PRIu32
                    " pages, windowed ones from %" PRIu32 " to %" PRIu32,
                    q->id, s->n_pages, s->first_windowed, s->end_windowed);
}

/* 4. Conservation: a page is held by as many tables as it says, or cached, or free. */
static void check_pages(struct world *w, uint32_t replica)
{
    uint32_t count[WORLD_PAGES_MAX] = {0}, n_free = 0, n_cached = 0, n_held = 0;
    struct pages_stats told = core_pages(w->core, replica);
    for (uint32_t i = 0; i < core_n_sequences(w->core); i++) {
        struct core_sequence s = core_sequence_at(w->core, i);
        if (s.running && s.replica != replica) continue;
        for (uint32_t k = 0; k < s.n_pages; k++) count[s.pages[k]]++;
        if (s.n_pages * w->cfg.page < s.n_issued || s.n_right > s.n_issued ||
            (!s.running && s.n_pages))
            world__fail(w, "request %" PRIu64 ": %" PRIu32 " rows in %" PRIu32 " pages", s.request,
                        s.n_issued, s.n_pages);
        check_right(w, &s);
        check_reserved(w, &s);
    }
    for (uint32_t p = 0; p < w->cfg.n_pages; p++) {
        struct page_view v = core_page_at(w->core, replica, p);
        n_free += v.free;
        n_cached += !v.free && v.count == 0;
        n_held += v.count > 0;
        if (v.count != count[p] || (v.free && (v.entered || v.count)) ||
            (!v.free && !v.count && !v.entered))
            world__fail(w, "page %" PRIu32 " is in %" PRIu32 " tables, counted %" PRIu32, p,
                        count[p], v.count);
    }
    if (n_free != told.n_free || n_cached != told.n_cached || n_held != told.n_held ||
        n_free + n_cached + n_held != w->cfg.n_pages)
        world__fail(w,
                    "%" PRIu32 " free, %" PRIu32 " cached, %" PRIu32 " held of %" PRIu32 " pages",
                    n_free, n_cached, n_held, w->cfg.n_pages);
}

/* 4. The same of windowed pages: of each sequence there are those from one page on to the end of
 * its table, or where pages are reserved to an earlier one. One that nobody holds is attached to a
 * whole page. */
static void check_windowed(struct world *w, uint32_t replica)
{
    uint32_t count[WORLD_PAGES_MAX] = {0}, n_free = 0, n_cached = 0, n_held = 0;
    uint32_t n = core_n_windowed(w->core, replica);
    struct windowed_stats told = core_windowed(w->core, replica);
    if (!w->cfg.attn_window) return;
    for (uint32_t i = 0; i < core_n_sequences(w->core); i++) {
        struct core_sequence s = core_sequence_at(w->core, i);
        if (s.running && s.replica != replica) continue;
        if (s.end_windowed > s.n_pages || (s.n_pages && s.first_windowed > s.end_windowed))
            world__fail(w,
                        "request %" PRIu64 ": windowed pages from %" PRIu32 " to %" PRIu32
                        ", of %" PRIu32,
                        s.request, s.first_windowed, s.end_windowed, s.n_pages);
        for (uint32_t k = s.first_windowed; k < s.end_windowed; k++) count[s.windowed[k]]++;
    }
    for (uint32_t p = 0; p < n; p++) {
        struct windowed_view v = core_windowed_at(w->core, replica, p);
        bool attached = v.whole != WINDOWED_NONE;
        n_free += v.free;
        n_cached += !v.free && v.count == 0;
        n_held += v.count > 0;
        if (v.count != count[p] || (v.free && (attached || v.count)) ||
            (!v.free && !v.count && !attached))
            world__fail(w, "windowed page %" PRIu32 " is in %" PRIu32 " tables, counted %" PRIu32,
                        p, count[p], v.count);
    }
    if (n_free != told.n_free || n_cached != told.n_cached || n_held != told.n_held ||
        n_free + n_cached + n_held != n)
        world__fail(w,
                    "%" PRIu32 " free, %" PRIu32 " cached, %" PRIu32 " held of %" PRIu32
                    " windowed pages",
                    n_free, n_cached, n_held, n);
}

/* The page of the entry with this serial. */
static uint32_t page_of(const struct world *w, uint32_t replica, uint64_t serial)
{
    for (uint32_t p = 0; p < w->cfg.n_pages; p++)
        if (core_page_at(w->core, replica, p).serial == serial) return p;
    return UINT32_MAX;
}

/* The tag of the last position of an entry: of the tokens on its way from the root. False: an entry
 * on the way is missing. */
static bool tag_of_entry(const struct world *w, uint32_t replica, uint32_t page, uint64_t tenant,
                         uint64_t *ret_tag)
{
    struct page_view v = core_page_at(w->core, replica, page);
    uint64_t tag = check__root(tenant);
    if (v.parent) {
        uint32_t parent = page_of(w, replica, v.parent);
        if (parent == UINT32_MAX || !tag_of_entry(w, replica, parent, tenant, &tag)) return false;
    }
    for (uint32_t i = 0; i < w->cfg.page; i++) tag = check__mix(tag, (uint64_t)v.tokens[i] + 1);
    *ret_tag = tag;
    return true;
}

/* Whether a token of the page was not handed out by now, and is not of a prompt. */
static bool has_guesses(const struct world *w, const struct world_page *page)
{
    return page->wrote_by && page->end > w->requests[page->wrote_by - 1].n_tokens;
}

/* 5. Index truth: an entry has its parents, all its rows were issued with the tokens that it names,
 * and nothing is written to it later. */
static void check_index(struct world *w, uint32_t replica)
{
    for (uint32_t p = 0; p < w->cfg.n_pages && !w->failed; p++) {
        struct page_view v = core_page_at(w->core, replica, p);
        struct world_page *page = &w->replicas[replica].pages[p];
        uint64_t tag;
        if (!v.entered || (v.serial == page->serial && page->wrote_in == page->sealed_in)) continue;
        if (v.serial == page->serial)
            world__fail(w, "Step %" PRIu64 " writes page %" PRIu32 ", which is in the index",
                        page->wrote_in, p);
        else if (!tag_of_entry(w, replica, p, page->tenant, &tag))
            world__fail(w, "page %" PRIu32 " is in the index without its parents", p);
        else if (page->tags[w->cfg.page - 1] != tag)
            world__fail(w, "page %" PRIu32 " is in the index, but not what was written", p);
        else if (has_guesses(w, page))
            world__fail(w, "page %" PRIu32 " is in the index, with a guess in it", p);
        page->serial = v.serial;
        page->sealed_in = page->wrote_in;
    }
}

/* 5. A windowed page keeps what the whole page has to which it is attached, which is in the index;
 * and nothing is written to it later. */
static void check_attached(struct world *w, uint32_t replica)
{
    struct world_replica *x = &w->replicas[replica];
    for (uint32_t p = 0; p < core_n_windowed(w->core, replica) && !w->failed; p++) {
        struct windowed_view v = core_windowed_at(w->core, replica, p);
        struct world_page *page = &x->windowed[p];
        if (v.whole == WINDOWED_NONE) {
            page->serial = 0;
            continue;
        }
        uint64_t serial = core_page_at(w->core, replica, v.whole).serial;
        bool same = serial == page->serial && v.step == page->attached_in;
        if (serial && same && page->wrote_in == page->sealed_in) continue;
        if (!serial)
            world__fail(w, "windowed page %" PRIu32 " is attached to what is not in the index", p);
        else if (same)
            world__fail(w, "Step %" PRIu64 " writes windowed page %" PRIu32 ", which is attached",
                        page->wrote_in, p);
        else if (memcmp(page->tags, x->pages[v.whole].tags, w->cfg.page * sizeof *page->tags) != 0)
            world__fail(w, "windowed page %" PRIu32 " is attached to other tokens than its own", p);
        else if (has_guesses(w, page))
            world__fail(w, "windowed page %" PRIu32 " is attached, with a guess in it", p);
        page->serial = serial;
        page->attached_in = v.step;
        page->sealed_in = page->wrote_in;
    }
}

/* ---- time ---- */

/* The most urgent sequence that runs in a replica; where none does, nothing. */
static struct core_sequence first_of(const struct world *w, uint32_t replica)
{
    for (uint32_t i = 0; i < core_n_sequences(w->core); i++) {
        struct core_sequence s = core_sequence_at(w->core, i);
        if (s.running && s.replica == replica) return s;
    }
    return (struct core_sequence){.running = false};
}

/* 8. The most urgent sequence gains a position at least each window + 1 Steps. */
static void check_first(struct world *w, uint32_t replica)
{
    struct world_replica *x = &w->replicas[replica];
    struct world_first *f = &x->first;
    struct core_sequence s = first_of(w, replica);
    const struct world_request *q = s.running ? check__find(w, s.request) : NULL;
    if (!q) {
        *f = (struct world_first){0};
        return;
    }
    if (s.request != f->request || s.n_issued != f->n_issued || q->n_tokens != f->n_tokens)
        *f = (struct world_first){s.request, s.n_issued, q->n_tokens, 0};
    else
        f->steps += x->steps_now;
    if (f->steps > w->cfg.window + 1)
        world__fail(w,
                    "request %" PRIu64 ", the most urgent, has stood still for %" PRIu32 " Steps",
                    s.request, f->steps);
}

/* 8. Nobody outlives the deadline, or the time to wait for a replica. */
static void check_waits(struct world *w, bool ready)
{
    uint64_t wait_ns = w->cfg.replica_wait_ns, went_on = w->stalled_until_ns;
    for (uint32_t i = 0; i < w->n_requests; i++) {
        struct world_request *r = &w->requests[i];
        if (!r->submitted || r->ended) continue;
        uint64_t limit = r->deadline_at_ns, since = waits_since(w, r);
        if (w->now_ns > (limit > went_on ? limit : went_on) + DEADLINE_SLACK_NS)
            world__fail(w, "request %" PRIu64 " lives beyond its deadline", r->id);
        if (r->with != CORE_NO_REPLICA) r->drained_ns = w->now_ns; /* it drains */
        if (since < r->drained_ns) since = r->drained_ns;
        if (since + wait_ns < went_on) since = went_on - wait_ns;
        if (!ready && w->now_ns > since + wait_ns + (wait_ns ? WAIT_SLACK_NS : 0))
            world__fail(w, "request %" PRIu64 " waits longer than replica_wait", r->id);
    }
}

/* Sequences that run in a replica or wait for it. */
static uint32_t live_in(const struct world *w, uint32_t replica)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < core_n_sequences(w->core); i++)
        n += core_sequence_at(w->core, i).replica == replica;
    return n;
}

/* 8. Where something is due in a replica and nothing is in flight there, a Step follows. */
static void check_idle(struct world *w, uint32_t replica, bool ready)
{
    struct world_replica *x = &w->replicas[replica];
    uint32_t live = live_in(w, replica);
    if (!ready || live == 0 || core_in_flight(w->core, replica) > 0)
        x->idle_ns = 0;
    else if (!x->idle_ns)
        x->idle_ns = w->now_ns;
    else if (w->now_ns - x->idle_ns > IDLE_MOST_NS)
        world__fail(w, "%" PRIu32 " requests are live, but for %" PRIu64 " ms no Step is issued",
                    live, (w->now_ns - x->idle_ns) / NS_PER_MS);
}

static bool computes(const struct msg_replica_status *r)
{
    return r->ready || strcmp(r->state, "draining") == 0;
}

/* A request is with a replica that is ready, or was; where one is, none waits for one. */
static void check_routes(struct world *w, const struct msg_status *s)
{
    for (uint32_t i = 0; i < core_n_sequences(w->core) && !w->failed; i++) {
        struct core_sequence x = core_sequence_at(w->core, i);
        if (x.replica == CORE_NO_REPLICA && s->ready)
            world__fail(w, "request %" PRIu64 " waits for a replica, although one is ready",
                        x.request);
        if (x.replica != CORE_NO_REPLICA && !computes(&s->replicas[x.replica]))
            world__fail(w, "request %" PRIu64 " is sent to a replica that is not ready", x.request);
    }
}

/* 8. Where nothing else is broken, a hung compute thread is noticed within twice the limit. */
static void check_hung(struct world *w)
{
    bool alone = w->faults == (uint32_t)1 << FAULT_HANG && w->report->generations == 0;
    if (alone && w->hung_ns && w->now_ns - w->hung_ns > 2 * w->cfg.step_timeout_ns + HUNG_SLACK_NS)
        world__fail(w, "a compute thread hangs, and nobody noticed in %d ms",
                    (int)((w->now_ns - w->hung_ns) / NS_PER_MS));
}

/* 7. */
static void check_bounds(struct world *w)
{
    uint32_t n_running = 0;
    for (uint32_t i = 0; i < w->cfg.n_replicas; i++) {
        const struct world_replica *x = &w->replicas[i];
        uint64_t flight = x->flight_next - x->flight_first;
        uint32_t told = core_in_flight(w->core, i);
        if (told > w->cfg.window || told != flight)
            world__fail(w, "%" PRIu32 " Steps in flight, not %" PRIu64, told, flight);
    }
    for (uint32_t i = 0; i < w->n_requests; i++) n_running += w->requests[i].running;
    if (core_n_sequences(w->core) > w->cfg.max_live)
        world__fail(w, "%" PRIu32 " requests live", core_n_sequences(w->core));
    if (n_running > w->cfg.n_replicas * w->cfg.max_running)
        world__fail(w, "%" PRIu32 " requests run, %" PRIu32 " may", n_running, w->cfg.max_running);
}

static void check_client(struct world *w, uint64_t client)
{
    if (live_of(w, client) > w->cfg.max_per_client)
        world__fail(w, "%" PRIu32 " requests of one client live", live_of(w, client));
}

/* A generation whose probe differs from what is known to be right is not ready; and once faults
 * have stopped, one is ready in time. */
static void check_ready(struct world *w, const struct msg_status *s)
{
    bool ready = s->ready;
    if (ready || w->long_load || w->now_ns < w->faults_end_ns) w->ready_ns = w->now_ns;
    if (w->now_ns - w->ready_ns > (w->cripple < 0 ? READY_MOST_NS : SPARE_MOST_NS))
        world__fail(w, "faults have stopped, but for %d s no replica is ready",
                    (int)((w->now_ns - w->ready_ns) / NS_PER_S));
    for (uint32_t i = 0; i < w->cfg.n_replicas; i++) {
        struct world_replica *x = &w->replicas[i];
        bool new = s->replicas[i].ready && !x->was_ready;
        if (new && x->probe_wrong && w->ever_ready)
            world__fail(w, "ready, although the probe's logits are wrong");
        w->ever_ready |= new && !x->probe_wrong;
        x->was_ready = s->replicas[i].ready;
    }
    if (!ready && w->was_ready) w->unready_ns = w->now_ns;
}

void check__before(struct world *w)
{
    w->n_tokens_now = 0;
    w->n_lost_now = 0;
    for (uint32_t i = 0; i < w->cfg.n_replicas; i++) w->replicas[i].steps_now = 0;
    for (uint32_t i = 0; i < w->n_requests; i++) {
        struct world_request *r = &w->requests[i];
        r->in_step = false;
        r->was_ended = r->ended;
    }
}

void check__state(struct world *w, const struct event *e)
{
    struct msg_status s;
    core_status(w->core, &s);
    check_ready(w, &s);
    check_routes(w, &s);
    admin__state(w, &s);
    for (uint32_t i = 0; i < w->cfg.n_replicas; i++) {
        check_pages(w, i);
        if (!w->failed) check_index(w, i);
        if (!w->failed) check_windowed(w, i);
        if (!w->failed) check_attached(w, i);
    }
    order__state(w);
    for (uint32_t i = 0; i < w->cfg.n_replicas; i++) check_first(w, i);
    check_waits(w, s.ready);
    check_hung(w);
    for (uint32_t i = 0; i < w->cfg.n_replicas && e->type == EV_COMPOSE; i++)
        check_idle(w, i, computes(&s.replicas[i]));
    if (e->type == EV_SUBMIT) check_client(w, e->submit.client);
    check_bounds(w);
    w->was_ready = s.ready;
    w->preemptions = preemptions(w);
}

/* Once faults have stopped, all have ended, a replica is ready, and what is asked is answered. */
void check__end(struct world *w)
{
    struct msg_status s;
    core_status(w->core, &s);
    for (uint32_t i = 0; i < w->n_requests && !w->failed && !w->done; i++)
        if (!w->requests[i].ended)
            world__fail(w, "request %" PRIu64 " never ended", w->requests[i].id);
    if (!w->failed && !w->done)
        world__fail(w, "faults have stopped, but nothing is ready: %s", s.replicas[0].why);
    for (uint32_t i = 0; i < w->cfg.n_replicas && !w->failed; i++)
        if (core_pages(w->core, i).n_held != 0)
            world__fail(w, "all have ended, but %" PRIu32 " pages are held",
                        core_pages(w->core, i).n_held);
    for (uint32_t i = 0; i < w->cfg.n_replicas && !w->failed; i++) {
        struct windowed_stats told = core_windowed(w->core, i);
        w->report->windowed_evicted += told.evicted;
        if (told.n_held)
            world__fail(w, "all have ended, but %" PRIu32 " windowed pages are held", told.n_held);
    }
}
