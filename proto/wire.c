/* Long because it is the one place that knows protobuf-c: all messages of both protocols, one put and
 * one get each, over the same few helpers.
 *
 * Encoding goes through structures on the stack or in a scratch arena; protobuf-c packs them.
 * Decoding unpacks into the caller's arena, whose budget is a multiple of the bytes received,
 * checks every field, and hands out plain structures that point into it. */
#include "proto/wire.h"

#include "common/base/mem.h"
#include "proto/client.pb-c.h"
#include "proto/cluster.pb-c.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

typedef Flotilla__Cluster__Step PbStep;
typedef Flotilla__Cluster__Run PbRun;
typedef Flotilla__Cluster__Epoch PbEpoch;
typedef Flotilla__Cluster__Timing PbTiming;
typedef Flotilla__Cluster__Result PbResult;
typedef Flotilla__Cluster__RunResult PbRunResult;
typedef Flotilla__Cluster__FromWorker PbFromWorker;
typedef Flotilla__Cluster__ToWorker PbToWorker;
typedef Flotilla__Client__GenerateRequest PbGenerate;
typedef Flotilla__Client__GenerateReply PbGenerateReply;
typedef Flotilla__Client__WorkerStatus PbWorker;
typedef Flotilla__Client__ReplicaStatus PbReplica;

/* ---- common ---- */

static void pack(const ProtobufCMessage *m, struct buf *to)
{
    size_t n = protobuf_c_message_get_packed_size(m);
    buf_drop(to, to->len);
    if (n + 1 > to->cap) {
        to->data = mem_realloc(to->data, n + 1);
        to->cap = n + 1;
    }
    to->len = protobuf_c_message_pack(m, (uint8_t *)to->data);
}

static void *pb_alloc(void *arena, size_t n)
{
    return arena_alloc(arena, n);
}

static void pb_free(void *arena, void *p)
{
    (void)arena;
    (void)p;
}

/* NULL: malformed, or more memory than the budget. */
static void *unpack(const ProtobufCMessageDescriptor *type, const void *data, size_t n,
                    struct arena *a, struct errmsg *em)
{
    arena_reset(a);
    a->budget = n * LIMIT_UNPACK_FACTOR + 65536;
    ProtobufCAllocator alloc = {pb_alloc, pb_free, a};
    void *m = protobuf_c_message_unpack(type, &alloc, n, data);
    if (!m) (void)err_set(em, ERR_PROTO, "%s: malformed", type->short_name);
    return m;
}

static int bad(struct errmsg *em, const char *field)
{
    return err_set(em, ERR_PROTO, "field '%s' is missing or out of range", field);
}

static int copy_text(const char *from, char *to, size_t size, const char *field, struct errmsg *em)
{
    size_t n = from ? strlen(from) : 0;
    if (n >= size)
        return err_set(em, ERR_PROTO, "field '%s' has %zu bytes, the limit is %zu", field, n,
                       size - 1);
    if (n) memcpy(to, from, n);
    to[n] = 0;
    return 0;
}

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
        return bad(em, "epoch");
    *ret = (struct epoch){p->incarnation, p->replica, p->generation};
    return 0;
}

/* protobuf-c wants arrays of pointers. */
#define POINTERS(pointers, items, n)                                                               \
    for (size_t i_ = 0; i_ < (n); i_++) (pointers)[i_] = &(items)[i_]

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
    if (n > LIMIT_STAGES) return bad(em, "timings");
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
};

static void set_open(Flotilla__Cluster__SampleOpen *o, const struct msg_sampling *s)
{
    flotilla__cluster__sample_open__init(o);
    o->has_temp = o->has_top_k = o->has_top_p = o->has_min_p = o->has_seed = o->has_boundary = 1;
    o->temp = s->temp;
    o->top_k = s->top_k;
    o->top_p = s->top_p;
    o->min_p = s->min_p;
    o->seed = s->seed;
    o->boundary = s->boundary;
    o->has_repetition = o->has_presence = o->has_frequency = o->has_logprobs = o->has_top_logprobs =
        1;
    o->repetition = s->repetition;
    o->presence = s->presence;
    o->frequency = s->frequency;
    o->logprobs = s->logprobs;
    o->top_logprobs = s->top_logprobs;
    o->n_bias = o->n_bias_ids = s->n_bias;
    o->bias_ids = (int32_t *)(uintptr_t)s->bias_ids;
    o->bias = (float *)(uintptr_t)s->bias;
}

static void set_run(PbRun *p, Flotilla__Cluster__SampleOpen *open, const struct msg_run *r)
{
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
    if (r->has_open) {
        set_open(open, &r->open);
        p->open = open;
    }
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
    for (uint32_t i = 0; i < m->n_runs; i++) set_run(&room.runs[i], &room.opens[i], &m->runs[i]);
    POINTERS(room.run_pointers, room.runs, m->n_runs);
    s.n_runs = m->n_runs;
    s.runs = room.run_pointers;
    s.n_closed = m->n_closed;
    s.closed = (uint64_t *)(uintptr_t)m->closed;
    set_timings(m->timings, m->n_timings, timings, timing_pointers);
    s.n_timings = m->n_timings;
    s.timings = timing_pointers;
    pack(&s.base, to);
}

static bool within(float x, float low, float high)
{
    return x >= low && x <= high; /* false for NaN */
}

