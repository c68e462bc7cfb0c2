/* The plan of a cluster file that nobody serves yet: the coordinator's core, in virtual time, is
 * told that its workers have joined. Each of them is taken to be like this machine, where a layer
 * is measured, and to have it for itself. */
#ifndef FLOTILLA_CLI_DRY_RUN_H
#define FLOTILLA_CLI_DRY_RUN_H

#include "coordinator/config.h"
#include "coordinator/core/core.h"
#include "coordinator/model_file.h"

struct dry_run {
    struct core *core;
    struct msg_status status; /* of the plans, valid until dry_run_close */
};

/* ERR_CONF names what the model cannot do of what the file asks; other errors: those of
 * measure_model. Where a plan does not fit, its replica's `why` says so, and that is no error. */
int dry_run_open(const struct config *config, const struct model_file *model, const char *isa,
                 struct dry_run *ret, struct errmsg *em);
void dry_run_close(struct dry_run *d);

#endif
