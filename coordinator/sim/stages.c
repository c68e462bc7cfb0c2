/* Simulated workers: the shipped gate, a shadow of the KV pages, and time that passes. */
#include "coordinator/sim/world.h"

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "proto/wire.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEARTBEAT_NS (250 * NS_PER_MS)
#define STEP_NS (300 * 1000)

/* A control message to the core; the connection keeps its order. */
static void tell(struct world *w, uint32_t who, struct msg_from_worker *m)
{
    struct world_worker *s = &w->workers[who];
    uint64_t at = w->now_ns + world__latency(w);
    if (at <= s->last_control_ns) at = s->last_control_ns + 1;
    s->last_control_ns = at;
    if (w->now_ns < s->deaf_up_ns) return;
    struct occurrence *o = world__schedule(w, at - w->now_ns, HAPPEN_TO_CORE);
    o->who = who;
    o->from = mem_alloc(sizeof *o->from);
    m->version = PROTO_VERSION;
    m->instance = s->instance;
    *o->from = *m;
}

/* Said again with each heartbeat until Steps come. */
static void stand(struct world *w, uint32_t who, struct msg_from_worker *m)
{
    m->has_epoch = true;
    m->epoch = w->workers[who].gate.epoch;
    w->workers[who].standing = *m;
    w->workers[who].stands = true;
}

static void tell_of_epoch(struct world *w, uint32_t who, struct msg_from_worker *m)
{
    m->has_epoch = true;
    m->epoch = w->workers[who].gate.epoch;
    tell(w, who, m);
}

static void say_hello(struct world *w, uint32_t who)
{
    struct world_worker *s = &w->workers[who];
    struct msg_from_worker m = {
        .type = FROM_HELLO,
        .hello = {.threads = 1, .pid = who, .verifies = !w->unverified, .embeds = true}};
    memcpy(m.hello.name, s->name, sizeof m.hello.name);
    if (s->loaded) {
        m.hello.holds = true;
        m.hello.holding = (struct msg_holding){s->assign.model_digest, s->assign.layer_first,
                                               s->assign.layer_last};
    }
    tell(w, who, &m);
}

/* One worker in two is eight times slower than another; now and then one does not answer, or could
 * not measure anything. */
static void say_speed(struct world *w, uint32_t who, const struct msg_calibrate *ask)
{
    struct msg_from_worker m = {.type = FROM_SPEED,
                                .speed = {.header_digest = ask->header_digest,
                                          .kv_type = ask->kv_type,
                                          .threads = ask->threads,
                                          .layer_bytes = 1}};
    uint64_t draw = rng_below(&w->rng, 16), layer_ns = w->workers[who].layer_ns;
    if (draw == 0) return;
    if (draw > 1) {
        m.speed.n_layer = m.speed.n_head = 1;
        m.speed.layer[0] = (struct msg_speed_point){1, layer_ns};
        m.speed.head[0] = (struct msg_speed_point){1, 2 * layer_ns};
    }
    tell(w, who, &m);
}

void stage__start(struct world *w, uint32_t who)
{
    struct world_worker *s = &w->workers[who];
    s->alive = true;
    s->greeted = s->leaves = false;
    s->life = ++w->next_life;
    s->instance = (struct instance){rng_u64(&w->rng), rng_u64(&w->rng)};
    s->gate = (struct gate){0};
    s->loaded = s->busy = s->stopped = s->cut = s->stands = false;
    s->deaf_up_ns = s->deaf_down_ns = 0;
    s->next_lie = LIE_NONE;
    if ((int)who != w->cripple) s->hung = false;
    memset(s->open, 0, sizeof s->open);
    memset(s->sums, 0, sizeof s->sums);
    s->downstream = -2;
    s->inbox_n = 0;
    s->heartbeat = (struct msg_heartbeat){0};
    memset(s->whole.tags, 0, sizeof s->whole.tags);
    memset(s->windowed.tags, 0, sizeof s->windowed.tags);
    say_hello(w, who);
    struct occurrence *o = world__schedule(w, HEARTBEAT_NS, HAPPEN_HEARTBEAT);
    o->who = who;
    o->life = s->life;
}