/* Also the check of what a client asked for; names are the client's. */
static int check_sampling(const struct msg_sampling *s, struct errmsg *em)
{
    if (!isfinite(s->temp) || s->temp < 0.0f)
        return err_set(em, ERR_PROTO, "field 'temp' is not a number of at least 0");
    if (!isfinite(s->top_p) || s->top_p < 0.0f || s->top_p > 1.0f)
        return err_set(em, ERR_PROTO, "field 'top_p' is not in 0..1");
    if (!isfinite(s->min_p) || s->min_p < 0.0f || s->min_p > 1.0f)
        return err_set(em, ERR_PROTO, "field 'min_p' is not in 0..1");
    if (!within(s->repetition, FLT_MIN, 10.0f))
        return err_set(em, ERR_PROTO, "field 'repetition_penalty' is not above 0 and at most 10");
    if (!within(s->presence, -2.0f, 2.0f))
        return err_set(em, ERR_PROTO, "field 'presence_penalty' is not in -2..2");
    if (!within(s->frequency, -2.0f, 2.0f))
        return err_set(em, ERR_PROTO, "field 'frequency_penalty' is not in -2..2");
    if (s->top_logprobs > LIMIT_TOP_LOGPROBS)
        return err_set(em, ERR_PROTO, "field 'top_logprobs' is %" PRIu32 ", the limit is %u",
                       s->top_logprobs, LIMIT_TOP_LOGPROBS);
    if (s->n_bias > LIMIT_BIAS)
        return err_set(em, ERR_PROTO, "field 'logit_bias' has %" PRIu32 " tokens, the limit is %u",
                       s->n_bias, LIMIT_BIAS);
    for (uint32_t i = 0; i < s->n_bias; i++)
        if (!within(s->bias[i], -100.0f, 100.0f) || s->bias_ids[i] < 0)
            return err_set(em, ERR_PROTO,
                           "field 'logit_bias': token %" PRId32 " or its value is not in -100..100",
                           s->bias_ids[i]);
    return 0;
}

static int get_run(const PbRun *p, struct msg_run *r, struct errmsg *em)
{
    if (!p->has_request) return bad(em, "request");
    if (!p->has_first_pos || p->first_pos >= LIMIT_CONTEXT) return bad(em, "first_pos");
    if (p->n_tokens == 0 || p->n_tokens > LIMIT_STEP_ROWS) return bad(em, "tokens");
    if (p->n_logits > p->n_tokens) return bad(em, "n_logits");
    uint64_t end = (uint64_t)p->first_pos + p->n_tokens;
    if (p->n_pages != (end + LIMIT_PAGE - 1) / LIMIT_PAGE) return bad(em, "pages");
    if ((unsigned)p->kind > RUN_PROBE) return bad(em, "kind");
    *r = (struct msg_run){.request = p->request,
                          .attempt = p->attempt,
                          .sample = p->sample,
                          .kind = (enum run_kind)p->kind,
                          .first_pos = p->first_pos,
                          .n_rows = (uint32_t)p->n_tokens,
                          .n_logits = p->n_logits,
                          .n_pages = (uint32_t)p->n_pages,
                          .tokens = p->tokens,
                          .pages = p->pages,
                          .has_open = p->open != NULL};
    if (!p->open) return 0;
    const Flotilla__Cluster__SampleOpen *o = p->open;
    if (o->n_bias != o->n_bias_ids) return bad(em, "bias");
    r->open = (struct msg_sampling){.temp = o->temp,
                                    .top_p = o->top_p,
                                    .min_p = o->min_p,
                                    .top_k = o->top_k,
                                    .seed = o->seed,
                                    .boundary = o->boundary,
                                    .repetition = o->repetition,
                                    .presence = o->presence,
                                    .frequency = o->frequency,
                                    .logprobs = o->logprobs,
                                    .top_logprobs = o->top_logprobs,
                                    .n_bias = (uint32_t)o->n_bias,
                                    .bias_ids = o->bias_ids,
                                    .bias = o->bias};
    return check_sampling(&r->open, em);
}

int wire_get_step(const void *data, size_t n, struct arena *a, struct msg_step *ret,
                  struct errmsg *em)
{
    if (n > LIMIT_STEP_BYTES) return bad(em, "step");
    const PbStep *s = unpack(&flotilla__cluster__step__descriptor, data, n, a, em);
    if (!s) return ERR_PROTO;
    if (s->version != PROTO_VERSION) return bad(em, "version");
    if (s->n_runs == 0 || s->n_runs > LIMIT_STEP_RUNS) return bad(em, "runs");
    if (!s->has_number || s->number == 0) return bad(em, "number");
    if (s->n_closed > 2 * LIMIT_LIVE) return bad(em, "closed");
    struct msg_run *runs = arena_alloc(a, s->n_runs * sizeof *runs);
    if (!runs) return bad(em, "runs");
    *ret = (struct msg_step){.number = s->number,
                             .rows = s->rows,
                             .width = s->width,
                             .frame_bytes = s->frame_bytes,
                             .n_runs = (uint32_t)s->n_runs,
                             .runs = runs,
                             .n_closed = (uint32_t)s->n_closed,
                             .closed = s->closed};
    int rc = get_epoch(s->epoch, &ret->epoch, em);
    uint64_t rows = 0, logits = 0;
    for (size_t i = 0; i < s->n_runs && rc == 0; i++) {
        rc = get_run(s->runs[i], &runs[i], em);
        rows += rc == 0 ? runs[i].n_rows : 0;
        logits += rc == 0 ? runs[i].n_logits : 0;
    }
    if (rc == 0) rc = get_timings(s->timings, s->n_timings, ret->timings, &ret->n_timings, em);
    if (rc < 0) return rc;
    if (rows != s->rows || rows > LIMIT_STEP_ROWS) return bad(em, "rows");
    if (logits > LIMIT_STEP_LOGITS) return bad(em, "n_logits");
    if (s->width == 0 || s->width > LIMIT_WIDTH) return bad(em, "width");
    if (s->frame_bytes && s->frame_bytes != rows * s->width * sizeof(float))
        return bad(em, "frame_bytes");
    return 0;
}

