#include "common/engine/kern_shared.h"

void kern_store_quantised(const struct kv_view *kv, uint8_t *page, uint32_t slot, const float *k,
                          const float *v)
{
    enum qtype type = kv_qtype(kv->type);
    const struct tile t = tile_of(type);
    uint32_t block_bytes = qtype_info((uint32_t)type)->bytes, n = kv->head_size / t.block;
    uint8_t *values = page + kv_half_bytes(kv->type, kv->head_size) + slot * n * block_bytes;
    for (uint32_t b = 0; b < n; b++) {
        struct qblock block;
        quant_encode(type, k + b * t.block, &block);
        tile_put(type, &block, slot, page + b * t.bytes);
        quant_encode(type, v + b * t.block, &block);
        quant_write(type, &block, values + b * block_bytes);
    }
}

void kern_attn_join(const struct attn_part *parts, size_t stride, uint32_t n_parts,
                    uint32_t head_size, float *ret_out)
{
    float max = parts[0].max, sum = 0.0f;
    for (uint32_t i = 1; i < n_parts; i++)
        max = parts[i * stride].max > max ? parts[i * stride].max : max;
    for (uint32_t i = 0; i < n_parts; i++) {
        const struct attn_part *p = &parts[i * stride];
        float c = fm_exp(p->max - max);
        sum = fmaf(c, p->sum, sum);
        /* This file is compiled for any CPU, so that an fmaf is a call. Where the chain begins,
         * fma(1, x, +0) is x + 0: in a short context there is no other part. */
        if (i == 0 && c == 1.0f)
            for (uint32_t j = 0; j < head_size; j++) ret_out[j] = p->out[j] + 0.0f;
        else
            for (uint32_t j = 0; j < head_size; j++)
                ret_out[j] = fmaf(c, p->out[j], i ? ret_out[j] : 0.0f);
    }
    float r = 1.0f / sum;
    for (uint32_t j = 0; j < head_size; j++) ret_out[j] *= r;
}

void kern_hadamard(float *x, uint32_t n)
{
    for (uint32_t at = 0; at < n; at += ACT_BLOCK, x += ACT_BLOCK) {
        for (uint32_t h = 1; h < ACT_BLOCK; h *= 2)
            for (uint32_t i = 0; i < ACT_BLOCK; i += 2 * h)
                for (uint32_t j = i; j < i + h; j++) {
                    float a = x[j], b = x[j + h];
                    x[j] = a + b;
                    x[j + h] = a - b;
                }
        for (uint32_t i = 0; i < ACT_BLOCK; i++) x[i] *= 0.17677669529663687f; /* 1 / sqrt(32) */
    }
}

void kern_add_bias(float *x, const float *bias, uint32_t n)
{
    for (uint32_t i = 0; bias && i < n; i++) x[i] += bias[i];
}

void kern_norm_row(const struct kern *k, const struct kern_norm *norm, const float *x, uint32_t n,
                   float *y, struct act *a, uint32_t row)
{
    if (norm->layer)
        k->layernorm(x, norm->weight, norm->bias, y, n, norm->eps);
    else
        k->rmsnorm(x, norm->weight, y, n, norm->eps);
    if (a) k->quantise(y, a, row);
}

size_t kern_scratch_bytes(uint32_t k)
{
    /* A panel unpacked to bytes, and D and M of its sub-blocks of 16 or more. Where few tokens read
     * tiles instead: an integer for each of their sub-blocks. */
    _Static_assert(KERN_FEW_MAX / 16 * sizeof(int32_t) <= TILE_ROWS, "room for starts of sums");
    return (size_t)k * TILE_ROWS + (size_t)k / 16 * TILE_ROWS * 2 * sizeof(float) + 128;
}