/* What a live worker says four times a second: of the Step that it runs, and that it moves. */
void stage__heartbeat(struct world *w, uint32_t who)
{
    struct world_worker *s = &w->workers[who];
    struct msg_from_worker m = {.type = FROM_HEARTBEAT,
                                .has_epoch = s->gate.epoch.generation != 0,
                                .epoch = s->gate.epoch,
                                .heartbeat = s->heartbeat};
    struct msg_from_worker again = s->standing;
    if (!s->hung) s->moves++; /* its compute thread turns, or computes */
    m.heartbeat.moves = s->moves;
    tell(w, who, &m);
    if (s->stands && s->heartbeat.step_received == 0) tell(w, who, &again);
}

void stage__babble(struct world *w, uint32_t who)
{
    static const enum from_worker types[] = {FROM_HELLO,     FROM_LOAD_PROGRESS, FROM_READY,
                                             FROM_HEARTBEAT, FROM_SPEED,         FROM_LINKED};
    static const uint64_t numbers[] = {0, 1, INT32_MAX, UINT32_MAX, INT64_MAX, UINT64_MAX};
    const struct world_worker *s = &w->workers[who];
    uint64_t a = numbers[rng_below(&w->rng, 6)], b = numbers[rng_below(&w->rng, 6)];
    struct msg_from_worker m = {
        .type = types[rng_below(&w->rng, 6)],
        .has_epoch = s->gate.epoch.generation != 0,
        .epoch = s->gate.epoch,
        .hello = {.threads = (uint32_t)a,
                  .pid = who,
                  .holds = true,
                  .verifies = !w->unverified,
                  .embeds = true,
                  .holding = {1, (uint32_t)a, (uint32_t)b}},
        .memory = {a, b, b, a, a, (uint32_t)b},
        .bytes_done = a,
        .bytes_total = b,
        .heartbeat = {.step_received = a, .step_done = b, .moves = b, .cpu_wait_ns = a},
        .speed = {.header_digest = w->cfg.header_digest,
                  .kv_type = w->cfg.kv_type,
                  .n_layer = 1,
                  .n_head = 1,
                  .layer = {{(uint32_t)a, b}},
                  .head = {{(uint32_t)b, a}},
                  .layer_bytes = a,
                  .position_ps = b}};
    memcpy(m.hello.name, s->name, sizeof m.hello.name);
    (void)snprintf(m.endpoint, sizeof m.endpoint, "tcp://w%" PRIu32, who);
    m.version = PROTO_VERSION;
    m.instance = s->instance;
    struct msg_from_worker read;
    struct buf bytes = {0};
    wire_put_from_worker(&m, &bytes);
    bool taken = wire_get_from_worker(bytes.data, bytes.len, &w->arena, &read, NULL) == 0;
    buf_close(&bytes);
    if (taken && !s->stopped) tell(w, who, &read); /* the shell drops what it cannot read */
}

/* An orderly end: it says so, and its links close. */
void stage__goodbye(struct world *w, uint32_t who)
{
    struct msg_from_worker m = {.type = FROM_GOODBYE};
    tell(w, who, &m);
    stage__kill(w, who);
}

/* Everybody who sends to a dead worker sees the link close soon after. */
void stage__kill(struct world *w, uint32_t who)
{
    w->workers[who].alive = w->workers[who].stopped = false;
    for (uint32_t i = 0; i < w->n_workers; i++) {
        struct world_worker *up = &w->workers[i];
        if (!up->alive || up->downstream != (int)who) continue;
        struct msg_from_worker m = {.type = FROM_FAULT, .downstream = true};
        (void)snprintf(m.text, sizeof m.text, "its data link closed");
        up->downstream = -2;
        tell_of_epoch(w, i, &m);
    }
    for (uint32_t i = 0; i < w->cfg.n_replicas; i++) {
        struct world_replica *x = &w->replicas[i];
        if (!x->link_open || x->link_worker != who) continue;
        struct occurrence *o = world__schedule(w, world__latency(w), HAPPEN_LINK);
        o->epoch = x->link_epoch;
        o->up = false;
        x->link_open = false;
    }
}

