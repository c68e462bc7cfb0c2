/* Messages between the coordinator and its workers: one put and one get each. */
#include "proto/wire_pb.h"

#include "common/base/mem.h"
#include "proto/cluster.pb-c.h"

#include <inttypes.h>
#include <string.h>

typedef Flotilla__Cluster__Step PbStep;
typedef Flotilla__Cluster__Run PbRun;
typedef Flotilla__Cluster__SampleOpen PbSampleOpen;
typedef Flotilla__Cluster__Epoch PbEpoch;
typedef Flotilla__Cluster__Timing PbTiming;
typedef Flotilla__Cluster__Result PbResult;
typedef Flotilla__Cluster__RunResult PbRunResult;
typedef Flotilla__Cluster__FromWorker PbFromWorker;
typedef Flotilla__Cluster__ToWorker PbToWorker;
typedef Flotilla__Cluster__SpeedPoint PbSpeedPoint;

static void set_epoch(PbEpoch *p, struct epoch e)
{
    flotilla__cluster__epoch__init(p);
    p->has_incarnation = p->has_replica = p->has_generation = 1;
    p->incarnation = e.incarnation;
    p->replica = e.replica;
    p->generation = e.generation;
}

static int get_epoch(const PbEpoch *p, struct epoch *ret, struct errmsg *em)
{
    if (!p || !p->has_incarnation || !p->has_replica || !p->has_generation || !p->generation)
        return wire__bad(em, "epoch");
    *ret = (struct epoch){p->incarnation, p->replica, p->generation};
    return 0;
}

static void set_timings(const struct msg_timing *from, uint32_t n, PbTiming *items,
                        PbTiming **pointers)
{
    for (uint32_t i = 0; i < n; i++) {
        flotilla__cluster__timing__init(&items[i]);
        items[i].has_stage = items[i].has_compute_ns = items[i].has_idle_ns = 1;
        items[i].stage = from[i].stage;
        items[i].compute_ns = from[i].compute_ns;
        items[i].idle_ns = from[i].idle_ns;
    }
    POINTERS(pointers, items, n);
}

static int get_timings(PbTiming **from, size_t n, struct msg_timing *to, uint32_t *ret_n,
                       struct errmsg *em)
{
    if (n > LIMIT_STAGES) return wire__bad(em, "timings");
    for (size_t i = 0; i < n; i++)
        to[i] = (struct msg_timing){from[i]->stage, from[i]->compute_ns, from[i]->idle_ns};
    *ret_n = (uint32_t)n;
    return 0;
}

/* ---- Step ---- */

struct step_room {
    PbRun runs[LIMIT_STEP_RUNS];
    PbRun *run_pointers[LIMIT_STEP_RUNS];
    Flotilla__Cluster__SampleOpen opens[LIMIT_STEP_RUNS];
    Flotilla__Sampling samplings[LIMIT_STEP_RUNS];
};

static void set_run(struct step_room *room, uint32_t i, const struct msg_run *r)
{
    PbRun *p = &room->runs[i];
    flotilla__cluster__run__init(p);
    p->has_request = p->has_attempt = p->has_sample = p->has_kind = p->has_first_pos =
        p->has_n_logits = 1;
    p->request = r->request;
    p->attempt = r->attempt;
    p->sample = r->sample;
    p->kind = (Flotilla__Cluster__RunKind)r->kind;
    p->first_pos = r->first_pos;
    p->n_logits = r->n_logits;
    p->n_tokens = r->n_rows;
    p->tokens = (int32_t *)(uintptr_t)r->tokens;
    p->n_pages = r->n_pages;
    p->pages = (uint32_t *)(uintptr_t)r->pages;
    p->has_window_first = r->window_first > 0;
    p->window_first = r->window_first;
    p->n_window_pages = r->n_window_pages;
    p->window_pages = (uint32_t *)(uintptr_t)r->window_pages;
    p->has_guesses = r->n_guesses > 0;
    p->guesses = r->n_guesses;
    p->has_embed = r->embed > 0;
    p->embed = r->embed;
    if (!r->has_open) return;
    Flotilla__Cluster__SampleOpen *open = &room->opens[i];
    flotilla__cluster__sample_open__init(open);
    wire__set_sampling(&room->samplings[i], &r->open.sampling, true);
    open->sampling = &room->samplings[i];
    SET(open, boundary, r->open.boundary);
    if (r->open.grammar_bytes)
        SET(open, grammar,
            ((ProtobufCBinaryData){r->open.grammar_bytes, (uint8_t *)(uintptr_t)r->open.grammar}));
    p->open = open;
}