/* ---- Result ---- */

/* False: the counts do not fit n tokens. */
static bool get_logprobs(size_t n, size_t n_chosen, const float *chosen, size_t n_ids,
                         const int32_t *ids, size_t n_top, const float *top,
                         struct msg_logprobs *ret)
{
    *ret = (struct msg_logprobs){0};
    if (n_chosen == 0 && n_ids == 0 && n_top == 0) return true;
    if (n_chosen != n || n_ids != n_top || n_top % n || n_top / n > LIMIT_TOP_LOGPROBS)
        return false;
    *ret = (struct msg_logprobs){chosen, (uint32_t)(n_top / n), ids, top};
    return true;
}

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
    pack(&r.base, to);
}

int wire_get_result(const void *data, size_t n, struct arena *a, struct msg_result *ret,
                    struct errmsg *em)
{
    if (n > LIMIT_STEP_BYTES) return bad(em, "result");
    const PbResult *r = unpack(&flotilla__cluster__result__descriptor, data, n, a, em);
    if (!r) return ERR_PROTO;
    if (r->version != PROTO_VERSION) return bad(em, "version");
    if (r->n_runs > LIMIT_STEP_RUNS) return bad(em, "runs");
    struct msg_run_result *runs = arena_alloc(a, (r->n_runs + 1) * sizeof *runs);
    if (!runs) return bad(em, "runs");
    for (size_t i = 0; i < r->n_runs; i++) {
        const PbRunResult *x = r->runs[i];
        if (!x->has_request || x->first_pos > LIMIT_CONTEXT || x->n_tokens > LIMIT_STEP_LOGITS)
            return bad(em, "runs");
        struct msg_logprobs logprobs;
        if (!get_logprobs(x->n_tokens, x->n_logprobs, x->logprobs, x->n_top_ids, x->top_ids,
                          x->n_top_logprobs, x->top_logprobs, &logprobs))
            return bad(em, "logprobs");
        runs[i] = (struct msg_run_result){
            x->request, x->attempt, x->sample, x->first_pos, (uint32_t)x->n_tokens,
            x->tokens,  x->dead,    x->error,  logprobs};
    }
    *ret = (struct msg_result){
        .number = r->number, .digest = r->digest, .n_runs = (uint32_t)r->n_runs, .runs = runs};
    int rc = get_epoch(r->epoch, &ret->epoch, em);
    if (rc == 0) rc = get_timings(r->timings, r->n_timings, ret->timings, &ret->n_timings, em);
    return rc;
}

/* ---- control ---- */

/* Optional scalars of a message, set and present. */
#define SET(p, field, value) ((p)->has_##field = 1, (p)->field = (value))

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
}

void wire_put_from_worker(const struct msg_from_worker *m, struct buf *to)
{
    PbFromWorker f = FLOTILLA__CLUSTER__FROM_WORKER__INIT;
    Flotilla__Cluster__Hello hello = FLOTILLA__CLUSTER__HELLO__INIT;
    Flotilla__Cluster__Holding holding = FLOTILLA__CLUSTER__HOLDING__INIT;
    Flotilla__Cluster__LoadProgress progress = FLOTILLA__CLUSTER__LOAD_PROGRESS__INIT;
    Flotilla__Cluster__Ready ready = FLOTILLA__CLUSTER__READY__INIT;
    Flotilla__Cluster__Linked linked = FLOTILLA__CLUSTER__LINKED__INIT;
    Flotilla__Cluster__Heartbeat heartbeat = FLOTILLA__CLUSTER__HEARTBEAT__INIT;
    Flotilla__Cluster__Fault fault = FLOTILLA__CLUSTER__FAULT__INIT;
    Flotilla__Cluster__Goodbye goodbye = FLOTILLA__CLUSTER__GOODBYE__INIT;
    PbEpoch epoch, *e = m->has_epoch ? &epoch : NULL;
    set_epoch(&epoch, m->epoch);
    SET(&f, version, m->version);
    SET(&f, instance_hi, m->instance.hi);
    SET(&f, instance_lo, m->instance.lo);
    switch (m->type) {
    case FROM_HELLO:
        hello.name = (char *)(uintptr_t)m->hello.name;
        hello.isa = (char *)(uintptr_t)m->hello.isa;
        SET(&hello, threads, m->hello.threads);
        SET(&hello, pid, m->hello.pid);
        SET(&holding, model_digest, m->hello.holding.model_digest);
        SET(&holding, layer_first, m->hello.holding.layer_first);
        SET(&holding, layer_last, m->hello.holding.layer_last);
        if (m->hello.holds) hello.holding = &holding;
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
    }
    pack(&f.base, to);
}