static void fault(struct world *w, uint32_t who, const char *text)
{
    struct msg_from_worker m = {.type = FROM_FAULT};
    (void)snprintf(m.text, sizeof m.text, "%s", text);
    tell_of_epoch(w, who, &m);
}

/* Loading takes a moment, or as many times ten seconds as it has signs of progress to show. */
static void load_on(struct world *w, uint32_t who)
{
    const struct world_worker *s = &w->workers[who];
    uint64_t in = s->loads_left ? 10 * NS_PER_S : NS_PER_MS * (1 + rng_below(&w->rng, 50));
    if (!w->long_load && s->loads_left) in = NS_PER_MS * (500 + rng_below(&w->rng, 3000));
    struct occurrence *o = world__schedule(w, in, HAPPEN_LOADED);
    o->who = who;
    o->life = s->life;
    o->epoch = s->gate.epoch;
}

void stage__message(struct world *w, uint32_t who, const struct msg_to_worker *m)
{
    struct world_worker *s = &w->workers[who];
    struct msg_from_worker answer = {.type = FROM_LINKED};
    if (s->hung && m->type != TO_WHO && m->type != TO_LEAVE)
        return; /* its compute thread takes nothing */
    switch (m->type) {
    case TO_ASSIGN:
        if (!gate_newer(&s->gate, m->epoch)) return;
        gate_open(&s->gate, m->epoch);
        s->assign = m->assign;
        s->ran = 0;
        s->stands = false;
        memset(s->open, 0, sizeof s->open);
        memset(s->sums, 0, sizeof s->sums);
        s->downstream = -2;
        s->cut = false;
        s->heartbeat = (struct msg_heartbeat){0};
        memset(s->whole.wrote_in, 0, sizeof s->whole.wrote_in);
        memset(s->windowed.wrote_in, 0, sizeof s->windowed.wrote_in);
        s->loads_left = w->long_load ? 15 + (uint32_t)rng_below(&w->rng, 10)
                                     : (uint32_t)rng_below(&w->rng, 20) / 18;
        load_on(w, who);
        break;
    case TO_CONNECT:
        if (!epoch_eq(m->epoch, s->gate.epoch) || s->downstream != -2) return;
        s->downstream = strncmp(m->text, "tcp://w", 7) == 0 ? atoi(m->text + 7) : -1;
        if (s->downstream >= 0 && w->workers[s->downstream].unreachable) return;
        if (s->downstream >= 0 && !w->workers[s->downstream].alive) {
            s->downstream = -2;
            answer.type = FROM_FAULT;
            answer.downstream = true;
        }
        if (answer.type == FROM_LINKED) stand(w, who, &answer);
        tell_of_epoch(w, who, &answer);
        break;
    case TO_WHO: say_hello(w, who); break;
    case TO_CALIBRATE: say_speed(w, who, &m->calibrate); break;
    case TO_ALIVE: break; /* between the shells */
    case TO_LEAVE:
        if (!s->leaves)
            world__fail(w, "worker %" PRIu32 " is told to leave by nobody's order", who);
        w->report->drained++;
        stage__goodbye(w, who);
        fault__restart_later(w, who);
        break;
    case TO_REFUSE: world__fail(w, "worker %" PRIu32 " was refused: %s", who, m->text); break;
    }
}