void wire_put_step(const struct msg_step *m, struct buf *to)
{
    struct step_room room;
    PbTiming timings[LIMIT_STAGES], *timing_pointers[LIMIT_STAGES];
    PbEpoch epoch;
    PbStep s = FLOTILLA__CLUSTER__STEP__INIT;
    set_epoch(&epoch, m->epoch);
    s.has_version = s.has_number = s.has_rows = s.has_width = s.has_frame_bytes = 1;
    s.version = PROTO_VERSION;
    s.epoch = &epoch;
    s.number = m->number;
    s.rows = m->rows;
    s.width = m->width;
    s.frame_bytes = m->frame_bytes;
    for (uint32_t i = 0; i < m->n_runs; i++) set_run(&room, i, &m->runs[i]);
    POINTERS(room.run_pointers, room.runs, m->n_runs);
    s.n_runs = m->n_runs;
    s.runs = room.run_pointers;
    s.n_closed = m->n_closed;
    s.closed = (uint64_t *)(uintptr_t)m->closed;
    set_timings(m->timings, m->n_timings, timings, timing_pointers);
    s.n_timings = m->n_timings;
    s.timings = timing_pointers;
    wire__pack(&s.base, to);
}

static int get_run(const PbRun *p, struct msg_run *r, struct errmsg *em)
{
    if (!p->has_request) return wire__bad(em, "request");
    if (!p->has_first_pos || p->first_pos >= LIMIT_CONTEXT) return wire__bad(em, "first_pos");
    if (p->n_tokens == 0 || p->n_tokens > LIMIT_STEP_ROWS) return wire__bad(em, "tokens");
    for (size_t i = 0; i < p->n_tokens; i++) /* which would take more bytes on the way on */
        if (p->tokens[i] < 0) return wire__bad(em, "tokens");
    if (p->n_logits > p->n_tokens) return wire__bad(em, "n_logits");
    if (p->guesses > p->n_logits) return wire__bad(em, "guesses"); /* each is to be verified */
    uint64_t end = (uint64_t)p->first_pos + p->n_tokens;
    if (p->n_pages != (end + LIMIT_PAGE - 1) / LIMIT_PAGE) return wire__bad(em, "pages");
    if (p->window_first > p->first_pos / LIMIT_PAGE) return wire__bad(em, "window_first");
    if (p->n_window_pages && p->n_window_pages != p->n_pages - p->window_first)
        return wire__bad(em, "window_pages");
    if ((unsigned)p->kind > RUN_PROBE) return wire__bad(em, "kind");
    if (p->embed && (p->embed > LIMIT_CONTEXT || end > p->embed || p->n_logits || p->open ||
                     (unsigned)p->kind != RUN_PREFILL))
        return wire__bad(em, "embed");
    *r = (struct msg_run){.request = p->request,
                          .attempt = p->attempt,
                          .sample = p->sample,
                          .kind = (enum run_kind)p->kind,
                          .first_pos = p->first_pos,
                          .n_rows = (uint32_t)p->n_tokens,
                          .n_logits = p->n_logits,
                          .n_pages = (uint32_t)p->n_pages,
                          .n_guesses = p->guesses,
                          .embed = p->embed,
                          .tokens = p->tokens,
                          .pages = p->pages,
                          .window_first = p->window_first,
                          .n_window_pages = (uint32_t)p->n_window_pages,
                          .window_pages = p->window_pages,
                          .has_open = p->open != NULL};
    if (!p->open) return 0;
    r->open.boundary = p->open->boundary;
    if (p->open->has_grammar) {
        if (p->open->grammar.len == 0 || p->open->grammar.len > LIMIT_GRAMMAR_BYTES)
            return wire__bad(em, "grammar");
        r->open.grammar = p->open->grammar.data;
        r->open.grammar_bytes = p->open->grammar.len;
    }
    return wire__get_sampling(p->open->sampling, &r->open.sampling, em);
}

int wire_get_step(const void *data, size_t n, struct arena *a, struct msg_step *ret,
                  struct errmsg *em)
{
    if (n > LIMIT_STEP_BYTES) return wire__bad(em, "step");
    const size_t elements = WIRE__ELEMENTS(LIMIT_STEP_RUNS, PbRun, struct msg_run) +
                            WIRE__ELEMENTS(LIMIT_STEP_RUNS, PbSampleOpen, Flotilla__Sampling) +
                            WIRE__ELEMENTS(LIMIT_STAGES, PbTiming, struct msg_timing);
    const PbStep *s =
        wire__unpack_elements(&flotilla__cluster__step__descriptor, data, n, elements, a, em);
    if (!s) return ERR_PROTO;
    if (s->version != PROTO_VERSION) return wire__bad(em, "version");
    if (s->n_runs == 0 || s->n_runs > LIMIT_STEP_RUNS) return wire__bad(em, "runs");
    if (!s->has_number || s->number == 0) return wire__bad(em, "number");
    if (s->n_closed > 2 * LIMIT_LIVE) return wire__bad(em, "closed");
    struct msg_run *runs = arena_alloc(a, s->n_runs * sizeof *runs);
    if (!runs) return wire__bad(em, "runs");
    *ret = (struct msg_step){.number = s->number,
                             .rows = s->rows,
                             .width = s->width,
                             .frame_bytes = s->frame_bytes,
                             .n_runs = (uint32_t)s->n_runs,
                             .runs = runs,
                             .n_closed = (uint32_t)s->n_closed,
                             .closed = s->closed};
    int rc = get_epoch(s->epoch, &ret->epoch, em);
    uint64_t rows = 0, logits = 0, embeds = 0;
    for (size_t i = 0; i < s->n_runs && rc == 0; i++) {
        rc = get_run(s->runs[i], &runs[i], em);
        embeds += rc == 0 && msg_run_embeds(&runs[i]);
        rows += rc == 0 ? runs[i].n_rows : 0;
        logits += rc == 0 ? runs[i].n_logits : 0;
    }
    if (rc == 0) rc = get_timings(s->timings, s->n_timings, ret->timings, &ret->n_timings, em);
    if (rc < 0) return rc;
    if (rows != s->rows || rows > LIMIT_STEP_ROWS) return wire__bad(em, "rows");
    if (logits > LIMIT_STEP_LOGITS) return wire__bad(em, "n_logits");
    if (s->width == 0 || s->width > LIMIT_WIDTH) return wire__bad(em, "width");
    if (embeds * s->width > LIMIT_EMBEDDED) return wire__bad(em, "embed");
    if (s->frame_bytes && s->frame_bytes != rows * s->width * sizeof(float))
        return wire__bad(em, "frame_bytes");
    return 0;
}

