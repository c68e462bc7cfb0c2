/* A small random llama as a GGUF file, for tests that need a whole model and no tokenizer. Its
 * heads together are wider than the hidden width, and its output head is the embedding. */
#ifndef FLOTILLA_TESTS_TINY_LLAMA_H
#define FLOTILLA_TESTS_TINY_LLAMA_H

#include "common/base/rng.h"
#include "common/engine/quant.h"
#include "common/engine/weights.h"
#include "tests/lib/gguf_bytes.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define TINY_HIDDEN 96u
#define TINY_HEADS 4u
#define TINY_KV_HEADS 2u
#define TINY_HEAD 64u
#define TINY_FFN 160u
#define TINY_VOCAB 48u

struct tiny_llama {
    uint32_t layers;      /* whose tensors are in the file */
    uint32_t block_count; /* what its metadata says; 0: the same */
    uint32_t vocab;       /* 0: TINY_VOCAB */
    uint32_t context;     /* 0: 128 */
    enum qtype type;      /* of the matrices: F32 or Q8_0 */
    uint64_t seed;
    const struct buf *keys; /* the bytes of n_keys more keys; NULL: none */
    uint32_t n_keys;
    const char *more; /* name of one more tensor, or NULL */
};

/* Appends a tensor's entry to the table and its values to the data. rows 0: a vector, of F32. */
static inline void tiny_tensor(struct buf *table, struct buf *data, struct rng *rng,
                               const char *name, uint32_t k, uint32_t rows, enum qtype type)
{
    float x[32];
    if (!rows) type = QTYPE_F32;
    str(table, name);
    u32(table, rows ? 2 : 1);
    u64(table, k);
    if (rows) u64(table, rows);
    u32(table, type);
    u64(table, data->len);
    for (uint32_t i = 0; i < k * (rows ? rows : 1); i++) {
        float f = (float)rng_below(rng, 2001) / 1000.0f - 1.0f;
        x[i % 32] = f = rows ? f : 1.0f + f / 10.0f;
        if (type == QTYPE_F32) {
            (void)buf_append(data, &f, sizeof f);
        } else if (i % 32 == 31) {
            struct qblock b;
            uint8_t block[34];
            quant_encode(type, x, &b);
            quant_write(type, &b, block);
            (void)buf_append(data, block, sizeof block);
        }
    }
    put_padding(data);
}

/* The file's bytes; the caller closes *ret. */
static inline void tiny_llama_bytes(const struct tiny_llama *t, struct buf *ret)
{
    static const struct {
        const char *name;
        uint32_t k, rows;
    } of_layer[] = {{"attn_norm", TINY_HIDDEN, 0},
                    {"ffn_norm", TINY_HIDDEN, 0},
                    {"attn_q", TINY_HIDDEN, TINY_HEADS * TINY_HEAD},
                    {"attn_k", TINY_HIDDEN, TINY_KV_HEADS * TINY_HEAD},
                    {"attn_v", TINY_HIDDEN, TINY_KV_HEADS * TINY_HEAD},
                    {"attn_output", TINY_HEADS * TINY_HEAD, TINY_HIDDEN},
                    {"ffn_gate", TINY_HIDDEN, TINY_FFN},
                    {"ffn_up", TINY_HIDDEN, TINY_FFN},
                    {"ffn_down", TINY_FFN, TINY_HIDDEN}};
    struct buf table = {0}, data = {0};
    struct rng rng = {t->seed};
    tiny_tensor(&table, &data, &rng, "token_embd.weight", TINY_HIDDEN,
                t->vocab ? t->vocab : TINY_VOCAB, t->type);
    tiny_tensor(&table, &data, &rng, "output_norm.weight", TINY_HIDDEN, 0, t->type);
    for (uint32_t l = 0; l < t->layers; l++)
        for (size_t i = 0; i < sizeof of_layer / sizeof of_layer[0]; i++) {
            char name[64];
            (void)snprintf(name, sizeof name, "blk.%u.%s.weight", l, of_layer[i].name);
            tiny_tensor(&table, &data, &rng, name, of_layer[i].k, of_layer[i].rows, t->type);
        }
    if (t->more) tiny_tensor(&table, &data, &rng, t->more, TINY_HIDDEN, 0, t->type);
    put_header(ret, 2 + 9 * t->layers + (t->more != NULL), 9 + t->n_keys);
    put_text_key(ret, "general.architecture", "llama");
    put_number_key(ret, "llama.context_length", META_U32, t->context ? t->context : 128);
    put_number_key(ret, "llama.embedding_length", META_U32, TINY_HIDDEN);
    put_number_key(ret, "llama.block_count", META_U32, t->block_count ? t->block_count : t->layers);
    put_number_key(ret, "llama.feed_forward_length", META_U32, TINY_FFN);
    put_number_key(ret, "llama.attention.head_count", META_U32, TINY_HEADS);
    put_number_key(ret, "llama.attention.head_count_kv", META_U32, TINY_KV_HEADS);
    put_number_key(ret, "llama.attention.key_length", META_U32, TINY_HEAD);
    put_number_key(ret, "llama.attention.value_length", META_U32, TINY_HEAD);
    if (t->keys) (void)buf_append(ret, t->keys->data, t->keys->len);
    (void)buf_append(ret, table.data, table.len);
    put_padding(ret);
    (void)buf_append(ret, data.data, data.len);
    buf_close(&table);
    buf_close(&data);
}

/* Writes a new file; `path` is a mkstemp template, and then the file's name. False: it could not be
 * written. */
static inline bool tiny_llama_write(const struct tiny_llama *t, char *path)
{
    struct buf b = {0};
    tiny_llama_bytes(t, &b);
    int fd = mkstemp(path);
    bool good = fd >= 0 && write(fd, b.data, b.len) == (ssize_t)b.len;
    if (fd >= 0) good = close(fd) == 0 && good;
    buf_close(&b);
    return good;
}

#endif
