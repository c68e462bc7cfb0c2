/* The GGUF reader on any bytes, and the dimensions and slices that follow from a header. */
#include "common/base/mem.h"
#include "common/engine/engine.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct errmsg em = {0};
    struct weights *g;
    struct arch_dims d;
    /* Half of the files count as longer than these bytes, so that their tensors are not missing. */
    uint64_t file_bytes = size && data[size - 1] & 1 ? UINT64_C(1) << 40 : size;
    if (weights_parse(data, size, file_bytes, &g, &em) < 0) return 0;
    for (size_t i = 0; i < weights_meta(g)->n; i++) {
        const struct meta_kv *kv = &weights_meta(g)->kvs[i];
        struct cursor c = {.data = kv->data, .size = (size_t)kv->data_bytes};
        const char *s;
        size_t len, total = 0;
        while (kv->type == META_ARRAY && kv->item_type == META_STRING &&
               meta_next_string(&c, &s, &len))
            total += len;
        fuzz_check(total <= size);
    }
    for (size_t i = 0; i < weights_n_tensors(g); i++) {
        const struct weights_tensor *t = weights_tensor_at(g, i);
        fuzz_check(t->offset <= file_bytes && t->bytes <= file_bytes - t->offset);
        fuzz_check(weights_tensor(g, t->name) == t);
    }
    if (arch_read(g, &d, &em) == 0) {
        uint64_t bytes;
        (void)eng_slice_bytes(g, &d, 0, d.n_layers - 1, &bytes, &em);
        (void)eng_slice_bytes(g, &d, d.n_layers / 2, d.n_layers / 2, &bytes, &em);
    }
    weights_close(g);
    return 0;
}