/* ---- Result ---- */

void wire_put_result(const struct msg_result *m, struct buf *to)
{
    PbRunResult runs[LIMIT_STEP_RUNS], *run_pointers[LIMIT_STEP_RUNS];
    PbTiming timings[LIMIT_STAGES], *timing_pointers[LIMIT_STAGES];
    PbEpoch epoch;
    PbResult r = FLOTILLA__CLUSTER__RESULT__INIT;
    set_epoch(&epoch, m->epoch);
    r.has_version = r.has_number = r.has_digest = 1;
    r.version = PROTO_VERSION;
    r.epoch = &epoch;
    r.number = m->number;
    r.digest = m->digest;
    for (uint32_t i = 0; i < m->n_runs; i++) {
        const struct msg_run_result *x = &m->runs[i];
        flotilla__cluster__run_result__init(&runs[i]);
        runs[i].has_request = runs[i].has_attempt = runs[i].has_sample = runs[i].has_first_pos = 1;
        runs[i].request = x->request;
        runs[i].attempt = x->attempt;
        runs[i].sample = x->sample;
        runs[i].first_pos = x->first_pos;
        runs[i].n_tokens = x->n_tokens;
        runs[i].tokens = (int32_t *)(uintptr_t)x->tokens;
        runs[i].has_dead = x->dead;
        runs[i].dead = x->dead;
        if (x->error && x->error[0]) runs[i].error = (char *)(uintptr_t)x->error;
        runs[i].n_embedding = x->n_embedding;
        runs[i].embedding = (float *)(uintptr_t)x->embedding;
        if (!x->logprobs.chosen) continue;
        runs[i].n_logprobs = x->n_tokens;
        runs[i].logprobs = (float *)(uintptr_t)x->logprobs.chosen;
        runs[i].n_top_ids = runs[i].n_top_logprobs = (size_t)x->n_tokens * x->logprobs.n_top;
        runs[i].top_ids = (int32_t *)(uintptr_t)x->logprobs.top_ids;
        runs[i].top_logprobs = (float *)(uintptr_t)x->logprobs.top;
    }
    POINTERS(run_pointers, runs, m->n_runs);
    r.n_runs = m->n_runs;
    r.runs = run_pointers;
    set_timings(m->timings, m->n_timings, timings, timing_pointers);
    r.n_timings = m->n_timings;
    r.timings = timing_pointers;
    wire__pack(&r.base, to);
}

int wire_get_result(const void *data, size_t n, struct arena *a, struct msg_result *ret,
                    struct errmsg *em)
{
    if (n > LIMIT_RESULT_BYTES) return wire__bad(em, "result");
    const size_t elements = WIRE__ELEMENTS(LIMIT_STEP_RUNS, PbRunResult, struct msg_run_result) +
                            WIRE__ELEMENTS(LIMIT_STAGES, PbTiming, struct msg_timing);
    const PbResult *r =
        wire__unpack_elements(&flotilla__cluster__result__descriptor, data, n, elements, a, em);
    if (!r) return ERR_PROTO;
    if (r->version != PROTO_VERSION) return wire__bad(em, "version");
    if (r->n_runs > LIMIT_STEP_RUNS) return wire__bad(em, "runs");
    struct msg_run_result *runs = arena_alloc(a, (r->n_runs + 1) * sizeof *runs);
    if (!runs) return wire__bad(em, "runs");
    size_t embedded = 0;
    for (size_t i = 0; i < r->n_runs; i++) {
        const PbRunResult *x = r->runs[i];
        if (!x->has_request || x->first_pos > LIMIT_CONTEXT || x->n_tokens > LIMIT_STEP_LOGITS)
            return wire__bad(em, "runs");
        struct msg_logprobs logprobs;
        if (!wire__get_logprobs(x->n_tokens, x->n_logprobs, x->logprobs, x->n_top_ids, x->top_ids,
                                x->n_top_logprobs, x->top_logprobs, &logprobs))
            return wire__bad(em, "logprobs");
        embedded += x->n_embedding;
        if (embedded > LIMIT_EMBEDDED || (x->n_embedding && x->n_tokens))
            return wire__bad(em, "embedding");
        runs[i] = (struct msg_run_result){.request = x->request,
                                          .attempt = x->attempt,
                                          .sample = x->sample,
                                          .first_pos = x->first_pos,
                                          .n_tokens = (uint32_t)x->n_tokens,
                                          .tokens = x->tokens,
                                          .dead = x->dead,
                                          .error = x->error,
                                          .logprobs = logprobs,
                                          .embedding = x->embedding,
                                          .n_embedding = (uint32_t)x->n_embedding};
    }
    *ret = (struct msg_result){
        .number = r->number, .digest = r->digest, .n_runs = (uint32_t)r->n_runs, .runs = runs};
    int rc = get_epoch(r->epoch, &ret->epoch, em);
    if (rc == 0) rc = get_timings(r->timings, r->n_timings, ret->timings, &ret->n_timings, em);
    return rc;
}

