#include "coordinator/cli/dry_run.h"

#include "coordinator/setup.h"

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/pool.h"
#include "common/engine/cpu.h"
#include "common/engine/measure.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define TICK_NS (50 * NS_PER_MS)
#define MOST_NS (30 * NS_PER_S) /* of virtual time: then what has no plan will get none */
#define THREADS_MOST 8u         /* different numbers of threads that are measured */

struct measured {
    uint32_t threads;
    struct measure m;
};

struct run {
    const struct config *config;
    const struct model_file *model;
    const char *isa;
    struct core *core;
    uint64_t now_ns;
    struct measured measured[THREADS_MOST];
    uint32_t n_measured;
};

/* ---- this machine's speed ---- */

static uint32_t threads_of(uint32_t wish)
{
    uint32_t cores = pool_cores();
    return wish && wish < cores ? wish : cores;
}

static const struct measure *find_measured(const struct run *r, uint32_t threads)
{
    for (uint32_t i = 0; i < r->n_measured; i++)
        if (r->measured[i].threads == threads) return &r->measured[i].m;
    return NULL;
}

static int measure(struct run *r, uint32_t threads, struct errmsg *em)
{
    if (find_measured(r, threads)) return 0;
    if (r->n_measured == THREADS_MOST)
        return err_set(em, ERR_CONF, "key 'workers.threads': more than %u different numbers",
                       THREADS_MOST);
    enum kv_type kv = KV_F16;
    (void)eng_kv_parse(r->config->kv, &kv); /* setup_check has read it */
    const struct measure_options o = {
        .weights = r->model->weights, .kv = kv, .threads = threads, .isa = r->isa};
    struct measured *x = &r->measured[r->n_measured];
    x->threads = threads;
    int rc = measure_model(&o, &x->m, em);
    if (rc == 0) r->n_measured++;
    return rc;
}

static int measure_all(struct run *r, struct errmsg *em)
{
    int rc = measure(r, threads_of(0), em);
    for (uint32_t i = 0; i < r->config->n_wishes && rc == 0; i++)
        rc = measure(r, threads_of(r->config->wishes[i].threads), em);
    return rc;
}

/* ---- workers that are supposed ---- */

static void take(struct run *r, struct actions actions);

static void say(struct run *r, uint64_t who, struct msg_from_worker m)
{
    struct event e = {
        .type = EV_FROM_WORKER, .now_ns = r->now_ns, .from = {.msg = &m, .address = "127.0.0.1"}};
    m.version = PROTO_VERSION;
    m.instance = (struct instance){who, who};
    take(r, core_step(r->core, &e));
}

/* The file names them, or they are numbered. */
static void name_of(const struct config *c, uint32_t idx, char *ret, size_t size)
{
    if (idx < c->n_wishes)
        (void)snprintf(ret, size, "%s", c->wishes[idx].name);
    else
        (void)snprintf(ret, size, "w%" PRIu32, idx + 1);
}

static void join(struct run *r, uint32_t idx)
{
    struct machine_memory here = machine_memory("");
    const struct kern *kern = NULL;
    struct errmsg none;
    uint64_t free = machine_free(&here);
    struct msg_from_worker m = {.type = FROM_HELLO, .hello = {.threads = threads_of(0)}};
    (void)cpu_kern(r->isa, &kern, &none);
    name_of(r->config, idx, m.hello.name, sizeof m.hello.name);
    (void)snprintf(m.hello.isa, sizeof m.hello.isa, "%s", kern ? kern->name : "");
    if (free != UINT64_MAX)
        m.memory = (struct msg_memory){.machine = idx + 1, .machine_free = free};
    say(r, idx + 1, m);
}

static void answer(struct run *r, uint64_t who, const struct msg_calibrate *ask)
{
    const struct measure *m = find_measured(r, threads_of(ask->threads));
    struct msg_from_worker w = {.type = FROM_SPEED,
                                .speed = {.header_digest = ask->header_digest,
                                          .kv_type = ask->kv_type,
                                          .threads = ask->threads,
                                          .n_layer = m->n_layer,
                                          .n_head = m->n_head,
                                          .layer_bytes = m->layer_bytes,
                                          .depth = m->depth,
                                          .position_ps = m->position_ps}};
    for (uint32_t i = 0; i < m->n_layer; i++)
        w.speed.layer[i] = (struct msg_speed_point){m->layer[i].rows, m->layer[i].ns};
    for (uint32_t i = 0; i < m->n_head; i++)
        w.speed.head[i] = (struct msg_speed_point){m->head[i].rows, m->head[i].ns};
    say(r, who, w);
}

/* Of all that the core does only its questions are answered. */
static void take(struct run *r, struct actions actions)
{
    for (size_t i = 0; i < actions.n; i++) {
        const struct action *a = &actions.items[i];
        if (a->type != ACT_TO_WORKER || a->to_worker.msg->type != TO_CALIBRATE) continue;
        struct msg_calibrate ask = a->to_worker.msg->calibrate;
        answer(r, a->to_worker.instance.hi, &ask);
        return; /* the actions are gone; a Hello asks one question */
    }
}

static bool all_planned(const struct msg_status *s)
{
    for (uint32_t i = 0; i < s->n_replicas; i++)
        if (s->replicas[i].n_workers == 0) return false;
    return true;
}

/* ---- the plan ---- */

static int open_core(struct run *r, struct errmsg *em)
{
    const struct model_file *f = r->model;
    struct machine_memory here = machine_memory("");
    struct setup_model m = {.dims = &f->dims,
                            .path = f->path,
                            .digest = weights_digest(f->weights),
                            .header = weights_digest(f->weights)};
    int rc = setup_costs(r->config, f->weights, &here, &m, em);
    if (rc < 0) return rc;
    struct core_config k = setup_core(r->config, &m, 1, "");
    k.worker_timeout_ns = 2 * MOST_NS; /* nobody says anything any more */
    r->core = core_open(&k);
    setup_close(&k, &m);
    return 0;
}

int dry_run_open(const struct config *config, const struct model_file *model, const char *isa,
                 struct dry_run *ret, struct errmsg *em)
{
    struct run *r = mem_zalloc(sizeof *r);
    *r = (struct run){.config = config, .model = model, .isa = isa, .now_ns = NS_PER_S};
    int rc = setup_check(config, model->weights, &model->dims, model->path, em);
    if (rc == 0) rc = measure_all(r, em);
    if (rc == 0) rc = open_core(r, em);
    for (uint32_t i = 0; i < config->serving && rc == 0; i++) join(r, i);
    for (uint64_t t = 0; t < MOST_NS && rc == 0; t += TICK_NS) {
        core_status(r->core, &ret->status);
        if (all_planned(&ret->status)) break;
        r->now_ns += TICK_NS;
        struct event tick = {.type = EV_TICK, .now_ns = r->now_ns};
        take(r, core_step(r->core, &tick));
    }
    ret->core = r->core;
    mem_free(r);
    return rc;
}

void dry_run_close(struct dry_run *d)
{
    core_close(d->core);
}
