#include "coordinator/setup.h"

#include "common/base/clock.h"
#include "common/base/mem.h"

#include <inttypes.h>
#include <string.h>

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
    uint32_t more = setup_max_replicas(c) - c->replicas,
             twice = 2 * (c->serving + more * c->workers);
    return twice > LIMIT_WORKERS ? twice : LIMIT_WORKERS;
}

/* That a stage may have. */
static uint32_t most_layers(const struct config *c, uint32_t layers)
{
    uint32_t shortest = c->workers, most = 0;
    for (uint32_t i = 0; i < c->replicas; i++)
        if (c->chains[i] < shortest) shortest = c->chains[i];
    if (c->split == CONFIG_MEASURED) return layers - shortest + 1;
    if (c->split == CONFIG_EVEN) return (layers + shortest - 1) / shortest;
    for (uint32_t i = 0; i < c->workers; i++)
        if (c->given[i] > most) most = c->given[i];
    return most;
}

/* The first slice and the last are the largest. */
static int check_slices(const struct weights *w, const struct arch_dims *d, uint32_t most,
                        struct errmsg *em)
{
    uint32_t idx[LIMIT_SLICE_TENSORS], n, layers = d->n_layers;
    int rc = eng_slice_tensors(w, d, 0, most - 1, idx, LIMIT_SLICE_TENSORS, &n, em);
    if (rc == 0)
        rc = eng_slice_tensors(w, d, layers - most, layers - 1, idx, LIMIT_SLICE_TENSORS, &n, em);
    return rc;
}