/* ---- control ---- */

static void set_memory(Flotilla__Cluster__Memory *p, const struct msg_memory *m)
{
    SET(p, machine, m->machine);
    SET(p, machine_free, m->machine_free);
    SET(p, group, m->group);
    SET(p, group_free, m->group_free);
    SET(p, held, m->held);
    SET(p, held_pages, m->held_pages);
}

/* What a worker does not tell is unknown. */
static void get_memory(const Flotilla__Cluster__Memory *p, struct msg_memory *ret)
{
    if (!p) return;
    *ret = (struct msg_memory){.machine = p->machine,
                               .machine_free = p->machine_free,
                               .group = p->group,
                               .group_free = p->group_free,
                               .held = p->held,
                               .held_pages = p->held_pages};
}

static void set_heartbeat(Flotilla__Cluster__Heartbeat *p, const struct msg_heartbeat *h)
{
    SET(p, step_received, h->step_received);
    SET(p, step_done, h->step_done);
    SET(p, read_bytes, h->read_bytes);
    SET(p, resident_bytes, h->resident_bytes);
    SET(p, weights_bytes, h->weights_bytes);
    SET(p, kv_bytes, h->kv_bytes);
    SET(p, rows, h->rows);
    SET(p, activation_bytes_in, h->activation_bytes_in);
    SET(p, activation_bytes_out, h->activation_bytes_out);
    SET(p, messages_dropped, h->messages_dropped);
    SET(p, moves, h->moves);
    SET(p, cpu_wait_ns, h->cpu_wait_ns);
}

static void set_points(const struct msg_speed_point *from, uint32_t n, PbSpeedPoint *items,
                       PbSpeedPoint **pointers)
{
    for (uint32_t i = 0; i < n; i++) {
        flotilla__cluster__speed_point__init(&items[i]);
        SET(&items[i], rows, from[i].rows);
        SET(&items[i], ns, from[i].ns);
    }
    POINTERS(pointers, items, n);
}

struct speed_room {
    PbSpeedPoint layer[LIMIT_SPEED_POINTS], head[LIMIT_SPEED_POINTS];
    PbSpeedPoint *layers[LIMIT_SPEED_POINTS], *heads[LIMIT_SPEED_POINTS];
};

static void set_speed(Flotilla__Cluster__Speed *p, const struct msg_speed *s, const char *text,
                      struct speed_room *room)
{
    set_points(s->layer, s->n_layer, room->layer, room->layers);
    set_points(s->head, s->n_head, room->head, room->heads);
    p->n_layer = s->n_layer;
    p->layer = room->layers;
    p->n_head = s->n_head;
    p->head = room->heads;
    SET(p, header_digest, s->header_digest);
    SET(p, kv_type, s->kv_type);
    SET(p, threads, s->threads);
    SET(p, layer_bytes, s->layer_bytes);
    SET(p, depth, s->depth);
    SET(p, position_ps, s->position_ps);
    p->text = (char *)(uintptr_t)text;
}

static int get_points(PbSpeedPoint **from, size_t n, struct msg_speed_point *to, uint32_t *ret_n,
                      const char *field, struct errmsg *em)
{
    if (n > LIMIT_SPEED_POINTS) return wire__bad(em, field);
    for (size_t i = 0; i < n; i++) {
        if (from[i]->rows <= (i ? from[i - 1]->rows : 0) || from[i]->rows > LIMIT_STEP_ROWS)
            return wire__bad(em, field);
        if (from[i]->ns == 0 || from[i]->ns > LIMIT_SPEED_NS) return wire__bad(em, field);
        to[i] = (struct msg_speed_point){from[i]->rows, from[i]->ns};
    }
    *ret_n = (uint32_t)n;
    return 0;
}

