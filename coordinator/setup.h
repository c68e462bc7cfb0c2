/* The core's configuration, from the cluster file and the model. */
#ifndef FLOTILLA_COORDINATOR_SETUP_H
#define FLOTILLA_COORDINATOR_SETUP_H

#include "common/base/err.h"
#include "common/base/machine.h"
#include "common/engine/engine.h"
#include "coordinator/config.h"
#include "coordinator/core/core.h"

/* What the core is told of the model; all borrowed. */
struct setup_model {
    const struct arch_dims *dims;
    const char *path;
    uint64_t digest, header; /* of the whole, and of its headers */
    const int32_t *eog;
    uint32_t n_eog;
    struct room_costs costs;
    uint64_t *layer_work; /* bytes of weights that each layer reads, or NULL */
};

/* What the file asks of this model. ERR_CONF names the key, or the model's file `path`. */
int setup_check(const struct config *c, const struct weights *weights, const struct arch_dims *dims,
                const char *path, struct errmsg *em);

/* The bytes that slices of the model take, and Steps as large as the file allows: fills in
 * m->costs and m->layer_work, which setup_close frees. `here` is what the coordinator's machine has
 * for its own tables. ERR_FORMAT, ERR_UNSUPPORTED: of a tensor. */
int setup_costs(const struct config *c, const struct weights *weights,
                const struct machine_memory *here, struct setup_model *m, struct errmsg *em);

/* The longest sequence, in tokens, that the model and the file allow; the pool may allow less. */
uint32_t setup_context(const struct config *c, const struct arch_dims *dims);

/* How many workers the core may know at once. */
uint32_t setup_max_workers(const struct config *c);

/* The file's keys in the core's terms. incarnation and results_endpoint (borrowed) are the
 * caller's. Freed with setup_close, which the core does not need any more. */
struct core_config setup_core(const struct config *c, const struct setup_model *m,
                              uint64_t incarnation, const char *results_endpoint);

/* Frees what setup_costs and setup_core have made. */
void setup_close(struct core_config *k, struct setup_model *m);

#endif
