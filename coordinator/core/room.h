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
    const bool *layer_windowed; /* of each layer: it has windowed pages; NULL: none has */
    uint32_t windowed_least, windowed_most; /* of room_windowed; 0: no layer is windowed */
};

struct room_stage {
    uint32_t layer_first, layer_last, threads;
    struct msg_memory memory;
    uint64_t most_bytes; /* that it may take of it all; 0: any */
};

enum room_place {
    ROOM_MACHINE, /* what the machine has left */
    ROOM_GROUP,   /* what is left below a memory group's limit */
    ROOM_WISH,    /* what this worker may take */
    ROOM_PLACES
};

#define ROOM_UNKNOWN UINT64_MAX /* pages: no worker has told what it has */
#define ROOM_TABLES UINT32_MAX  /* tightest: the coordinator's own tables */

struct room {
    uint64_t pages;
    uint32_t tightest;       /* a stage that bounds it; of several that share, the first */
    uint32_t n_sharing;      /* stages that share its memory */
    enum room_place place;   /* what bounds it */
    uint64_t have_bytes;     /* for those stages together */
    uint64_t rest_bytes;     /* of that, weights and buffers */
    uint64_t taken_bytes;    /* these, and what stays free */
    uint64_t page_bytes;     /* of a page, for those stages together; */
    uint64_t windowed_bytes; /* and of a windowed one */
};

/* The most windowed pages that a sequence holds which has at most n rows in a Step, beside those of
 * guesses. window: positions that windowed layers see. */
static inline uint32_t room_window(uint32_t window, uint32_t page, uint32_t n_rows)
{
    /* Rows begin anywhere in a page, and what they see begins with one (table__slide). */
    return (window - 1 + page - 1) / page + (page - 1 + n_rows + page - 1) / page;
}

/* How many windowed pages a pool has beside so many whole ones: a quarter of these, but at least
 * windowed_least, at most windowed_most, and never more than whole ones. README.md says why. */
uint32_t room_windowed(const struct room_costs *costs, uint64_t n_pages);
/* Of layers [first, end) those that have windowed pages. */
uint32_t room_layers_windowed(const struct room_costs *costs, uint32_t first, uint32_t end);

/* spare: as much stays free as when this program chooses the pool's size (machine_reserve); else
 * half of it. */
struct room room_of(const struct room_costs *costs, uint32_t n_layers,
                    const struct room_stage *stages, uint32_t n_stages, bool spare);

/* What a worker has for weights and pages, if it has no machine or group to share: of `stage` the
 * layers do not count. UINT64_MAX: it has not told. */
uint64_t room_for_slice(const struct room_costs *costs, const struct room_stage *stage, bool spare);

#endif