static int get_speed(const Flotilla__Cluster__Speed *p, struct msg_from_worker *ret,
                     struct errmsg *em)
{
    struct msg_speed *s = &ret->speed;
    int rc = get_points(p->layer, p->n_layer, s->layer, &s->n_layer, "layer", em);
    if (rc == 0) rc = get_points(p->head, p->n_head, s->head, &s->n_head, "head", em);
    if (rc == 0) rc = wire__copy_text(p->text, ret->text, sizeof ret->text, "text", em);
    if (rc < 0) return rc;
    if ((s->n_layer == 0) != (s->n_head == 0)) return wire__bad(em, "head");
    if (s->n_layer && p->layer_bytes == 0) return wire__bad(em, "layer_bytes");
    if (p->depth > LIMIT_CONTEXT) return wire__bad(em, "depth");
    if (p->position_ps > LIMIT_POSITION_PS) return wire__bad(em, "position_ps");
    s->header_digest = p->header_digest;
    s->kv_type = p->kv_type;
    s->threads = p->threads;
    s->layer_bytes = p->layer_bytes;
    s->depth = p->depth;
    s->position_ps = p->position_ps;
    return 0;
}

static void set_hello(Flotilla__Cluster__Hello *p, Flotilla__Cluster__Holding *holding,
                      const struct msg_hello *m)
{
    p->name = (char *)(uintptr_t)m->name;
    p->isa = (char *)(uintptr_t)m->isa;
    SET(p, threads, m->threads);
    SET(p, pid, m->pid);
    SET(holding, model_digest, m->holding.model_digest);
    SET(holding, layer_first, m->holding.layer_first);
    SET(holding, layer_last, m->holding.layer_last);
    if (m->holds) p->holding = holding;
    SET(p, verifies, m->verifies);
    SET(p, embeds, m->embeds);
}

void wire_put_from_worker(const struct msg_from_worker *m, struct buf *to)
{
    PbFromWorker f = FLOTILLA__CLUSTER__FROM_WORKER__INIT;
    Flotilla__Cluster__Hello hello = FLOTILLA__CLUSTER__HELLO__INIT;
    Flotilla__Cluster__Holding holding = FLOTILLA__CLUSTER__HOLDING__INIT;
    Flotilla__Cluster__Memory memory = FLOTILLA__CLUSTER__MEMORY__INIT;
    Flotilla__Cluster__LoadProgress progress = FLOTILLA__CLUSTER__LOAD_PROGRESS__INIT;
    Flotilla__Cluster__Ready ready = FLOTILLA__CLUSTER__READY__INIT;
    Flotilla__Cluster__Linked linked = FLOTILLA__CLUSTER__LINKED__INIT;
    Flotilla__Cluster__Heartbeat heartbeat = FLOTILLA__CLUSTER__HEARTBEAT__INIT;
    Flotilla__Cluster__Fault fault = FLOTILLA__CLUSTER__FAULT__INIT;
    Flotilla__Cluster__Goodbye goodbye = FLOTILLA__CLUSTER__GOODBYE__INIT;
    Flotilla__Cluster__Speed speed = FLOTILLA__CLUSTER__SPEED__INIT;
    struct speed_room room;
    PbEpoch epoch, *e = m->has_epoch ? &epoch : NULL;
    set_epoch(&epoch, m->epoch);
    SET(&f, version, m->version);
    SET(&f, instance_hi, m->instance.hi);
    SET(&f, instance_lo, m->instance.lo);
    set_memory(&memory, &m->memory);
    switch (m->type) {
    case FROM_HELLO:
        set_hello(&hello, &holding, &m->hello);
        hello.memory = &memory;
        f.body_case = FLOTILLA__CLUSTER__FROM_WORKER__BODY_HELLO;
        f.hello = &hello;
        break;
    case FROM_LOAD_PROGRESS:
        progress.epoch = e;
        SET(&progress, bytes_done, m->bytes_done);
        SET(&progress, bytes_total, m->bytes_total);
        f.body_case = FLOTILLA__CLUSTER__FROM_WORKER__BODY_LOAD_PROGRESS;
        f.load_progress = &progress;
        break;
    case FROM_READY:
        ready.epoch = e;
        ready.data_endpoint = (char *)(uintptr_t)m->endpoint;
        f.body_case = FLOTILLA__CLUSTER__FROM_WORKER__BODY_READY;
        f.ready = &ready;
        break;
    case FROM_LINKED:
        linked.epoch = e;
        f.body_case = FLOTILLA__CLUSTER__FROM_WORKER__BODY_LINKED;
        f.linked = &linked;
        break;
    case FROM_HEARTBEAT:
        heartbeat.epoch = e;
        set_heartbeat(&heartbeat, &m->heartbeat);
        heartbeat.memory = &memory;
        f.body_case = FLOTILLA__CLUSTER__FROM_WORKER__BODY_HEARTBEAT;
        f.heartbeat = &heartbeat;
        break;
    case FROM_FAULT:
        fault.epoch = e;
        SET(&fault, downstream, m->downstream);
        fault.text = (char *)(uintptr_t)m->text;
        f.body_case = FLOTILLA__CLUSTER__FROM_WORKER__BODY_FAULT;
        f.fault = &fault;
        break;
    case FROM_GOODBYE:
        f.body_case = FLOTILLA__CLUSTER__FROM_WORKER__BODY_GOODBYE;
        f.goodbye = &goodbye;
        break;
    case FROM_SPEED:
        set_speed(&speed, &m->speed, m->text, &room);
        f.body_case = FLOTILLA__CLUSTER__FROM_WORKER__BODY_SPEED;
        f.speed = &speed;
        break;
    }
    wire__pack(&f.base, to);
}

