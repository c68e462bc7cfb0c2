/* The coordinator's shell: sockets and timers to events, events through the core, actions to
 * messages. One thread; texts are tokenised on others (texts.h). */
#ifndef FLOTILLA_COORDINATOR_LOOP_H
#define FLOTILLA_COORDINATOR_LOOP_H

#include "common/base/err.h"
#include "coordinator/config.h"
#include "coordinator/model_file.h"

/* Checks what the cluster file says of the model's chats, without starting anything. */
int loop_check(const struct config *config, const struct model_file *model, struct errmsg *em);

/* Runs until SIGTERM or SIGINT; 0 after an orderly end. Reads the model's content first, unless its
 * hashes are kept in the folder `manifests` (NULL: nowhere) from an earlier start. Prints
 * "listening client=ADDR worker=ADDR" and, each time a replica has become ready, "ready
 * client=ADDR" on stdout. Errors: whatever opening sockets, the model or the metrics' port gives.
 * Once it listens it does not fail. */
int loop_run(const struct config *config, const struct model_file *model, const char *manifests,
             struct errmsg *em);

#endif
