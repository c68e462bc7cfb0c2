/* A configuration of the coordinator's core for those who drive it without a coordinator: unit
 * tests and the benchmark of its own time. Two stages, and little of everything. */
#ifndef FLOTILLA_TESTS_CORE_CONFIG_H
#define FLOTILLA_TESTS_CORE_CONFIG_H

#include "coordinator/core/core.h"

#include "common/base/clock.h"

static inline struct core_config config(void)
{
    static const int32_t eog = 2;
    return (struct core_config){.incarnation = 77,
                                .n_replicas = 1,
                                .n_stages = 2,
                                .max_workers = LIMIT_WORKERS,
                                .n_layers = 5,
                                .width = 8,
                                .vocab = 50,
                                .model_digest = 9,
                                .model_path = "/m",
                                .results_endpoint = "tcp://:9",
                                .eog = &eog,
                                .n_eog = 1,
                                .n_pages = 8,
                                .page = 16,
                                .share = true,
                                .hash_mask = UINT64_MAX,
                                .ctx = 100,
                                .rows_max = 16,
                                .logits_max = 4,
                                .window = 2,
                                .max_live = 3,
                                .max_running = 3,
                                .max_per_client = 3,
                                .replica_wait_ns = NS_PER_S,
                                .deadline_ns = 60 * NS_PER_S,
                                .worker_timeout_ns = 1500 * NS_PER_MS,
                                .step_timeout_ns = 2 * NS_PER_S};
}

#endif
