#include "coordinator/metrics.h"

#include "common/base/mem.h"
#include "common/base/prom.h"
#include "common/io/http.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>

struct metrics {
    struct http *http;
    pthread_mutex_t lock; /* guards text */
    struct buf text;
    struct buf next; /* the loop's */
};

static void text(void *arg, struct buf *out)
{
    struct metrics *m = arg;
    (void)pthread_mutex_lock(&m->lock);
    (void)buf_append(out, m->text.data ? m->text.data : "", m->text.len);
    (void)pthread_mutex_unlock(&m->lock);
}

int metrics_open(const char *host, uint32_t port, struct metrics **ret, uint32_t *ret_port,
                 struct errmsg *em)
{
    struct metrics *m = mem_zalloc(sizeof *m);
    (void)pthread_mutex_init(&m->lock, NULL);
    int rc = http_open(host, port, "/metrics", PROM_CONTENT_TYPE, text, m, &m->http, ret_port, em);
    if (rc < 0)
        metrics_close(m);
    else
        *ret = m;
    return rc;
}

void metrics_close(struct metrics *m)
{
    if (!m) return;
    http_close(m->http);
    (void)pthread_mutex_destroy(&m->lock);
    buf_close(&m->text);
    buf_close(&m->next);
    mem_free(m);
}

static void one(struct buf *b, const char *name, const char *type, const char *help, uint64_t value)
{
    prom_head(b, name, type, help);
    prom_int(b, name, "", value);
}

static void put_requests(struct buf *b, const struct counters *c, const struct msg_status *s)
{
    char labels[64];
    struct stats_view v;
    prom_head(b, "flotilla_answers_total", "counter", "Answers that have ended, by gRPC status.");
    for (uint32_t i = 0; i < METRICS_STATUSES; i++) {
        (void)snprintf(labels, sizeof labels, "status=\"%" PRIu32 "\"", i);
        if (c->ended[i] || i == 0) prom_int(b, "flotilla_answers_total", labels, c->ended[i]);
    }
    one(b, "flotilla_tokens_total", "counter", "Tokens generated.", c->tokens);
    prom_head(b, "flotilla_requests", "gauge", "Live requests, by state.");
    prom_int(b, "flotilla_requests", "state=\"running\"", s->running);
    prom_int(b, "flotilla_requests", "state=\"queued\"", s->queued);
    prom_head(b, "flotilla_ttft_seconds", "histogram", "From a call's arrival to its first token.");
    stats_read(&c->ttft, &v);
    prom_histogram(b, "flotilla_ttft_seconds", "", &v);
    prom_head(b, "flotilla_itl_seconds", "histogram", "Between two tokens of an answer.");
    stats_read(&c->itl, &v);
    prom_histogram(b, "flotilla_itl_seconds", "", &v);
    one(b, "flotilla_messages_dropped_total", "counter", "Malformed or foreign messages.",
        s->messages_dropped);
}

static void put_pages(struct buf *b, const struct msg_replica_status *r)
{
    const struct msg_cache_status *c = &r->cache;
    const char *name = "flotilla_kv_pages";
    prom_head(b, name, "gauge", "KV pages of the replica, by state.");
    prom_int(b, name, "state=\"free\"", r->pages_free - c->pages_cached);
    prom_int(b, name, "state=\"cached\"", c->pages_cached);
    prom_int(b, name, "state=\"held\"", c->pages_held);
    one(b, "flotilla_kv_positions_unused", "gauge", "Positions of pages held that no row is in.",
        c->positions_unused);
    one(b, "flotilla_prefix_lookups_total", "counter", "Requests that looked for their prompt.",
        c->lookups);
    one(b, "flotilla_prefix_hits_total", "counter", "Of those, that found some of it.", c->hits);
    one(b, "flotilla_prefix_tokens_saved_total", "counter",
        "Positions of prompts that were found computed.", c->tokens_saved);
    one(b, "flotilla_prefill_tokens_total", "counter", "Positions of prompts that were computed.",
        c->tokens_computed);
    one(b, "flotilla_pages_evicted_total", "counter", "Cached pages that were given up.",
        c->evicted);
    one(b, "flotilla_preemptions_total", "counter", "Requests that gave their pages back.",
        c->preemptions);
}

static void stage_seconds(struct buf *b, const char *name, const char *help,
                          const struct msg_replica_status *r, bool idle)
{
    char labels[192], worker[96];
    prom_head(b, name, "counter", help);
    for (uint32_t i = 0; i < r->n_workers; i++) {
        const struct msg_worker_status *w = &r->workers[i];
        (void)snprintf(labels, sizeof labels, "stage=\"%" PRIu32 "\",worker=\"%s\"", i,
                       prom_label(w->name, worker, sizeof worker));
        prom_real(b, name, labels, (double)(idle ? w->idle_ns : w->compute_ns) / 1e9);
    }
}

static void put_replica(struct buf *b, const struct msg_status *s)
{
    const struct msg_replica_status *r = &s->replica;
    one(b, "flotilla_ready", "gauge", "1: a token has gone through every stage.", s->ready);
    one(b, "flotilla_generation", "gauge", "Lives of the replica so far.", r->generation);
    one(b, "flotilla_steps_total", "counter", "Steps issued.", r->steps);
    stage_seconds(b, "flotilla_stage_compute_seconds_total", "Computing Steps.", r, false);
    stage_seconds(b, "flotilla_stage_idle_seconds_total",
                  "Between Steps while requests run: with compute, the bubble share.", r, true);
    prom_head(b, "flotilla_step_wire_seconds_total", "counter",
              "Of Steps' round trips, beside computing, where a Step meets no other.");
    prom_real(b, "flotilla_step_wire_seconds_total", "", (double)r->wire_ns / 1e9);
    prom_head(b, "flotilla_step_queue_seconds_total", "counter",
              "Of Steps' round trips, waiting for those before them.");
    prom_real(b, "flotilla_step_queue_seconds_total", "", (double)r->queue_ns / 1e9);
}

void metrics_publish(struct metrics *m, const struct counters *c, const struct msg_status *s)
{
    buf_drop(&m->next, m->next.len);
    put_replica(&m->next, s);
    put_requests(&m->next, c, s);
    put_pages(&m->next, &s->replica);
    (void)pthread_mutex_lock(&m->lock);
    struct buf old = m->text;
    m->text = m->next;
    m->next = old;
    (void)pthread_mutex_unlock(&m->lock);
}