static int get_hello(const Flotilla__Cluster__Hello *p, struct msg_hello *ret, struct errmsg *em)
{
    int rc = copy_text(p->name, ret->name, sizeof ret->name, "name", em);
    if (rc == 0) rc = copy_text(p->isa, ret->isa, sizeof ret->isa, "isa", em);
    if (rc < 0) return rc;
    ret->threads = p->threads;
    ret->pid = p->pid;
    ret->holds = p->holding != NULL;
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
    };
    return optional_epoch(h->epoch, ret, em);
}

int wire_get_from_worker(const void *data, size_t n, struct arena *a, struct msg_from_worker *ret,
                         struct errmsg *em)
{
    if (n > LIMIT_CONTROL_BYTES) return bad(em, "message");
    const PbFromWorker *f = unpack(&flotilla__cluster__from_worker__descriptor, data, n, a, em);
    if (!f) return ERR_PROTO;
    if (!f->has_instance_hi || !f->has_instance_lo) return bad(em, "instance");
    *ret = (struct msg_from_worker){.version = f->version,
                                    .instance = {f->instance_hi, f->instance_lo}};
    int rc;
    switch (f->body_case) {
    case FLOTILLA__CLUSTER__FROM_WORKER__BODY_HELLO:
        ret->type = FROM_HELLO;
        return get_hello(f->hello, &ret->hello, em);
    case FLOTILLA__CLUSTER__FROM_WORKER__BODY_LOAD_PROGRESS:
        ret->type = FROM_LOAD_PROGRESS;
        ret->bytes_done = f->load_progress->bytes_done;
        ret->bytes_total = f->load_progress->bytes_total;
        return needed_epoch(f->load_progress->epoch, ret, em);
    case FLOTILLA__CLUSTER__FROM_WORKER__BODY_READY:
        ret->type = FROM_READY;
        rc = copy_text(f->ready->data_endpoint, ret->endpoint, sizeof ret->endpoint,
                       "data_endpoint", em);
        return rc < 0 ? rc : needed_epoch(f->ready->epoch, ret, em);
    case FLOTILLA__CLUSTER__FROM_WORKER__BODY_LINKED:
        ret->type = FROM_LINKED;
        return needed_epoch(f->linked->epoch, ret, em);
    case FLOTILLA__CLUSTER__FROM_WORKER__BODY_HEARTBEAT:
        ret->type = FROM_HEARTBEAT;
        return get_heartbeat(f->heartbeat, ret, em);
    case FLOTILLA__CLUSTER__FROM_WORKER__BODY_FAULT:
        ret->type = FROM_FAULT;
        ret->downstream = f->fault->downstream;
        rc = copy_text(f->fault->text, ret->text, sizeof ret->text, "text", em);
        return rc < 0 ? rc : needed_epoch(f->fault->epoch, ret, em);
    case FLOTILLA__CLUSTER__FROM_WORKER__BODY_GOODBYE: ret->type = FROM_GOODBYE; return 0;
    default: return bad(em, "body");
    }
}

void wire_put_to_worker(const struct msg_to_worker *m, struct buf *to)
{
    PbToWorker t = FLOTILLA__CLUSTER__TO_WORKER__INIT;
    Flotilla__Cluster__Assign assign = FLOTILLA__CLUSTER__ASSIGN__INIT;
    Flotilla__Cluster__Connect connect = FLOTILLA__CLUSTER__CONNECT__INIT;
    Flotilla__Cluster__Refuse refuse = FLOTILLA__CLUSTER__REFUSE__INIT;
    Flotilla__Cluster__Hello who = FLOTILLA__CLUSTER__HELLO__INIT;
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
        SET(&assign, rows_max, m->assign.rows_max);
        SET(&assign, logits_max, m->assign.logits_max);
        SET(&assign, window, m->assign.window);
        SET(&assign, plaintext, m->assign.plaintext);
        t.body_case = FLOTILLA__CLUSTER__TO_WORKER__BODY_ASSIGN;
        t.assign = &assign;
        break;
    case TO_CONNECT:
        connect.epoch = &epoch;
        connect.endpoint = (char *)(uintptr_t)m->text;
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
    }
    pack(&t.base, to);
}

static int get_assign(const Flotilla__Cluster__Assign *p, struct msg_to_worker *ret,
                      struct errmsg *em)
{
    struct msg_assign *a = &ret->assign;
    int rc = get_epoch(p->epoch, &ret->epoch, em);
    if (rc == 0)
        rc = copy_text(p->model_path, a->model_path, sizeof a->model_path, "model_path", em);
    if (rc < 0) return rc;
    a->model_digest = p->model_digest;
    a->layer_first = p->layer_first;
    a->layer_last = p->layer_last;
    a->kv_type = p->kv_type;
    a->n_pages = p->n_pages;
    a->rows_max = p->rows_max;
    a->logits_max = p->logits_max;
    a->window = p->window;
    a->plaintext = p->plaintext;
    if (a->layer_first > a->layer_last) return bad(em, "layers");
    if (a->n_pages == 0) return bad(em, "n_pages");
    if (a->rows_max == 0 || a->rows_max > LIMIT_STEP_ROWS) return bad(em, "rows_max");
    if (a->logits_max == 0 || a->logits_max > LIMIT_STEP_LOGITS) return bad(em, "logits_max");
    if (a->window == 0 || a->window > LIMIT_WINDOW) return bad(em, "window");
    return 0;
}