static int get_hello(const Flotilla__Cluster__Hello *p, struct msg_hello *ret, struct errmsg *em)
{
    int rc = wire__copy_text(p->name, ret->name, sizeof ret->name, "name", em);
    if (rc == 0 && !ret->name[0]) return wire__bad(em, "name"); /* faults are counted by it */
    if (rc == 0) rc = wire__copy_text(p->isa, ret->isa, sizeof ret->isa, "isa", em);
    if (rc < 0) return rc;
    ret->threads = p->threads;
    ret->pid = p->pid;
    ret->holds = p->holding != NULL;
    ret->verifies = p->verifies;
    ret->embeds = p->embeds;
    if (p->holding)
        ret->holding = (struct msg_holding){p->holding->model_digest, p->holding->layer_first,
                                            p->holding->layer_last};
    return 0;
}

static int optional_epoch(const PbEpoch *p, struct msg_from_worker *ret, struct errmsg *em)
{
    ret->has_epoch = p != NULL;
    return p ? get_epoch(p, &ret->epoch, em) : 0;
}

static int needed_epoch(const PbEpoch *p, struct msg_from_worker *ret, struct errmsg *em)
{
    ret->has_epoch = true;
    return get_epoch(p, &ret->epoch, em);
}

static int get_heartbeat(const Flotilla__Cluster__Heartbeat *h, struct msg_from_worker *ret,
                         struct errmsg *em)
{
    ret->heartbeat = (struct msg_heartbeat){
        .step_received = h->step_received,
        .step_done = h->step_done,
        .read_bytes = h->read_bytes,
        .resident_bytes = h->resident_bytes,
        .weights_bytes = h->weights_bytes,
        .kv_bytes = h->kv_bytes,
        .rows = h->rows,
        .activation_bytes_in = h->activation_bytes_in,
        .activation_bytes_out = h->activation_bytes_out,
        .messages_dropped = h->messages_dropped,
        .moves = h->moves,
        .cpu_wait_ns = h->cpu_wait_ns,
    };
    return optional_epoch(h->epoch, ret, em);
}

int wire_get_from_worker(const void *data, size_t n, struct arena *a, struct msg_from_worker *ret,
                         struct errmsg *em)
{
    if (n > LIMIT_CONTROL_BYTES) return wire__bad(em, "message");
    const size_t elements =
        WIRE__ELEMENTS(2 * LIMIT_SPEED_POINTS, PbSpeedPoint, struct msg_speed_point);
    const PbFromWorker *f = wire__unpack_elements(&flotilla__cluster__from_worker__descriptor, data,
                                                  n, elements, a, em);
    if (!f) return ERR_PROTO;
    if (!f->has_instance_hi || !f->has_instance_lo) return wire__bad(em, "instance");
    *ret = (struct msg_from_worker){.version = f->version,
                                    .instance = {f->instance_hi, f->instance_lo}};
    int rc;
    switch (f->body_case) {
    case FLOTILLA__CLUSTER__FROM_WORKER__BODY_HELLO:
        ret->type = FROM_HELLO;
        get_memory(f->hello->memory, &ret->memory);
        return get_hello(f->hello, &ret->hello, em);
    case FLOTILLA__CLUSTER__FROM_WORKER__BODY_LOAD_PROGRESS:
        ret->type = FROM_LOAD_PROGRESS;
        ret->bytes_done = f->load_progress->bytes_done;
        ret->bytes_total = f->load_progress->bytes_total;
        return needed_epoch(f->load_progress->epoch, ret, em);
    case FLOTILLA__CLUSTER__FROM_WORKER__BODY_READY:
        ret->type = FROM_READY;
        rc = wire__copy_text(f->ready->data_endpoint, ret->endpoint, sizeof ret->endpoint,
                             "data_endpoint", em);
        return rc < 0 ? rc : needed_epoch(f->ready->epoch, ret, em);
    case FLOTILLA__CLUSTER__FROM_WORKER__BODY_LINKED:
        ret->type = FROM_LINKED;
        return needed_epoch(f->linked->epoch, ret, em);
    case FLOTILLA__CLUSTER__FROM_WORKER__BODY_HEARTBEAT:
        ret->type = FROM_HEARTBEAT;
        get_memory(f->heartbeat->memory, &ret->memory);
        return get_heartbeat(f->heartbeat, ret, em);
    case FLOTILLA__CLUSTER__FROM_WORKER__BODY_FAULT:
        ret->type = FROM_FAULT;
        ret->downstream = f->fault->downstream;
        rc = wire__copy_text(f->fault->text, ret->text, sizeof ret->text, "text", em);
        return rc < 0 ? rc : needed_epoch(f->fault->epoch, ret, em);
    case FLOTILLA__CLUSTER__FROM_WORKER__BODY_GOODBYE: ret->type = FROM_GOODBYE; return 0;
    case FLOTILLA__CLUSTER__FROM_WORKER__BODY_SPEED:
        ret->type = FROM_SPEED;
        return get_speed(f->speed, ret, em);
    default: return wire__bad(em, "body");
    }
}