void stage__loaded(struct world *w, uint32_t who, struct epoch epoch)
{
    struct world_worker *s = &w->workers[who];
    if (!epoch_eq(epoch, s->gate.epoch) || s->hung) return;
    struct msg_from_worker m = {.type = FROM_READY};
    if (s->unloadable) {
        fault(w, who, "cannot load");
        return;
    }
    if (s->loads_left) {
        m = (struct msg_from_worker){
            .type = FROM_LOAD_PROGRESS, .bytes_done = 100 - s->loads_left--, .bytes_total = 100};
        tell_of_epoch(w, who, &m);
        load_on(w, who);
        return;
    }
    s->loaded = true;
    (void)snprintf(m.endpoint, sizeof m.endpoint, "tcp://w%" PRIu32 ":1", who);
    stand(w, who, &m);
    tell_of_epoch(w, who, &m);
}

/* ---- Steps ---- */

/* 3. Fencing, by a count of the simulator's own. */
static void check_fence(struct world *w, struct world_worker *s, const struct msg_step *m)
{
    if (!epoch_eq(m->epoch, s->gate.epoch))
        world__fail(w, "a stage runs Step %" PRIu64 " of generation %" PRIu32 " in %" PRIu32,
                    m->number, m->epoch.generation, s->gate.epoch.generation);
    else if (m->number != s->ran + 1)
        world__fail(w, "a stage runs Step %" PRIu64 " after %" PRIu64, m->number, s->ran);
    s->ran = m->number;
}

/* A damaged stage computes something else each time. */
static uint64_t digest_of(struct world *w, struct epoch e)
{
    bool wrong = false;
    for (uint32_t i = 0; i < w->n_workers; i++)
        wrong |= w->workers[i].damaged && epoch_eq(w->workers[i].gate.epoch, e);
    w->replicas[e.replica].probe_wrong = wrong;
    return wrong ? rng_u64(&w->rng) : 42;
}

static void make_result(struct world *w, struct world_worker *s, const struct msg_step *m)
{
    struct msg_run_result runs[LIMIT_STEP_RUNS];
    int32_t tokens[LIMIT_STEP_LOGITS];
    float values[LIMIT_STEP_RUNS * WORLD_WIDTH];
    uint32_t n_tokens = 0, n_values = 0;
    struct msg_result r = {.epoch = m->epoch, .number = m->number, .runs = runs};
    r.n_timings = m->n_timings;
    memcpy(r.timings, m->timings, sizeof r.timings);
    for (uint32_t i = 0; i < m->n_runs; i++) {
        const struct msg_run *x = &m->runs[i];
        const struct world_request *q = check__find(w, x->request);
        if (x->kind == RUN_PROBE) r.digest = digest_of(w, m->epoch);
        if (x->embed && q && check__embed(w, s, x, values + n_values, &runs[r.n_runs])) {
            r.n_runs++;
            n_values += WORLD_WIDTH;
        }
        if (!x->n_logits || x->kind == RUN_PROBE || !q) continue;
        check__verify(w, s, x, tokens + n_tokens, &runs[r.n_runs++]);
        n_tokens += x->n_logits;
    }
    s->lie = LIE_NONE;
    if (r.n_runs) {
        s->lie = s->next_lie;
        s->next_lie = LIE_NONE;
        s->lied = fault__lie(w, &s->lie, &r, runs);
    }
    wire_put_result(&r, &s->outgoing);
}

/* A busy machine: half of its Steps take more than a Step may, if nothing moves. */
static uint64_t time_of(struct world *w, const struct world_worker *s, const struct msg_step *m)
{
    uint64_t takes_ns = STEP_NS + m->rows * w->row_ns;
    if (s->slow && m->runs[0].kind != RUN_PROBE && rng_below(&w->rng, 2) == 0)
        takes_ns += NS_PER_MS * (2300 + rng_below(&w->rng, 1200));
    return takes_ns;
}