int wire_get_to_worker(const void *data, size_t n, struct arena *a, struct msg_to_worker *ret,
                       struct errmsg *em)
{
    if (n > LIMIT_CONTROL_BYTES) return bad(em, "message");
    const PbToWorker *t = unpack(&flotilla__cluster__to_worker__descriptor, data, n, a, em);
    if (!t) return ERR_PROTO;
    *ret = (struct msg_to_worker){.version = t->version};
    int rc;
    switch (t->body_case) {
    case FLOTILLA__CLUSTER__TO_WORKER__BODY_ASSIGN:
        ret->type = TO_ASSIGN;
        return get_assign(t->assign, ret, em);
    case FLOTILLA__CLUSTER__TO_WORKER__BODY_CONNECT:
        ret->type = TO_CONNECT;
        rc = get_epoch(t->connect->epoch, &ret->epoch, em);
        return rc < 0
                   ? rc
                   : copy_text(t->connect->endpoint, ret->text, sizeof ret->text, "endpoint", em);
    case FLOTILLA__CLUSTER__TO_WORKER__BODY_REFUSE:
        ret->type = TO_REFUSE;
        return copy_text(t->refuse->text, ret->text, sizeof ret->text, "text", em);
    case FLOTILLA__CLUSTER__TO_WORKER__BODY_WHO: ret->type = TO_WHO; return 0;
    default: return bad(em, "body");
    }
}

/* ---- clients ---- */

void wire_put_call(const struct msg_call *m, struct buf *to)
{
    Flotilla__Client__CallHeader h = FLOTILLA__CLIENT__CALL_HEADER__INIT;
    SET(&h, version, m->version);
    h.method = (char *)(uintptr_t)m->method;
    SET(&h, client_hi, m->client.hi);
    SET(&h, client_lo, m->client.lo);
    SET(&h, call, m->call);
    SET(&h, deadline_ms, m->deadline_ms);
    pack(&h.base, to);
}

int wire_get_call(const void *data, size_t n, struct arena *a, struct msg_call *ret,
                  struct errmsg *em)
{
    const Flotilla__Client__CallHeader *h =
        unpack(&flotilla__client__call_header__descriptor, data, n, a, em);
    if (!h) return ERR_PROTO;
    *ret = (struct msg_call){.version = h->version,
                             .client = {h->client_hi, h->client_lo},
                             .call = h->call,
                             .deadline_ms = h->deadline_ms};
    if (!h->has_call) return bad(em, "call");
    if (!h->has_client_hi || !h->has_client_lo) return bad(em, "client");
    return copy_text(h->method, ret->method, sizeof ret->method, "method", em);
}

void wire_put_reply(const struct msg_reply *m, struct buf *to)
{
    Flotilla__Client__ReplyHeader h = FLOTILLA__CLIENT__REPLY_HEADER__INIT;
    SET(&h, version, PROTO_VERSION);
    SET(&h, call, m->call);
    SET(&h, end, m->end);
    SET(&h, status, (uint32_t)m->status);
    if (m->message[0]) h.message = (char *)(uintptr_t)m->message;
    if (m->retry_ms) SET(&h, retry_ms, m->retry_ms);
    pack(&h.base, to);
}

int wire_get_reply(const void *data, size_t n, struct arena *a, struct msg_reply *ret,
                   struct errmsg *em)
{
    const Flotilla__Client__ReplyHeader *h =
        unpack(&flotilla__client__reply_header__descriptor, data, n, a, em);
    if (!h) return ERR_PROTO;
    if (h->version != PROTO_VERSION)
        return err_set(em, ERR_PROTO, "the server speaks protocol version %" PRIu32 ", not %u",
                       h->version, PROTO_VERSION);
    *ret = (struct msg_reply){
        .call = h->call, .end = h->end, .status = (enum status)h->status, .retry_ms = h->retry_ms};
    return copy_text(h->message, ret->message, sizeof ret->message, "message", em);
}

void wire_put_generate(const struct msg_generate *m, struct buf *to)
{
    PbGenerate g = FLOTILLA__CLIENT__GENERATE_REQUEST__INIT;
    if (m->model) g.model = (char *)(uintptr_t)m->model;
    g.prompt = (char *)(uintptr_t)m->prompt;
    g.n_prompt_tokens = m->n_prompt_tokens;
    g.prompt_tokens = (int32_t *)(uintptr_t)m->prompt_tokens;
    SET(&g, special, m->special);
    SET(&g, max_tokens, m->max_tokens);
    SET(&g, temp, m->sampling.temp);
    SET(&g, top_k, m->sampling.top_k);
    SET(&g, top_p, m->sampling.top_p);
    SET(&g, min_p, m->sampling.min_p);
    if (m->has_seed) SET(&g, seed, m->sampling.seed);
    SET(&g, repetition_penalty, m->sampling.repetition);
    SET(&g, presence_penalty, m->sampling.presence);
    SET(&g, frequency_penalty, m->sampling.frequency);
    SET(&g, logprobs, m->sampling.logprobs);
    SET(&g, top_logprobs, m->sampling.top_logprobs);
    g.n_bias_ids = g.n_logit_bias = m->sampling.n_bias;
    g.bias_ids = (int32_t *)(uintptr_t)m->sampling.bias_ids;
    g.logit_bias = (float *)(uintptr_t)m->sampling.bias;
    SET(&g, ignore_eos, m->ignore_eos);
    g.n_stop = m->n_stops;
    g.stop = (char **)(uintptr_t)m->stops;
    g.n_received = m->n_received;
    g.received = (int32_t *)(uintptr_t)m->received;
    if (m->from_index) SET(&g, from_index, m->from_index);
    pack(&g.base, to);
}

