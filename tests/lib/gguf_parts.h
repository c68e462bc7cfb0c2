/* Cuts a GGUF file in memory into parts, as gguf-split does: metadata in the first part, tensors in
 * order, three keys in each that say which part it is. */
#ifndef FLOTILLA_TESTS_GGUF_PARTS_H
#define FLOTILLA_TESTS_GGUF_PARTS_H

#include "common/engine/weights.h"
#include "tests/lib/gguf_bytes.h"

#include <stdio.h>

/* What a part says and has. */
struct gguf_part {
    uint32_t no, count, n_tensors_said;
    size_t first, end; /* tensors of the whole */
    bool without_keys; /* says none of the three */
};

static inline void gguf_part_key(struct buf *b, const char *name, enum meta_type type,
                                 uint32_t value)
{
    str(b, name);
    u32(b, type);
    (void)buf_append(b, &value, meta_type_bytes(type));
}

static inline void gguf_part_pad(struct buf *b)
{
    static const char zero[32];
    (void)buf_append(b, zero, (32 - b->len % 32) % 32);
}

/* The bytes of a part of `whole`, whose directory is w. */
static inline void gguf_part_bytes(const struct buf *whole, const struct weights *w,
                                   const struct gguf_part *p, struct buf *ret)
{
    const struct meta *m = weights_meta(w);
    const struct meta_kv *last = &m->kvs[m->n - 1];
    const char *keys = m->kvs[0].key - 8;
    struct buf data = {0};
    (void)buf_append(ret, "GGUF", 4);
    u32(ret, 3);
    u64(ret, p->end - p->first);
    u64(ret, (p->no == 0 ? m->n : 0) + (p->without_keys ? 0 : 3));
    if (p->no == 0)
        (void)buf_append(ret, keys, (size_t)((const char *)last->data + last->data_bytes - keys));
    if (!p->without_keys) {
        gguf_part_key(ret, "split.no", META_U16, p->no);
        gguf_part_key(ret, "split.count", META_U16, p->count);
        gguf_part_key(ret, "split.tensors.count", META_I32, p->n_tensors_said);
    }
    for (size_t i = p->first; i < p->end; i++) {
        const struct weights_tensor *t = weights_tensor_at(w, i);
        str(ret, t->name);
        u32(ret, t->n_dims);
        for (uint32_t d = 0; d < t->n_dims; d++) u64(ret, t->dims[d]);
        u32(ret, t->type);
        u64(ret, data.len);
        (void)buf_append(&data, whole->data + t->offset, (size_t)t->bytes);
        gguf_part_pad(&data);
    }
    if (p->end > p->first) gguf_part_pad(ret);
    (void)buf_append(ret, data.data ? data.data : "", data.len);
    buf_close(&data);
}

/* Into FOLDER/NAME-0000i-of-0000n.gguf, i being `as`, from 1. False: it could not be written. */
static inline bool gguf_part_write(const struct buf *whole, const struct weights *w,
                                   const struct gguf_part *p, const char *folder, uint32_t as,
                                   uint32_t n)
{
    char path[256];
    struct buf b = {0};
    (void)snprintf(path, sizeof path, "%s/tiny-%05u-of-%05u.gguf", folder, as, n);
    gguf_part_bytes(whole, w, p, &b);
    FILE *f = fopen(path, "wb");
    bool good = f && fwrite(b.data, 1, b.len, f) == b.len;
    if (f) good = fclose(f) == 0 && good;
    buf_close(&b);
    return good;
}

#endif