static void run(struct world *w, uint32_t who, struct buf *bytes)
{
    struct world_worker *s = &w->workers[who];
    struct errmsg em;
    struct msg_step m;
    if (wire_get_step(bytes->data, bytes->len, &w->arena, &m, &em) < 0) {
        world__fail(w, "a Step does not decode: %s", em.text);
        return;
    }
    enum gate_verdict v = gate_step(&s->gate, m.epoch, m.number);
    if (v == GATE_GAP) fault(w, who, "a Step is missing");
    if (v != GATE_TAKE) return;
    check_fence(w, s, &m);
    s->heartbeat.step_received = m.number;
    for (uint32_t i = 0; i < m.n_runs && !w->failed; i++) {
        if (m.runs[i].kind != RUN_PROBE)
            check__run(w, s, m.number, &m.runs[i]);
        else /* a probe writes its page like any row */
            check__probe(w, s, &m.runs[i]);
    }
    uint64_t takes_ns = time_of(w, s, &m);
    m.timings[m.n_timings] = (struct msg_timing){.stage = m.n_timings, .compute_ns = takes_ns};
    m.n_timings++;
    s->outgoing_result = s->assign.layer_last == w->cfg.n_layers - 1;
    if (s->outgoing_result) {
        check__open(w, s, &m);
        make_result(w, s, &m);
    } else {
        m.frame_bytes = (uint64_t)m.rows * m.width * sizeof(float);
        wire_put_step(&m, &s->outgoing);
    }
    s->busy = true;
    if (s->hung && w->replicas[m.epoch.replica].was_ready && !w->hung_ns) w->hung_ns = w->now_ns;
    struct occurrence *o = world__schedule(w, takes_ns, HAPPEN_STAGE_DONE);
    o->who = who;
    o->life = s->life;
    o->epoch = m.epoch;
}

void stage__next(struct world *w, uint32_t who)
{
    struct world_worker *s = &w->workers[who];
    while (s->alive && !s->stopped && !s->busy && s->inbox_n && !w->failed) {
        struct buf *b = &s->inbox[s->inbox_at];
        s->inbox_at = (s->inbox_at + 1) % WORLD_INBOX;
        s->inbox_n--;
        run(w, who, b);
    }
}

void stage__step(struct world *w, uint32_t who, struct buf *bytes)
{
    struct world_worker *s = &w->workers[who];
    if (s->inbox_n == WORLD_INBOX) {
        world__fail(w, "the inbox of worker %" PRIu32 " overflows", who);
        return;
    }
    struct buf *b = &s->inbox[(s->inbox_at + s->inbox_n++) % WORLD_INBOX];
    buf_drop(b, b->len);
    (void)buf_append(b, bytes->data, bytes->len);
    stage__next(w, who);
}

/* Sends on, unless the link is cut or this message is one that gets lost. */
static void send_on(struct world *w, struct world_worker *s)
{
    bool faulty = world__faulty(w);
    if (s->downstream == -2) return;
    if (s->cut || (faulty && rng_below(&w->rng, 400) == 0)) {
        w->report->faults++;
        return;
    }
    uint64_t at = w->now_ns + world__latency(w);
    if (at <= s->last_out_ns) at = s->last_out_ns + 1;
    s->last_out_ns = at;
    bool twice = faulty && rng_below(&w->rng, 100) == 0;
    for (int i = 0; i < 1 + twice; i++) {
        /* The second copy may be late enough to meet the next generation. */
        uint64_t late = i ? NS_PER_MS * rng_below(&w->rng, 800) : 0;
        struct occurrence *o = world__schedule(w, at - w->now_ns + late,
                                               s->outgoing_result ? HAPPEN_RESULT : HAPPEN_STEP);
        o->who = s->downstream < 0 ? 0 : (uint32_t)s->downstream;
        o->life = s->downstream < 0 ? 0 : w->workers[s->downstream].life;
        o->lie = s->outgoing_result ? s->lie : LIE_NONE;
        o->lied = s->lied;
        (void)buf_append(&o->bytes, s->outgoing.data, s->outgoing.len);
    }
    w->report->faults += twice;
}

void stage__done(struct world *w, uint32_t who)
{
    struct world_worker *s = &w->workers[who];
    if (s->hung) return; /* its heartbeats go on, its compute thread does not */
    s->busy = false;
    s->heartbeat.step_done = s->heartbeat.step_received;
    send_on(w, s);
    stage__next(w, who);
}
