/* How many KV pages the workers of a chain have room for. Pure: it goes by what they tell of their
 * memory and by what the model's slices take.
 *
 * Workers of one machine share what it has left, and workers of one memory group what is left below
 * its limit. What a worker has already is counted as its own to use: it keeps its slice, or gives
 * it up before it loads another. */
#ifndef FLOTILLA_CORE_ROOM_H
#define FLOTILLA_CORE_ROOM_H

#include "proto/msg.h"

#include <stdbool.h>
#include <stdint.h>

/* Bytes that the stages of a model take. */
struct room_costs {
    const uint64_t *layer_bytes; /* weights of each layer, the first's with the embedding, the
                                    last's with the output head; NULL: nothing is known */
    uint64_t tied_bytes;         /* of that, what one stage with all layers has only once */
    uint64_t page_layer_bytes;   /* keys and values of a page in one layer */
    uint64_t page_bytes;         /* what else a worker keeps for a page */
    uint64_t worker_bytes;       /* of each worker: buffers of a Step, the process itself */
    uint64_t thread_bytes;       /* for each of its threads */
    uint64_t last_bytes;         /* more of the last stage: logits */
    uint64_t table_bytes;        /* that the coordinator may take for its tables of pages; 0: any */
    uint32_t
        stages_least; /* of a chain: fewer have slices too large for a message; 0: any number */
};

struct room_stage {
    uint32_t layer_first, layer_last, threads;
    struct msg_memory memory;
};

#define ROOM_UNKNOWN UINT64_MAX /* pages: no worker has told what it has */
#define ROOM_TABLES UINT32_MAX  /* tightest: the coordinator's own tables */

struct room {
    uint64_t pages;
    uint32_t tightest;   /* a stage that bounds it; of several that share, the first */
    uint32_t n_sharing;  /* stages that share its memory */
    bool group;          /* it is a memory group's limit that bounds it, not the machine */
    uint64_t have_bytes; /* for those stages together */
    uint64_t rest_bytes; /* of that, weights and buffers */
};

/* spare: as much stays free as when this program chooses the pool's size (machine_reserve); else
 * half of it. */
struct room room_of(const struct room_costs *costs, uint32_t n_layers,
                    const struct room_stage *stages, uint32_t n_stages, bool spare);

#endif