static void set_key(protobuf_c_boolean *has, ProtobufCBinaryData *to, const struct key *key)
{
    *has = key_is_set(key);
    if (*has)
        *to = (ProtobufCBinaryData){.len = KEY_BYTES, .data = (uint8_t *)(uintptr_t)key->bytes};
}

static int get_key(protobuf_c_boolean has, ProtobufCBinaryData from, struct key *ret,
                   const char *field, struct errmsg *em)
{
    *ret = (struct key){{0}};
    if (!has) return 0;
    if (from.len != KEY_BYTES) return wire__bad(em, field);
    memcpy(ret, from.data, sizeof *ret);
    return key_is_set(ret) ? 0 : wire__bad(em, field);
}

void wire_put_to_worker(const struct msg_to_worker *m, struct buf *to)
{
    PbToWorker t = FLOTILLA__CLUSTER__TO_WORKER__INIT;
    Flotilla__Cluster__Assign assign = FLOTILLA__CLUSTER__ASSIGN__INIT;
    Flotilla__Cluster__Connect connect = FLOTILLA__CLUSTER__CONNECT__INIT;
    Flotilla__Cluster__Refuse refuse = FLOTILLA__CLUSTER__REFUSE__INIT;
    Flotilla__Cluster__Hello who = FLOTILLA__CLUSTER__HELLO__INIT;
    Flotilla__Cluster__Alive alive = FLOTILLA__CLUSTER__ALIVE__INIT;
    Flotilla__Cluster__Leave leave = FLOTILLA__CLUSTER__LEAVE__INIT;
    Flotilla__Cluster__Calibrate calibrate = FLOTILLA__CLUSTER__CALIBRATE__INIT;
    PbEpoch epoch;
    set_epoch(&epoch, m->epoch);
    SET(&t, version, m->version);
    switch (m->type) {
    case TO_ASSIGN:
        assign.epoch = &epoch;
        assign.model_path = (char *)(uintptr_t)m->assign.model_path;
        SET(&assign, model_digest, m->assign.model_digest);
        SET(&assign, layer_first, m->assign.layer_first);
        SET(&assign, layer_last, m->assign.layer_last);
        SET(&assign, kv_type, m->assign.kv_type);
        SET(&assign, n_pages, m->assign.n_pages);
        if (m->assign.n_window_pages) SET(&assign, n_window_pages, m->assign.n_window_pages);
        SET(&assign, rows_max, m->assign.rows_max);
        SET(&assign, logits_max, m->assign.logits_max);
        SET(&assign, window, m->assign.window);
        SET(&assign, plaintext, m->assign.plaintext);
        SET(&assign, header_digest, m->assign.header_digest);
        SET(&assign, ctx, m->assign.ctx);
        SET(&assign, threads, m->assign.threads);
        set_key(&assign.has_upstream_key, &assign.upstream_key, &m->assign.upstream);
        assign.n_tensor_hashes = m->assign.n_tensors;
        assign.tensor_hashes = (uint64_t *)(uintptr_t)m->assign.tensor_hashes;
        t.body_case = FLOTILLA__CLUSTER__TO_WORKER__BODY_ASSIGN;
        t.assign = &assign;
        break;
    case TO_CONNECT:
        connect.epoch = &epoch;
        connect.endpoint = (char *)(uintptr_t)m->text;
        set_key(&connect.has_key, &connect.key, &m->key);
        t.body_case = FLOTILLA__CLUSTER__TO_WORKER__BODY_CONNECT;
        t.connect = &connect;
        break;
    case TO_REFUSE:
        refuse.text = (char *)(uintptr_t)m->text;
        t.body_case = FLOTILLA__CLUSTER__TO_WORKER__BODY_REFUSE;
        t.refuse = &refuse;
        break;
    case TO_WHO:
        t.body_case = FLOTILLA__CLUSTER__TO_WORKER__BODY_WHO;
        t.who = &who;
        break;
    case TO_ALIVE:
        t.body_case = FLOTILLA__CLUSTER__TO_WORKER__BODY_ALIVE;
        t.alive = &alive;
        break;
    case TO_LEAVE:
        leave.text = (char *)(uintptr_t)m->text;
        t.body_case = FLOTILLA__CLUSTER__TO_WORKER__BODY_LEAVE;
        t.leave = &leave;
        break;
    case TO_CALIBRATE:
        calibrate.model_path = (char *)(uintptr_t)m->calibrate.model_path;
        SET(&calibrate, header_digest, m->calibrate.header_digest);
        SET(&calibrate, kv_type, m->calibrate.kv_type);
        SET(&calibrate, threads, m->calibrate.threads);
        t.body_case = FLOTILLA__CLUSTER__TO_WORKER__BODY_CALIBRATE;
        t.calibrate = &calibrate;
        break;
    }
    wire__pack(&t.base, to);
}

