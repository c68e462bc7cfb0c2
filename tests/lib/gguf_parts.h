/* Cuts a GGUF file in memory into parts, as gguf-split does: the metadata in the first part,
 * tensors in order, and in each part three keys that say which one it is. */
#ifndef FLOTILLA_TESTS_GGUF_PARTS_H
#define FLOTILLA_TESTS_GGUF_PARTS_H

#include "common/engine/weights.h"
#include "tests/lib/gguf_bytes.h"

#include <stdio.h>

struct gguf_part {
    uint32_t no, count, n_tensors_said; /* the three keys: from 0; parts; tensors of all parts */
    size_t first, end;                  /* the whole's tensors that it has: first..end-1 */
    bool without_keys;                  /* it has none of the three */
};

/* Appends the bytes of a part of `whole`, whose directory is w. */
static inline void gguf_part_bytes(const struct buf *whole, const struct weights *w,
                                   const struct gguf_part *p, struct buf *ret)
{
    const struct meta *m = weights_meta(w);
    const struct meta_kv *last = &m->kvs[m->n - 1];
    const char *keys = m->kvs[0].key - 8;
    struct buf data = {0};
    put_header(ret, p->end - p->first, (p->no == 0 ? m->n : 0) + (p->without_keys ? 0 : 3));
    if (p->no == 0)
        (void)buf_append(ret, keys, (size_t)((const char *)last->data + last->data_bytes - keys));
    if (!p->without_keys) {
        put_number_key(ret, "split.no", META_U16, p->no);
        put_number_key(ret, "split.count", META_U16, p->count);
        put_number_key(ret, "split.tensors.count", META_I32, p->n_tensors_said);
    }
    for (size_t i = p->first; i < p->end; i++) {
        const struct weights_tensor *t = weights_tensor_at(w, i);
        str(ret, t->name);
        u32(ret, t->n_dims);
        for (uint32_t d = 0; d < t->n_dims; d++) u64(ret, t->dims[d]);
        u32(ret, t->type);
        u64(ret, data.len);
        (void)buf_append(&data, whole->data + t->offset, (size_t)t->bytes);
        put_padding(&data);
    }
    if (p->end > p->first) put_padding(ret);
    (void)buf_append(ret, data.data ? data.data : "", data.len);
    buf_close(&data);
}

/* Writes a part to FOLDER/tiny-AS-of-N.gguf, in five digits each. False: it could not be written.
 */
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
