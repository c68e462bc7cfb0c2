/* A model's manifest: one hash for each tensor of its files and one of their headers. It is what
 * "the same model" means between coordinator and workers: a worker compares every tensor that it
 * loads.
 *
 * Making one reads the whole model once. It is kept in a folder by the path of the model's first
 * file, and counts as long as size, inode and times of all its files are those that it was made
 * for. */
#ifndef FLOTILLA_COORDINATOR_MANIFEST_H
#define FLOTILLA_COORDINATOR_MANIFEST_H

#include "common/base/err.h"
#include "common/engine/engine.h"

#include <stdbool.h>
#include <stdint.h>

struct manifest {
    uint64_t identity; /* of the whole model: header and all tensors */
    uint64_t header;   /* weights_digest */
    uint64_t *hashes;  /* n_tensors, by index in the directory */
    uint32_t n_tensors;
    bool kept;        /* it was found in the folder, not made */
    char notice[256]; /* why it could not be kept for the next time, or empty */
};

struct manifest_options {
    const struct weights *weights; /* borrowed, like the next three */
    const char *folder;            /* where manifests are kept; it is made; NULL: nowhere */
    /* While the model is read; false ends it with ERR_CANCELLED. May be NULL. */
    bool (*progress)(void *arg, uint64_t bytes_done, uint64_t bytes_total);
    void *progress_arg;
};

/* Finds or makes it. A kept one that is damaged, or of other files, is made anew. ERR_FORMAT: a
 * file changed or was cut meanwhile. */
int manifest_open(const struct manifest_options *o, struct manifest *ret, struct errmsg *em);
void manifest_close(struct manifest *m);

/* The hashes of a slice's tensors, in the order of eng_slice_tensors, and their number; room for
 * `max`. ERR_LIMIT: there are more. */
int manifest_slice(const struct manifest *m, const struct weights *w, const struct arch_dims *d,
                   uint32_t layer_first, uint32_t layer_last, uint64_t *ret_hashes, uint32_t max,
                   uint32_t *ret_n, struct errmsg *em);

#endif