static int get_assign(const Flotilla__Cluster__Assign *p, struct msg_to_worker *ret,
                      struct errmsg *em)
{
    struct msg_assign *a = &ret->assign;
    int rc = get_epoch(p->epoch, &ret->epoch, em);
    if (rc == 0)
        rc = wire__copy_path(p->model_path, a->model_path, sizeof a->model_path, "model_path", em);
    if (rc < 0) return rc;
    a->model_digest = p->model_digest;
    a->layer_first = p->layer_first;
    a->layer_last = p->layer_last;
    a->kv_type = p->kv_type;
    a->n_pages = p->n_pages;
    a->n_window_pages = p->n_window_pages;
    a->rows_max = p->rows_max;
    a->logits_max = p->logits_max;
    a->window = p->window;
    a->plaintext = p->plaintext;
    a->header_digest = p->header_digest;
    a->ctx = p->ctx;
    a->threads = p->threads;
    if (p->n_tensor_hashes > LIMIT_SLICE_TENSORS) return wire__bad(em, "tensor_hashes");
    a->n_tensors = (uint32_t)p->n_tensor_hashes;
    a->tensor_hashes = p->tensor_hashes;
    if (a->ctx == 0 || a->ctx > LIMIT_CONTEXT) return wire__bad(em, "ctx");
    if (a->layer_first > a->layer_last) return wire__bad(em, "layers");
    if (a->n_pages == 0) return wire__bad(em, "n_pages");
    if (a->n_window_pages > a->n_pages) return wire__bad(em, "n_window_pages");
    if (a->rows_max == 0 || a->rows_max > LIMIT_STEP_ROWS) return wire__bad(em, "rows_max");
    if (a->logits_max == 0 || a->logits_max > LIMIT_STEP_LOGITS) return wire__bad(em, "logits_max");
    if (a->window == 0 || a->window > LIMIT_WINDOW) return wire__bad(em, "window");
    return get_key(p->has_upstream_key, p->upstream_key, &a->upstream, "upstream_key", em);
}

static int get_calibrate(const Flotilla__Cluster__Calibrate *p, struct msg_calibrate *ret,
                         struct errmsg *em)
{
    ret->header_digest = p->header_digest;
    ret->kv_type = p->kv_type;
    ret->threads = p->threads;
    return wire__copy_path(p->model_path, ret->model_path, sizeof ret->model_path, "model_path",
                           em);
}

int wire_get_to_worker(const void *data, size_t n, struct arena *a, struct msg_to_worker *ret,
                       struct errmsg *em)
{
    if (n > LIMIT_CONTROL_BYTES) return wire__bad(em, "message");
    const PbToWorker *t = wire__unpack(&flotilla__cluster__to_worker__descriptor, data, n, a, em);
    if (!t) return ERR_PROTO;
    *ret = (struct msg_to_worker){.version = t->version};
    int rc;
    switch (t->body_case) {
    case FLOTILLA__CLUSTER__TO_WORKER__BODY_ASSIGN:
        ret->type = TO_ASSIGN;
        return get_assign(t->assign, ret, em);
    case FLOTILLA__CLUSTER__TO_WORKER__BODY_CONNECT:
        ret->type = TO_CONNECT;
        rc = get_key(t->connect->has_key, t->connect->key, &ret->key, "key", em);
        if (rc == 0) rc = get_epoch(t->connect->epoch, &ret->epoch, em);
        return rc < 0 ? rc
                      : wire__copy_text(t->connect->endpoint, ret->text, sizeof ret->text,
                                        "endpoint", em);
    case FLOTILLA__CLUSTER__TO_WORKER__BODY_REFUSE:
        ret->type = TO_REFUSE;
        return wire__copy_text(t->refuse->text, ret->text, sizeof ret->text, "text", em);
    case FLOTILLA__CLUSTER__TO_WORKER__BODY_WHO: ret->type = TO_WHO; return 0;
    case FLOTILLA__CLUSTER__TO_WORKER__BODY_ALIVE: ret->type = TO_ALIVE; return 0;
    case FLOTILLA__CLUSTER__TO_WORKER__BODY_LEAVE:
        ret->type = TO_LEAVE;
        return wire__copy_text(t->leave->text, ret->text, sizeof ret->text, "text", em);
    case FLOTILLA__CLUSTER__TO_WORKER__BODY_CALIBRATE:
        ret->type = TO_CALIBRATE;
        return get_calibrate(t->calibrate, &ret->calibrate, em);
    default: return wire__bad(em, "body");
    }
}
