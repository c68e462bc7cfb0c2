/* The cluster file: any bytes are read or refused with a reason, and what is read is in range and
 * makes a configuration of the core. */
#include "coordinator/setup.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

static const struct arch_dims dims = {.n_layers = 40,
                                      .hidden = 64,
                                      .vocab = 1000,
                                      .n_heads = 4,
                                      .n_kv_heads = 4,
                                      .head_size = 16,
                                      .ctx_train = 131072};

static void within(uint32_t v, uint32_t min, uint32_t max)
{
    fuzz_check(v >= min && v <= max);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct config c;
    struct errmsg em = {0};
    int rc = config_parse("fuzz", (const char *)data, size, &c, &em);
    if (rc < 0) {
        fuzz_check(strstr(em.text, "fuzz") != NULL); /* the reason says where */
        return 0;
    }
    struct setup_model m = {.dims = &dims, .path = c.model};
    struct core_config k = setup_core(&c, &m, 1, "");
    within(k.n_stages, 1, LIMIT_STAGES);
    within(k.ctx, 1, LIMIT_CONTEXT);
    within(k.n_pages, 0, (1u << 30) / LIMIT_PAGE);
    within(k.pages_least, 1, k.pages_most);
    within(k.rows_max, 1, LIMIT_STEP_ROWS);
    within(k.logits_max, 1, k.rows_max);
    within(k.window, 1, LIMIT_WINDOW);
    within(k.max_live, 1, LIMIT_LIVE);
    within(k.max_running, 1, k.max_live);
    within(k.max_per_client, 1, LIMIT_LIVE);
    uint64_t serving = 0;
    for (uint32_t i = 0; i < k.n_replicas; i++) {
        within(k.chains[i], 1, k.n_stages);
        serving += k.chains[i];
    }
    fuzz_check(serving <= k.max_workers);
    for (uint32_t i = 0; i < k.n_wishes; i++) {
        const struct core_wish *w = &k.wishes[i];
        fuzz_check(w->name[0] && strlen(w->name) < LIMIT_NAME_BYTES);
        fuzz_check(w->replica == CORE_ANY_REPLICA ||
                   (w->replica < k.n_replicas && w->stage < k.chains[w->replica]));
    }
    setup_close(&k, &m);
    config_close(&c);
    return 0;
}
