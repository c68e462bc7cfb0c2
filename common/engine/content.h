/* What a tensor's bytes are, as a hash, so that two copies of a model can be compared tensor by
 * tensor. A tensor is read and hashed in parts of whole panels; its hash is the sum of its parts'
 * hashes, so that parts may arrive in any order. It finds damage and wrong files; it is no
 * protection against a file that was made to have the same hash. */
#ifndef FLOTILLA_ENGINE_CONTENT_H
#define FLOTILLA_ENGINE_CONTENT_H

#include "common/engine/weights.h"

#include <stddef.h>
#include <stdint.h>

/* Changes with the cut or the hash: hashes of different versions cannot be compared. */
#define CONTENT_VERSION 1u

/* Rows of a tensor: all its dimensions but the first, multiplied. */
uint64_t content_rows(const struct weights_tensor *t);
/* Rows of each of its parts; the last part may have fewer. */
uint64_t content_part_rows(const struct weights_tensor *t);
/* The hash of a part whose first byte is byte `at` of its tensor. A tensor's hash is their sum
 * modulo 2^64. */
uint64_t content_hash(const void *data, size_t bytes, uint64_t at);

#endif