static const char *unsupported_field(const PbGenerate *g)
{
    if (g->n_messages) return "messages";
    if (g->tools_json) return "tools_json";
    if (g->format_json) return "format_json";
    if (g->tenant && g->tenant[0]) return "tenant";
    if (g->has_priority && g->priority) return "priority";
    if (g->has_from_index && g->from_index) return "from_index";
    return g->n_received ? "received" : NULL;
}

int wire_get_generate(const void *data, size_t n, struct arena *a, struct msg_generate *ret,
                      struct errmsg *em)
{
    if (n > LIMIT_CLIENT_BYTES) return bad(em, "message");
    const PbGenerate *g = unpack(&flotilla__client__generate_request__descriptor, data, n, a, em);
    if (!g) return ERR_PROTO;
    if (g->prompt && strlen(g->prompt) > LIMIT_PROMPT_BYTES) return bad(em, "prompt");
    if (g->n_prompt_tokens > LIMIT_CONTEXT) return bad(em, "prompt_tokens");
    if (g->has_max_tokens && g->max_tokens > LIMIT_MAX_TOKENS) return bad(em, "max_tokens");
    if (g->n_stop > LIMIT_STOPS) return bad(em, "stop");
    for (size_t i = 0; i < g->n_stop; i++)
        if (strlen(g->stop[i]) > LIMIT_STOP_BYTES) return bad(em, "stop");
    if (g->n_bias_ids != g->n_logit_bias) return bad(em, "logit_bias");
    *ret = (struct msg_generate){
        .prompt = g->prompt ? g->prompt : "",
        .prompt_len = g->prompt ? strlen(g->prompt) : 0,
        .prompt_tokens = g->prompt_tokens,
        .n_prompt_tokens = (uint32_t)g->n_prompt_tokens,
        .unsupported = unsupported_field(g),
        .model = g->model ? g->model : "",
        .special = g->special,
        .ignore_eos = g->ignore_eos,
        .has_seed = g->has_seed,
        .max_tokens = g->has_max_tokens ? g->max_tokens : LIMIT_MAX_TOKENS,
        .sampling = {.temp = g->has_temp ? g->temp : 0.0f,
                     .top_k = g->top_k,
                     .top_p = g->has_top_p ? g->top_p : 1.0f,
                     .min_p = g->min_p,
                     .seed = g->seed,
                     .repetition = g->has_repetition_penalty ? g->repetition_penalty : 1.0f,
                     .presence = g->presence_penalty,
                     .frequency = g->frequency_penalty,
                     .logprobs = g->logprobs,
                     .top_logprobs = g->top_logprobs,
                     .n_bias = (uint32_t)g->n_logit_bias,
                     .bias_ids = g->bias_ids,
                     .bias = g->logit_bias},
        .n_stops = (uint32_t)g->n_stop,
    };
    for (size_t i = 0; i < g->n_stop; i++) ret->stops[i] = g->stop[i];
    return check_sampling(&ret->sampling, em);
}

void wire_put_generate_reply(const struct msg_generate_reply *m, struct buf *to)
{
    PbGenerateReply r = FLOTILLA__CLIENT__GENERATE_REPLY__INIT;
    Flotilla__Client__Usage u = FLOTILLA__CLIENT__USAGE__INIT;
    SET(&r, first_index, m->first_index);
    r.n_tokens = m->n_tokens;
    r.tokens = (int32_t *)(uintptr_t)m->tokens;
    r.text = (char *)(uintptr_t)m->text;
    if (m->logprobs.chosen) {
        r.n_logprobs = m->n_tokens;
        r.logprobs = (float *)(uintptr_t)m->logprobs.chosen;
        r.n_top_ids = r.n_top_logprobs = (size_t)m->n_tokens * m->logprobs.n_top;
        r.top_ids = (int32_t *)(uintptr_t)m->logprobs.top_ids;
        r.top_logprobs = (float *)(uintptr_t)m->logprobs.top;
    }
    if (m->finish_reason && m->finish_reason[0])
        r.finish_reason = (char *)(uintptr_t)m->finish_reason;
    if (m->has_usage) {
        u.n_prompt_tokens = m->n_prompt_tokens;
        u.prompt_tokens = (int32_t *)(uintptr_t)m->prompt_tokens;
        SET(&u, seed, m->seed);
        r.usage = &u;
    }
    pack(&r.base, to);
}

