#include "coordinator/setup.h"

#include "common/base/clock.h"
#include "common/base/mem.h"

#include <string.h>

#define LOGITS_MAX 64u
/* The last stage holds a Step's logits as floats; a row of Gemma's vocabulary is 1 MiB. */
#define LOGITS_BYTES ((uint32_t)32 << 20)
/* Sockets, threads, requests' sampling states, read buffers of a load: what a worker has beside
 * weights, pages and a Step's buffers (tests/e2e/slices_test.py measures it). */
#define PROCESS_BYTES ((uint64_t)64 << 20)
/* Unless the file names a size, a pool with room for less than this serves nobody. */
#define LEAST_POSITIONS 1024u
#define TABLES_SHARE 4u /* of what the coordinator's machine has left, for tables of pages */

_Static_assert(LIMIT_PAGE == KV_PAGE, "the core's pages are the engine's");

uint32_t setup_context(const struct config *c, const struct arch_dims *d)
{
    uint32_t most = d->ctx_train < LIMIT_CONTEXT ? d->ctx_train : LIMIT_CONTEXT;
    return c->ctx && c->ctx < most ? c->ctx : most;
}

uint32_t setup_max_replicas(const struct config *c)
{
    return c->max_replicas > c->replicas ? c->max_replicas : c->replicas;
}

/* As many as serve, and as many spares and strangers. */
uint32_t setup_max_workers(const struct config *c)
{
    uint32_t twice = 2 * setup_max_replicas(c) * c->workers;
    return twice > LIMIT_WORKERS ? twice : LIMIT_WORKERS;
}

static uint32_t sequences_of(const struct config *c)
{
    return c->max_sequences && c->max_sequences < c->max_requests ? c->max_sequences
                                                                  : c->max_requests;
}

static uint32_t pages_for(uint64_t positions)
{
    uint64_t n = (positions + LIMIT_PAGE - 1) / LIMIT_PAGE, most = UINT32_MAX / LIMIT_PAGE;
    return (uint32_t)(n < most ? n : most);
}

/* Rows of a Step that may want logits. */
static uint32_t logits_max_of(const struct config *c, const struct arch_dims *d)
{
    uint32_t fit = LOGITS_BYTES / (uint32_t)sizeof(float) / d->vocab;
    uint32_t most = c->chunk < LOGITS_MAX ? c->chunk : LOGITS_MAX;
    if (most > fit) most = fit;
    return most ? most : 1;
}

static enum kv_type kv_of(const struct config *c)
{
    enum kv_type kv = KV_F16;
    (void)eng_kv_parse(c->kv, &kv); /* loop_check has read it */
    return kv;
}

/* The first slice and the last are the largest. */
int setup_check_slices(const struct weights *weights, const struct arch_dims *dims, uint32_t stages,
                       struct errmsg *em)
{
    uint32_t idx[LIMIT_SLICE_TENSORS], n, layers = dims->n_layers;
    uint32_t most = (layers + stages - 1) / stages;
    int rc = eng_slice_tensors(weights, dims, 0, most - 1, idx, LIMIT_SLICE_TENSORS, &n, em);
    if (rc == 0)
        rc = eng_slice_tensors(weights, dims, layers - most, layers - 1, idx, LIMIT_SLICE_TENSORS,
                               &n, em);
    return rc;
}

static uint32_t least_stages(const struct config *c, const struct weights *weights,
                             const struct arch_dims *dims)
{
    uint32_t n = 1;
    while (n < c->workers && setup_check_slices(weights, dims, n, NULL) < 0) n++;
    return n;
}

int setup_costs(const struct config *c, const struct weights *weights, const struct arch_dims *dims,
                const struct machine_memory *here, struct room_costs *ret, struct errmsg *em)
{
    uint32_t n = dims->n_layers;
    uint64_t *layers = mem_alloc(n * sizeof *layers), sum = 0, whole = 0;
    int rc = 0;
    for (uint32_t i = 0; i < n && rc == 0; i++) {
        rc = eng_weights_bytes(weights, dims, i, i, &layers[i], em);
        sum += layers[i];
    }
    if (rc == 0) rc = eng_weights_bytes(weights, dims, 0, n - 1, &whole, em);
    if (rc < 0) {
        mem_free(layers);
        return rc;
    }
    struct eng_sizes s = eng_sizes(dims, c->chunk, logits_max_of(c, dims), setup_context(c, dims));
    uint64_t free = machine_free(here);
    *ret = (struct room_costs){.layer_bytes = layers,
                               .tied_bytes = sum > whole ? sum - whole : 0,
                               .stages_least = least_stages(c, weights, dims),
                               .page_layer_bytes = eng_page_bytes(dims, kv_of(c), 1),
                               .page_bytes = LIMIT_PAGE * sizeof(int32_t),
                               .worker_bytes = s.step_bytes + PROCESS_BYTES,
                               .thread_bytes = s.thread_bytes,
                               .last_bytes = s.logits_bytes,
                               .table_bytes = free == UINT64_MAX ? 0 : free / TABLES_SHARE + 1};
    return 0;
}

struct core_config setup_core(const struct config *c, const struct setup_model *m,
                              uint64_t incarnation, const char *results_endpoint)
{
    uint32_t ctx = setup_context(c, m->dims), sequences = sequences_of(c);
    return (struct core_config){
        .incarnation = incarnation,
        .n_replicas = setup_max_replicas(c),
        .n_wanted = c->replicas,
        .n_stages = c->workers,
        .max_workers = setup_max_workers(c),
        .n_layers = m->dims->n_layers,
        .width = m->dims->hidden,
        .vocab = m->dims->vocab,
        .model_digest = m->digest,
        .model_path = m->path,
        .results_endpoint = results_endpoint,
        .eog = m->eog,
        .n_eog = m->n_eog,
        .kv_type = (uint32_t)kv_of(c),
        .n_pages = c->kv_tokens ? pages_for(c->kv_tokens) : 0,
        .pages_least = pages_for(c->ctx || ctx < LEAST_POSITIONS ? ctx : LEAST_POSITIONS),
        .pages_most = pages_for((uint64_t)sequences * ctx),
        .costs = m->costs,
        .ctx = ctx,
        .rows_max = c->chunk,
        .logits_max = logits_max_of(c, m->dims),
        .window = c->window ? c->window : c->workers + 1,
        .max_live = c->max_requests,
        .max_running = sequences,
        .max_per_client = c->max_per_client ? c->max_per_client : c->max_requests,
        .step_ns = c->step_ms * NS_PER_MS,
        .page = LIMIT_PAGE,
        .share = c->prefix_cache,
        .hash_seed = incarnation,
        .hash_mask = UINT64_MAX,
        .plaintext = c->plaintext,
        .key = c->own.public,
        .replan_after_ns = c->replan_after_s * NS_PER_S,
        .replica_wait_ns = c->replica_wait_s * NS_PER_S,
        .deadline_ns = c->deadline_s * NS_PER_S,
        .worker_timeout_ns = c->worker_timeout_ms * NS_PER_MS,
        .step_timeout_ns = c->step_timeout_ms * NS_PER_MS,
    };
}
