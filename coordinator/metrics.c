#include "coordinator/metrics.h"

#include "common/base/buf.h"
#include "common/base/mem.h"
#include "common/base/prom.h"
#include "common/io/http.h"

#include <inttypes.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

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
    one(b, "flotilla_embeddings_total", "counter", "Embeddings of texts.", c->embeddings);
    one(b, "flotilla_embedding_tokens_total", "counter", "Tokens of those texts.",
        c->embedding_tokens);
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
    if (!c->drafts) return;
    one(b, "flotilla_draft_asks_total", "counter", "Drafts that were asked for.", c->draft_asks);
    one(b, "flotilla_draft_failed_total", "counter", "Drafts that failed.", c->draft_failed);
    one(b, "flotilla_draft_foreign_total", "counter",
        "Matches in another tenant's text, none of which was used.", c->draft_foreign);
    one(b, "flotilla_draft_index_bytes", "gauge", "Memory of texts that are drafted from.",
        c->draft_index_bytes);
}

/* Of one replica: a sample's labels, which begin with its name. */
static const char *labels_of(const struct msg_replica_status *r, const char *more, char *ret,
                             size_t size)
{
    char name[96];
    (void)snprintf(ret, size, "replica=\"%s\"%s%s", prom_label(r->name, name, sizeof name),
                   more[0] ? "," : "", more);
    return ret;
}

/* A metric that each replica has: its value is at this offset, as a uint64_t or a uint32_t. */
struct replica_metric {
    const char *name, *type, *help;
    size_t offset;
    bool wide;
};

#define WIDE(field) offsetof(struct msg_replica_status, field), true
#define NARROW(field) offsetof(struct msg_replica_status, field), false

static const struct replica_metric replica_metrics[] = {
    {"flotilla_generation", "gauge", "Number of the replica's present or last generation.",
     NARROW(generation)},
    {"flotilla_steps_total", "counter", "Steps issued.", WIDE(steps)},
    {"flotilla_kv_positions_unused", "gauge", "Positions of pages held that no row is in.",
     WIDE(cache.positions_unused)},
    {"flotilla_prefix_lookups_total", "counter", "Requests that looked for their prompt.",
     WIDE(cache.lookups)},
    {"flotilla_prefix_hits_total", "counter", "Of those, that found some of it.", WIDE(cache.hits)},
    {"flotilla_prefix_tokens_saved_total", "counter",
     "Positions of prompts that were found computed.", WIDE(cache.tokens_saved)},
    {"flotilla_prefill_tokens_total", "counter", "Positions of prompts that were computed.",
     WIDE(cache.tokens_computed)},
    {"flotilla_pages_evicted_total", "counter", "Cached pages that were given up.",
     WIDE(cache.evicted)},
    {"flotilla_preemptions_total", "counter", "Requests that gave their pages back.",
     WIDE(cache.preemptions)},
    {"flotilla_draft_runs_total", "counter", "Runs of guessed tokens that were verified.",
     WIDE(draft.runs)},
    {"flotilla_draft_tokens_total", "counter", "Guessed tokens in them.", WIDE(draft.drafted)},
    {"flotilla_draft_accepted_total", "counter", "Of those, that were right.",
     WIDE(draft.accepted)},
    {"flotilla_draft_early_runs_total", "counter",
     "Runs that were sent before the answer to the last had come.", WIDE(draft.early)},
    {"flotilla_draft_wasted_rows_total", "counter", "Their rows that yielded no token.",
     WIDE(draft.wasted)},
};

static uint64_t value_of(const struct msg_replica_status *r, const struct replica_metric *m)
{
    const char *at = (const char *)r + m->offset;
    uint64_t wide;
    uint32_t narrow;
    if (m->wide) return memcpy(&wide, at, sizeof wide), wide;
    return memcpy(&narrow, at, sizeof narrow), narrow;
}

static void put_values(struct buf *b, const struct msg_status *s)
{
    char labels[192];
    for (size_t k = 0; k < sizeof replica_metrics / sizeof *replica_metrics; k++) {
        const struct replica_metric *m = &replica_metrics[k];
        prom_head(b, m->name, m->type, m->help);
        for (uint32_t i = 0; i < s->n_replicas; i++)
            prom_int(b, m->name, labels_of(&s->replicas[i], "", labels, sizeof labels),
                     value_of(&s->replicas[i], m));
    }
}

