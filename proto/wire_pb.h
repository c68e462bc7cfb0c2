/* What wire_cluster.c and wire_client.c share; with it, the only places that know protobuf-c.
 *
 * Encoding goes through structures on the stack or in a scratch arena; protobuf-c packs them.
 * Decoding unpacks into the caller's arena, whose budget is a multiple of the bytes received,
 * checks every field, and hands out plain structures that point into it. */
#ifndef FLOTILLA_PROTO_WIRE_PB_H
#define FLOTILLA_PROTO_WIRE_PB_H

#include "proto/sampling.pb-c.h"
#include "proto/wire.h"

#include <protobuf-c/protobuf-c.h>

/* Optional scalars of a message, set and present. */
#define SET(p, field, value) ((p)->has_##field = 1, (p)->field = (value))

/* protobuf-c wants arrays of pointers. */
#define POINTERS(pointers, items, n)                                                               \
    for (size_t i_ = 0; i_ < (n); i_++) (pointers)[i_] = &(items)[i_]

/* Replaces what `to` holds. */
void wire__pack(const ProtobufCMessage *m, struct buf *to);
/* NULL: malformed, or more memory than the budget, which is LIMIT_UNPACK_FACTOR times the bytes
 * and 64 KiB. Valid until the arena is reset. */
void *wire__unpack(const ProtobufCMessageDescriptor *type, const void *data, size_t n,
                   struct arena *a, struct errmsg *em);
/* The same for a message with a list of sub-messages, each of which takes far more memory than
 * bytes while it is nearly empty: the budget grows by elements_bytes, a sum of WIRE__ELEMENTS. */
void *wire__unpack_elements(const ProtobufCMessageDescriptor *type, const void *data, size_t n,
                            size_t elements_bytes, struct arena *a, struct errmsg *em);
/* Memory of n sub-messages, unpacked as `pb` and handed out as `out`: a pointer to each, the
 * arena's rounding, and what protobuf-c notes while it scans. It notes each field of a message in
 * 32 bytes: the first 16 on its stack, the next 32 in one allocation, then twice as many each time.
 */
#define WIRE__ELEMENTS(n, pb, out) ((n) * (sizeof(pb) + sizeof(out) + 48 + 64 + 32 * 32))
int wire__bad(struct errmsg *em, const char *field);
/* `from` may be NULL: an empty text. A path is any bytes; in a text, what is no printable character
 * becomes a '?'. */
int wire__copy_path(const char *from, char *to, size_t size, const char *field, struct errmsg *em);
int wire__copy_text(const char *from, char *to, size_t size, const char *field, struct errmsg *em);
/* *p borrows from s. */
void wire__set_sampling(Flotilla__Sampling *p, const struct sampling *s, bool has_seed);
/* p may be NULL: no sampling was sent, so greedy. *ret points into p. */
int wire__get_sampling(const Flotilla__Sampling *p, struct sampling *ret, struct errmsg *em);
/* False: lengths that do not fit each other. */
bool wire__get_logprobs(size_t n, size_t n_chosen, const float *chosen, size_t n_ids,
                        const int32_t *ids, size_t n_top, const float *top,
                        struct msg_logprobs *ret);

#endif
