#include "coordinator/status_json.h"

#include "coordinator/draft/accept.h"

#include <string.h>

static void put(struct json *j, const char *key, const char *s)
{
    json_put_string(j, key, s, strlen(s));
}

double status_step_ms(uint64_t sum_ns, const struct msg_worker_status *w)
{
    return (double)sum_ns / (double)w->timed_steps / 1e6;
}

static struct json *worker_json(const struct msg_worker_status *w)
{
    const struct msg_heartbeat *h = &w->heartbeat;
    struct json *j = json_new_object(), *layers = json_new_array();
    put(j, "name", w->name);
    put(j, "state", w->state);
    put(j, "isa", w->isa);
    json_put_int(j, "pid", w->pid);
    json_put_int(j, "threads", w->threads);
    if (w->layer_first <= w->layer_last) {
        json_add_int(layers, w->layer_first);
        json_add_int(layers, w->layer_last);
    }
    json_put(j, "layers", layers);
    json_put_int(j, "resident_bytes", (int64_t)h->resident_bytes);
    json_put_int(j, "read_bytes", (int64_t)h->read_bytes);
    json_put_int(j, "weights_bytes", (int64_t)h->weights_bytes);
    json_put_int(j, "kv_bytes", (int64_t)h->kv_bytes);
    json_put_int(j, "rows", (int64_t)h->rows);
    json_put_int(j, "activation_bytes_in", (int64_t)h->activation_bytes_in);
    json_put_int(j, "activation_bytes_out", (int64_t)h->activation_bytes_out);
    json_put_int(j, "compute_ns", (int64_t)w->compute_ns);
    json_put_int(j, "idle_ns", (int64_t)w->idle_ns);
    json_put_int(j, "messages_dropped", (int64_t)h->messages_dropped);
    json_put_int(j, "load_done", (int64_t)w->load_done);
    json_put_int(j, "load_total", (int64_t)w->load_total);
    if (w->timed_steps) {
        struct json *step = json_new_object();
        if (w->predicted_ns) json_put_real(step, "predicted", status_step_ms(w->predicted_ns, w));
        json_put_real(step, "measured", status_step_ms(w->compute_ns, w));
        json_put(j, "step_ms", step);
    }
    json_put_real(j, "cpu_waiting", w->cpu_waiting);
    json_put_int(j, "faults", w->faults);
    return j;
}

/* Pages are a replica's: every stage has the same ones. */
static struct json *pages_json(const struct msg_replica_status *r)
{
    struct json *j = json_new_object();
    json_put_int(j, "total", r->pages_total);
    json_put_int(j, "free", r->pages_free);
    if (!r->windowed_total) return j;
    struct json *windowed = json_new_object();
    json_put_int(windowed, "total", r->windowed_total);
    json_put_int(windowed, "free", r->windowed_total - r->cache.windowed_held);
    json_put_int(windowed, "cached", r->cache.windowed_cached);
    json_put_int(windowed, "held", r->cache.windowed_held);
    json_put(j, "windowed", windowed);
    return j;
}

static struct json *cache_json(const struct msg_replica_status *r)
{
    const struct msg_cache_status *c = &r->cache;
    struct json *j = json_new_object();
    json_put_int(j, "pages_cached", c->pages_cached);
    json_put_int(j, "pages_held", c->pages_held);
    json_put_int(j, "positions_unused", (int64_t)c->positions_unused);
    json_put_int(j, "pages_evicted", (int64_t)c->evicted);
    json_put_int(j, "lookups", (int64_t)c->lookups);
    json_put_int(j, "hits", (int64_t)c->hits);
    json_put_int(j, "tokens_saved", (int64_t)c->tokens_saved);
    json_put_int(j, "tokens_computed", (int64_t)c->tokens_computed);
    return j;
}

static struct json *draft_json(const struct msg_replica_status *r)
{
    const struct msg_draft_status *d = &r->draft;
    struct json *j = json_new_object();
    json_put_int(j, "runs", (int64_t)d->runs);
    json_put_int(j, "drafted", (int64_t)d->drafted);
    json_put_int(j, "accepted", (int64_t)d->accepted);
    json_put_int(j, "early", (int64_t)d->early);
    json_put_int(j, "wasted", (int64_t)d->wasted);
    const struct accept_stats s = {.drafted = d->drafted,
                                   .accepted = d->accepted,
                                   .on_ns = d->on_ns,
                                   .on_tokens = d->on_tokens,
                                   .off_ns = d->off_ns,
                                   .off_tokens = d->off_tokens};
    json_put_real(j, "acceptance", accept_rate(&s)); /* 0: none was drafted */
    json_put_real(j, "speedup", accept_speedup(&s)); /* 0: not both were measured */
    return j;
}

static struct json *replica_json(const struct msg_replica_status *r)
{
    struct json *x = json_new_object(), *workers = json_new_array();
    put(x, "name", r->name);
    put(x, "state", r->state);
    put(x, "why", r->why);
    json_put_bool(x, "rebalancing", r->rebalancing);
    json_put_int(x, "epoch", r->generation);
    json_put_int(x, "steps", (int64_t)r->steps);
    json_put_int(x, "steps_mixed", (int64_t)r->steps_mixed);
    json_put_int(x, "sequences_max", r->sequences_max);
    json_put_int(x, "running", r->running);
    json_put_int(x, "queued", r->queued);
    json_put_int(x, "preemptions", (int64_t)r->cache.preemptions);
    json_put(x, "prefix_cache", cache_json(r));
    json_put(x, "speculation", draft_json(r));
    for (uint32_t i = 0; i < r->n_workers; i++) {
        struct json *w = worker_json(&r->workers[i]);
        json_put(w, "kv_pages", pages_json(r));
        json_add(workers, w);
    }
    json_put(x, "workers", workers);
    return x;
}

struct json *status_json(const struct msg_status *s)
{
    struct json *j = json_new_object(), *replicas = json_new_array(), *requests = json_new_object();
    struct json *spares = json_new_array();
    json_put_bool(j, "ready", s->ready);
    put(j, "model", s->model);
    for (uint32_t i = 0; i < s->n_replicas; i++) json_add(replicas, replica_json(&s->replicas[i]));
    json_put(j, "replicas", replicas);
    for (uint32_t i = 0; i < s->n_spares; i++) json_add(spares, worker_json(&s->spares[i]));
    json_put(j, "spares", spares);
    json_put_int(requests, "running", s->running);
    json_put_int(requests, "queued", s->queued);
    json_put(j, "requests", requests);
    json_put_int(j, "messages_dropped", (int64_t)s->messages_dropped);
    return j;
}
