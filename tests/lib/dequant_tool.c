/* dequant_tool FILE TENSOR: the tensor's weights as raw f32 on stdout, by the engine's own
 * dequantisation, for comparison with the gguf package. */
#include "common/base/mem.h"
#include "common/engine/weights.h"
#include "common/io/ring.h"

#include <stdio.h>

static const struct weights_tensor *tensor;

static int take(void *arg, size_t idx, const uint8_t *data, struct errmsg *em)
{
    (void)arg;
    (void)idx;
    (void)em;
    uint32_t k = (uint32_t)tensor->dims[0];
    float *row = mem_alloc(k * sizeof *row);
    uint64_t rows = tensor->dims[1] * tensor->dims[2] * tensor->dims[3];
    for (uint64_t r = 0; r < rows; r++) {
        quant_dequantise(tensor->type, data + r * (tensor->bytes / rows), k, row);
        (void)fwrite(row, sizeof *row, k, stdout);
    }
    mem_free(row);
    return 0;
}

int main(int argc, char **argv)
{
    struct errmsg em = {0};
    struct weights *g = NULL;
    if (argc != 3) return 2;
    int rc = weights_open(argv[1], &g, &em);
    if (rc == 0 && !(tensor = weights_tensor(g, argv[2])))
        rc = err_set(&em, ERR_NOTFOUND, "no tensor");
    if (rc == 0) {
        struct ring_use use = {0};
        struct extent x = {tensor->offset, tensor->bytes};
        rc = ring_read(&use, weights_path(g, tensor->file), &x, 1, take, NULL, &em);
    }
    weights_close(g);
    if (rc < 0) (void)fprintf(stderr, "%s\n", em.text);
    return rc < 0;
}