int wire_get_generate_reply(const void *data, size_t n, struct arena *a,
                            struct msg_generate_reply *ret, struct errmsg *em)
{
    const PbGenerateReply *r =
        unpack(&flotilla__client__generate_reply__descriptor, data, n, a, em);
    if (!r) return ERR_PROTO;
    struct msg_logprobs logprobs;
    if (!get_logprobs(r->n_tokens, r->n_logprobs, r->logprobs, r->n_top_ids, r->top_ids,
                      r->n_top_logprobs, r->top_logprobs, &logprobs))
        return bad(em, "logprobs");
    *ret = (struct msg_generate_reply){.logprobs = logprobs,
                                       .first_index = r->first_index,
                                       .n_tokens = (uint32_t)r->n_tokens,
                                       .tokens = r->tokens,
                                       .text = r->text ? r->text : "",
                                       .finish_reason = r->finish_reason ? r->finish_reason : "",
                                       .has_usage = r->usage != NULL};
    if (r->usage) {
        ret->prompt_tokens = r->usage->prompt_tokens;
        ret->n_prompt_tokens = (uint32_t)r->usage->n_prompt_tokens;
        ret->seed = r->usage->seed;
    }
    return 0;
}

void wire_put_cancel(uint64_t call, struct buf *to)
{
    Flotilla__Client__CancelRequest c = FLOTILLA__CLIENT__CANCEL_REQUEST__INIT;
    SET(&c, call, call);
    pack(&c.base, to);
}

int wire_get_cancel(const void *data, size_t n, struct arena *a, uint64_t *ret_call,
                    struct errmsg *em)
{
    const Flotilla__Client__CancelRequest *c =
        unpack(&flotilla__client__cancel_request__descriptor, data, n, a, em);
    if (!c) return ERR_PROTO;
    if (!c->has_call) return bad(em, "call");
    *ret_call = c->call;
    return 0;
}

void wire_put_models(const char *name, struct buf *to)
{
    Flotilla__Client__ModelsReply m = FLOTILLA__CLIENT__MODELS_REPLY__INIT;
    char *names[] = {(char *)(uintptr_t)name};
    m.n_names = 1;
    m.names = names;
    pack(&m.base, to);
}

int wire_get_models(const void *data, size_t n, struct arena *a, const char **ret_name,
                    struct errmsg *em)
{
    const Flotilla__Client__ModelsReply *m =
        unpack(&flotilla__client__models_reply__descriptor, data, n, a, em);
    if (!m) return ERR_PROTO;
    *ret_name = m->n_names ? m->names[0] : "";
    return 0;
}

void wire_put_tokenize(const char *text, bool special, struct buf *to)
{
    Flotilla__Client__TokenizeRequest t = FLOTILLA__CLIENT__TOKENIZE_REQUEST__INIT;
    t.text = (char *)(uintptr_t)text;
    SET(&t, special, special);
    pack(&t.base, to);
}

int wire_get_tokenize(const void *data, size_t n, struct arena *a, const char **ret_text,
                      bool *ret_special, struct errmsg *em)
{
    const Flotilla__Client__TokenizeRequest *t =
        unpack(&flotilla__client__tokenize_request__descriptor, data, n, a, em);
    if (!t) return ERR_PROTO;
    *ret_text = t->text ? t->text : "";
    *ret_special = t->special;
    return 0;
}

void wire_put_tokens(const int32_t *tokens, uint32_t n, struct buf *to)
{
    Flotilla__Client__TokenizeReply t = FLOTILLA__CLIENT__TOKENIZE_REPLY__INIT;
    t.n_tokens = n;
    t.tokens = (int32_t *)(uintptr_t)tokens;
    pack(&t.base, to);
}

int wire_get_tokens(const void *data, size_t n, struct arena *a, const int32_t **ret_tokens,
                    uint32_t *ret_n, struct errmsg *em)
{
    const Flotilla__Client__TokenizeReply *t =
        unpack(&flotilla__client__tokenize_reply__descriptor, data, n, a, em);
    if (!t) return ERR_PROTO;
    *ret_tokens = t->tokens;
    *ret_n = (uint32_t)t->n_tokens;
    return 0;
}

void wire_put_ping(const uint64_t *calls, uint32_t n, struct buf *to)
{
    Flotilla__Client__PingRequest p = FLOTILLA__CLIENT__PING_REQUEST__INIT;
    p.n_calls = n;
    p.calls = (uint64_t *)(uintptr_t)calls;
    pack(&p.base, to);
}

int wire_get_ping(const void *data, size_t n, struct arena *a, const uint64_t **ret_calls,
                  uint32_t *ret_n, struct errmsg *em)
{
    const Flotilla__Client__PingRequest *p =
        unpack(&flotilla__client__ping_request__descriptor, data, n, a, em);
    if (!p) return ERR_PROTO;
    if (p->n_calls > LIMIT_PING_CALLS) return bad(em, "calls");
    *ret_calls = p->calls;
    *ret_n = (uint32_t)p->n_calls;
    return 0;
}

void wire_put_pong(const uint64_t *unknown, uint32_t n, struct buf *to)
{
    Flotilla__Client__PingReply p = FLOTILLA__CLIENT__PING_REPLY__INIT;
    p.n_unknown = n;
    p.unknown = (uint64_t *)(uintptr_t)unknown;
    pack(&p.base, to);
}

