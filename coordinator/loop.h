/* The coordinator's shell: sockets and timers to events, events through the core, actions to
 * messages. One thread, and one more for tokenising. */
#ifndef FLOTILLA_COORDINATOR_LOOP_H
#define FLOTILLA_COORDINATOR_LOOP_H

#include "common/base/err.h"
#include "coordinator/config.h"
#include "coordinator/model_file.h"

/* Whether the file asks for what the model can do: context, pool, workers, KV type. */
int loop_check(const struct config *config, const struct model_file *model, struct errmsg *em);

/* Until SIGTERM or SIGINT. Reads the model's content first, unless its hashes are kept in
 * `manifests` (NULL: nowhere) from a start before. Prints "listening client=ADDR worker=ADDR" and,
 * each time a replica has become ready, "ready client=ADDR" on stdout. */
int loop_run(const struct config *config, const struct model_file *model, const char *manifests,
             struct errmsg *em);

#endif
