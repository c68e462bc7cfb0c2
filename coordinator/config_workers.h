/* The keys of the cluster file that say which workers serve: workers, replicas, split. Private to
 * config.c. */
#ifndef FLOTILLA_COORDINATOR_CONFIG_WORKERS_H
#define FLOTILLA_COORDINATOR_CONFIG_WORKERS_H

#include "coordinator/config.h"

#define CONFIG_NODES_MAX 65536u /* values in `workers`, and in `replicas` */

/* From the nodes, which config.c has read. ERR_CONF names file, line, column and key. */
int config__take_workers(const char *path, struct config *c, struct errmsg *em);

#endif