static void put_pages(struct buf *b, const struct msg_status *s)
{
    const char *name = "flotilla_kv_pages";
    char labels[192];
    prom_head(b, name, "gauge", "KV pages of the replica, by state.");
    for (uint32_t i = 0; i < s->n_replicas; i++) {
        const struct msg_replica_status *r = &s->replicas[i];
        const struct msg_cache_status *c = &r->cache;
        prom_int(b, name, labels_of(r, "state=\"free\"", labels, sizeof labels),
                 r->pages_free - c->pages_cached);
        prom_int(b, name, labels_of(r, "state=\"cached\"", labels, sizeof labels), c->pages_cached);
        prom_int(b, name, labels_of(r, "state=\"held\"", labels, sizeof labels), c->pages_held);
    }
}

/* Only where a replica has such pages. */
static void put_windowed_pages(struct buf *b, const struct msg_status *s)
{
    const char *name = "flotilla_kv_windowed_pages";
    char labels[192];
    bool any = false;
    for (uint32_t i = 0; i < s->n_replicas; i++) any |= s->replicas[i].windowed_total > 0;
    if (!any) return;
    prom_head(b, name, "gauge", "KV pages of layers with a window, by state.");
    for (uint32_t i = 0; i < s->n_replicas; i++) {
        const struct msg_replica_status *r = &s->replicas[i];
        const struct msg_cache_status *c = &r->cache;
        prom_int(b, name, labels_of(r, "state=\"free\"", labels, sizeof labels),
                 r->windowed_total - c->windowed_held - c->windowed_cached);
        prom_int(b, name, labels_of(r, "state=\"cached\"", labels, sizeof labels),
                 c->windowed_cached);
        prom_int(b, name, labels_of(r, "state=\"held\"", labels, sizeof labels), c->windowed_held);
    }
}

static void put_stages(struct buf *b, const char *name, const char *help,
                       const struct msg_status *s, bool idle)
{
    char labels[288], worker[96], more[144];
    prom_head(b, name, "counter", help);
    for (uint32_t k = 0; k < s->n_replicas; k++)
        for (uint32_t i = 0; i < s->replicas[k].n_workers; i++) {
            const struct msg_worker_status *w = &s->replicas[k].workers[i];
            (void)snprintf(more, sizeof more, "stage=\"%" PRIu32 "\",worker=\"%s\"", i,
                           prom_label(w->name, worker, sizeof worker));
            prom_real(b, name, labels_of(&s->replicas[k], more, labels, sizeof labels),
                      (double)(idle ? w->idle_ns : w->compute_ns) / 1e9);
        }
}

static void put_trips(struct buf *b, const char *name, const char *help, const struct msg_status *s,
                      bool queue)
{
    char labels[192];
    prom_head(b, name, "counter", help);
    for (uint32_t i = 0; i < s->n_replicas; i++) {
        const struct msg_replica_status *r = &s->replicas[i];
        prom_real(b, name, labels_of(r, "", labels, sizeof labels),
                  (double)(queue ? r->queue_ns : r->wire_ns) / 1e9);
    }
}

static void put_replicas(struct buf *b, const struct msg_status *s)
{
    one(b, "flotilla_ready", "gauge", "1: a token has gone through every stage of a replica.",
        s->ready);
    put_values(b, s);
    put_pages(b, s);
    put_windowed_pages(b, s);
    put_stages(b, "flotilla_stage_compute_seconds_total", "Computing Steps.", s, false);
    put_stages(b, "flotilla_stage_idle_seconds_total",
               "Between Steps while requests run: with compute, the bubble share.", s, true);
    put_trips(b, "flotilla_step_wire_seconds_total",
              "Of Steps' round trips, beside computing, where a Step meets no other.", s, false);
    put_trips(b, "flotilla_step_queue_seconds_total",
              "Of Steps' round trips, waiting for those before them.", s, true);
}

void metrics_publish(struct metrics *m, const struct counters *c, const struct msg_status *s)
{
    buf_drop(&m->next, m->next.len);
    put_replicas(&m->next, s);
    put_requests(&m->next, c, s);
    (void)pthread_mutex_lock(&m->lock);
    struct buf old = m->text;
    m->text = m->next;
    m->next = old;
    (void)pthread_mutex_unlock(&m->lock);
}