int setup_check(const struct config *c, const struct weights *weights, const struct arch_dims *dims,
                const char *path, struct errmsg *em)
{
    enum kv_type kv;
    uint64_t bytes, given = 0;
    if (!eng_kv_parse(c->kv, &kv))
        return err_set(em, ERR_CONF, "key 'kv': '%s' is unknown (f32, f16, q8_0, q4_0)", c->kv);
    int fits = eng_kv_check(dims, kv, em);
    if (fits < 0) return err_wrap(em, ERR_CONF, "key 'kv'");
    if (c->workers > dims->n_layers)
        return err_set(em, ERR_CONF, "key 'workers': %" PRIu32 " workers for %" PRIu32 " layers",
                       c->workers, dims->n_layers);
    for (uint32_t i = 0; i < c->workers && c->split == CONFIG_GIVEN; i++) given += c->given[i];
    if (c->split == CONFIG_GIVEN && given != dims->n_layers)
        return err_set(em, ERR_CONF, "key 'split': %" PRIu64 " layers, and the model has %" PRIu32,
                       given, dims->n_layers);
    /* Also finds a missing tensor or an unsupported type before any worker is asked. */
    int rc = eng_slice_bytes(weights, dims, 0, dims->n_layers - 1, &bytes, em);
    if (rc < 0) return err_wrap(em, ERR_CONF, "%s", path);
    rc = check_slices(weights, dims, most_layers(c, dims->n_layers), em);
    return rc < 0 ? err_wrap(em, ERR_CONF, "key 'workers'") : 0;
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

/* Positions that windowed layers see, the widest; 0: none is windowed. A file may name any number:
 * no window is wider than a context. */
static uint32_t window_of(const struct config *c, const struct arch_dims *d)
{
    uint32_t most = 0, ctx = setup_context(c, d);
    for (uint32_t l = 0; l < d->n_layers; l++)
        if (arch_block(d, l)->window > most) most = arch_block(d, l)->window;
    return most < ctx ? most : ctx;
}

/* Windowed pages: room for two sequences at the least, and for prefixes as much as for sequences.
 */
static void set_windowed(const struct config *c, const struct arch_dims *d, struct room_costs *ret)
{
    uint32_t window = window_of(c, d);
    if (window == 0) return;
    bool *windowed = mem_alloc(d->n_layers * sizeof *windowed);
    for (uint32_t l = 0; l < d->n_layers; l++) windowed[l] = arch_block(d, l)->window > 0;
    uint32_t each = room_window(window, LIMIT_PAGE, c->chunk);
    ret->layer_windowed = windowed;
    ret->windowed_least = 2 * each;
    ret->windowed_most = 2 * each * sequences_of(c);
}

/* Rows of a Step that may want logits. */
static uint32_t logits_max_of(const struct config *c)
{
    return c->chunk < LIMIT_STEP_LOGITS ? c->chunk : LIMIT_STEP_LOGITS;
}

static enum route_policy policy_of(const struct config *c)
{
    enum route_policy policy = ROUTE_AUTO;
    (void)route_policy_parse(c->policy, &policy); /* config_read has checked it */
    return policy;
}

static enum kv_type kv_of(const struct config *c)
{
    enum kv_type kv = KV_F16;
    (void)eng_kv_parse(c->kv, &kv); /* setup_check has read it */
    return kv;
}

static uint32_t least_stages(const struct config *c, const struct weights *weights,
                             const struct arch_dims *dims)
{
    uint32_t n = 1;
    while (n < c->workers && check_slices(weights, dims, dims->n_layers - n + 1, NULL) < 0) n++;
    return n;
}

int setup_costs(const struct config *c, const struct weights *weights,
                const struct machine_memory *here, struct setup_model *m, struct errmsg *em)
{
    const struct arch_dims *dims = m->dims;
    uint32_t n = dims->n_layers;
    uint64_t *layers = mem_alloc(n * sizeof *layers), sum = 0, whole = 0;
    uint64_t *work = mem_alloc(n * sizeof *work);
    int rc = 0;
    for (uint32_t i = 0; i < n && rc == 0; i++) {
        rc = eng_weights_bytes(weights, dims, i, i, &layers[i], em);
        if (rc == 0) rc = eng_layers_bytes(weights, dims, i, i, &work[i], em);
        sum += layers[i];
    }
    if (rc == 0) rc = eng_weights_bytes(weights, dims, 0, n - 1, &whole, em);
    if (rc < 0) {
        mem_free(layers);
        mem_free(work);
        return rc;
    }
    struct eng_sizes s = eng_sizes(dims, c->chunk, logits_max_of(c), setup_context(c, dims));
    uint64_t free = machine_free(here);
    m->layer_work = work;
    m->costs = (struct room_costs){.layer_bytes = layers,
                                   .tied_bytes = sum > whole ? sum - whole : 0,
                                   .stages_least = least_stages(c, weights, dims),
                                   .page_layer_bytes = eng_page_bytes(dims, kv_of(c), 1),
                                   .page_bytes = LIMIT_PAGE * sizeof(int32_t),
                                   .worker_bytes = s.step_bytes + PROCESS_BYTES,
                                   .thread_bytes = s.thread_bytes,
                                   .last_bytes = s.logits_bytes,
                                   .table_bytes = free == UINT64_MAX ? 0 : free / TABLES_SHARE + 1};
    set_windowed(c, dims, &m->costs);
    return 0;
}

static struct core_wish *wishes_of(const struct config *c)
{
    static const enum plan_prefer prefers[] = {
        [CONFIG_ANYWHERE] = PLAN_ANYWHERE, [CONFIG_FIRST] = PLAN_FIRST, [CONFIG_LAST] = PLAN_LAST};
    struct core_wish *list = mem_zalloc((c->n_wishes + 1) * sizeof *list);
    for (uint32_t i = 0; i < c->n_wishes; i++) {
        const struct config_worker *w = &c->wishes[i];
        list[i] =
            (struct core_wish){.name = w->name,
                               .memory_bytes = w->memory_bytes,
                               .layers_max = w->layers_max,
                               .threads = w->threads,
                               .prefer = prefers[w->prefer],
                               .replica = w->replica == CONFIG_ANY ? CORE_ANY_REPLICA : w->replica,
                               .stage = w->stage == CONFIG_ANY ? PLAN_ANY_STAGE : w->stage};
    }
    return list;
}

void setup_close(struct core_config *k, struct setup_model *m)
{
    mem_free((void *)(uintptr_t)k->wishes);
    k->wishes = NULL;
    mem_free((void *)(uintptr_t)m->costs.layer_bytes);
    m->costs.layer_bytes = NULL;
    mem_free((void *)(uintptr_t)m->costs.layer_windowed);
    m->costs.layer_windowed = NULL;
    mem_free(m->layer_work);
    m->layer_work = NULL;
}

struct core_config setup_core(const struct config *c, const struct setup_model *m,
                              uint64_t incarnation, const char *results_endpoint)
{
    static const enum plan_split splits[] = {
        [CONFIG_MEASURED] = PLAN_BY_SPEED, [CONFIG_EVEN] = PLAN_EVEN, [CONFIG_GIVEN] = PLAN_GIVEN};
    uint32_t ctx = setup_context(c, m->dims), sequences = sequences_of(c);
    return (struct core_config){
        .incarnation = incarnation,
        .n_replicas = setup_max_replicas(c),
        .n_wanted = c->replicas,
        .n_stages = c->workers,
        .chains = c->chains,
        .split = splits[c->split],
        .given = c->split == CONFIG_GIVEN ? c->given : NULL,
        .wishes = wishes_of(c),
        .n_wishes = c->n_wishes,
        .max_workers = setup_max_workers(c),
        .n_layers = m->dims->n_layers,
        .width = m->dims->hidden,
        .vocab = m->dims->vocab,
        .model_digest = m->digest,
        .header_digest = m->header,
        .layer_work = m->layer_work,
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
        .logits_max = logits_max_of(c),
        .window = c->window ? c->window : c->workers + 1,
        .max_live = c->max_requests,
        .max_running = sequences,
        .max_per_client = c->max_per_client ? c->max_per_client : c->max_requests,
        .step_ns = c->step_ms * NS_PER_MS,
        .policy = policy_of(c),
        .page = LIMIT_PAGE,
        .attn_window = window_of(c, m->dims),
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
        .draft = c->drafts,
    };
}