int wire_get_pong(const void *data, size_t n, struct arena *a, const uint64_t **ret_unknown,
                  uint32_t *ret_n, struct errmsg *em)
{
    const Flotilla__Client__PingReply *p =
        unpack(&flotilla__client__ping_reply__descriptor, data, n, a, em);
    if (!p) return ERR_PROTO;
    *ret_unknown = p->unknown;
    *ret_n = (uint32_t)p->n_unknown;
    return 0;
}

static void set_worker(PbWorker *p, const struct msg_worker_status *w)
{
    flotilla__client__worker_status__init(p);
    p->name = (char *)(uintptr_t)w->name;
    p->state = (char *)(uintptr_t)w->state;
    p->isa = (char *)(uintptr_t)w->isa;
    SET(p, pid, w->pid);
    SET(p, threads, w->threads);
    SET(p, layer_first, w->layer_first);
    SET(p, layer_last, w->layer_last);
    SET(p, resident_bytes, w->heartbeat.resident_bytes);
    SET(p, read_bytes, w->heartbeat.read_bytes);
    SET(p, weights_bytes, w->heartbeat.weights_bytes);
    SET(p, kv_bytes, w->heartbeat.kv_bytes);
    SET(p, rows, w->heartbeat.rows);
    SET(p, activation_bytes_in, w->heartbeat.activation_bytes_in);
    SET(p, activation_bytes_out, w->heartbeat.activation_bytes_out);
    SET(p, compute_ns, w->compute_ns);
    SET(p, idle_ns, w->idle_ns);
    SET(p, messages_dropped, w->heartbeat.messages_dropped);
    SET(p, load_done, w->load_done);
    SET(p, load_total, w->load_total);
}

void wire_put_status(const struct msg_status *m, struct buf *to)
{
    Flotilla__Client__StatusReply s = FLOTILLA__CLIENT__STATUS_REPLY__INIT;
    PbReplica r = FLOTILLA__CLIENT__REPLICA_STATUS__INIT, *replicas[] = {&r};
    PbWorker workers[LIMIT_STAGES], *pointers[LIMIT_STAGES];
    const struct msg_replica_status *x = &m->replica;
    SET(&s, ready, m->ready);
    s.model = (char *)(uintptr_t)m->model;
    SET(&s, running, m->running);
    SET(&s, queued, m->queued);
    SET(&s, messages_dropped, m->messages_dropped);
    s.n_replicas = 1;
    s.replicas = replicas;
    r.name = (char *)(uintptr_t)x->name;
    r.state = (char *)(uintptr_t)x->state;
    r.why = (char *)(uintptr_t)x->why;
    SET(&r, generation, x->generation);
    SET(&r, pages_total, x->pages_total);
    SET(&r, pages_free, x->pages_free);
    SET(&r, steps, x->steps);
    SET(&r, steps_mixed, x->steps_mixed);
    SET(&r, sequences_max, x->sequences_max);
    for (uint32_t i = 0; i < x->n_workers; i++) set_worker(&workers[i], &x->workers[i]);
    POINTERS(pointers, workers, x->n_workers);
    r.n_workers = x->n_workers;
    r.workers = pointers;
    pack(&s.base, to);
}

static const char *text_or_empty(const char *s)
{
    return s ? s : "";
}

static void get_worker(const PbWorker *p, struct msg_worker_status *w)
{
    *w = (struct msg_worker_status){
        .name = text_or_empty(p->name),
        .state = text_or_empty(p->state),
        .isa = text_or_empty(p->isa),
        .pid = p->pid,
        .threads = p->threads,
        .layer_first = p->layer_first,
        .layer_last = p->layer_last,
        .heartbeat = {.resident_bytes = p->resident_bytes,
                      .read_bytes = p->read_bytes,
                      .weights_bytes = p->weights_bytes,
                      .kv_bytes = p->kv_bytes,
                      .rows = p->rows,
                      .activation_bytes_in = p->activation_bytes_in,
                      .activation_bytes_out = p->activation_bytes_out,
                      .messages_dropped = p->messages_dropped},
        .load_done = p->load_done,
        .load_total = p->load_total,
        .compute_ns = p->compute_ns,
        .idle_ns = p->idle_ns,
    };
}

int wire_get_status(const void *data, size_t n, struct arena *a, struct msg_status *ret,
                    struct errmsg *em)
{
    const Flotilla__Client__StatusReply *s =
        unpack(&flotilla__client__status_reply__descriptor, data, n, a, em);
    if (!s) return ERR_PROTO;
    *ret = (struct msg_status){.ready = s->ready,
                               .model = text_or_empty(s->model),
                               .running = s->running,
                               .queued = s->queued,
                               .messages_dropped = s->messages_dropped};
    if (!s->n_replicas) return 0;
    const PbReplica *r = s->replicas[0];
    if (r->n_workers > LIMIT_STAGES) return bad(em, "workers");
    ret->replica = (struct msg_replica_status){.name = text_or_empty(r->name),
                                               .state = text_or_empty(r->state),
                                               .why = text_or_empty(r->why),
                                               .generation = r->generation,
                                               .n_workers = (uint32_t)r->n_workers,
                                               .pages_total = r->pages_total,
                                               .pages_free = r->pages_free,
                                               .steps = r->steps,
                                               .steps_mixed = r->steps_mixed,
                                               .sequences_max = r->sequences_max};
    for (size_t i = 0; i < r->n_workers; i++) get_worker(r->workers[i], &ret->replica.workers[i]);
    return 0;
}
