#include "common/engine/arch.h"

#include "common/engine/kern.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

const char *arch_mat_name(enum arch_mat m)
{
    static const char *const names[N_MATS] = {"attn_q",   "attn_k", "attn_v",  "attn_output",
                                              "ffn_gate", "ffn_up", "ffn_down"};
    return names[m];
}

void arch_mat_shape(const struct arch_dims *d, enum arch_mat m, uint32_t *ret_rows, uint32_t *ret_k)
{
    uint32_t q = d->n_heads * d->head_size, kv = d->n_kv_heads * d->head_size;
    const uint32_t shapes[N_MATS][2] = {
        [MAT_Q] = {q, d->hidden},         [MAT_K] = {kv, d->hidden},
        [MAT_V] = {kv, d->hidden},        [MAT_O] = {d->hidden, q},
        [MAT_GATE] = {d->ffn, d->hidden}, [MAT_UP] = {d->ffn, d->hidden},
        [MAT_DOWN] = {d->hidden, d->ffn},
    };
    *ret_rows = shapes[m][0];
    *ret_k = shapes[m][1];
}

struct reader {
    const struct gguf *g;
    const char *arch;
    struct errmsg *em;
    int rc; /* the first error; later reads do nothing */
};

static void key_of(const struct reader *r, const char *name, char *key, size_t size)
{
    (void)snprintf(key, size, "%s.%s", r->arch, name);
}

/* A count in 1..max; `fallback` where the key is missing, 0 meaning that it is needed. */
static uint32_t read_count(struct reader *r, const char *name, uint32_t max, uint32_t fallback)
{
    char key[128];
    key_of(r, name, key, sizeof key);
    uint32_t v = fallback;
    if (r->rc < 0) return 1;
    int rc = gguf_get_u32(r->g, key, &v, r->em);
    if (rc < 0 && !(rc == ERR_NOTFOUND && fallback)) {
        r->rc = rc == ERR_NOTFOUND ? ERR_FORMAT : rc;
        return 1;
    }
    if (v == 0 || v > max) {
        r->rc =
            err_set(r->em, ERR_FORMAT, "key '%s' is %" PRIu32 ", not in 1..%" PRIu32, key, v, max);
        return 1;
    }
    return v;
}

static float read_float(struct reader *r, const char *name, float fallback)
{
    char key[128];
    key_of(r, name, key, sizeof key);
    float v = fallback;
    if (r->rc < 0) return v;
    int rc = gguf_get_f32(r->g, key, &v, r->em);
    if (rc < 0 && rc != ERR_NOTFOUND) r->rc = rc;
    if (r->rc == 0 && (!isfinite(v) || v < 0.0f))
        r->rc = err_set(r->em, ERR_FORMAT, "key '%s' is negative or not finite", key);
    return v;
}

/* Scaled positions: by a named type, or by a bare factor, which older files mean as linear. */
static void refuse_rope_scaling(struct reader *r)
{
    char key[128];
    const char *type;
    size_t len;
    float factor = 1.0f;
    key_of(r, "rope.scaling.type", key, sizeof key);
    if (gguf_get_string(r->g, key, &type, &len, NULL) == 0) {
        if (len != 4 || memcmp(type, "none", 4) != 0)
            r->rc = err_set(r->em, ERR_UNSUPPORTED, "key '%s': '%.*s' is not supported", key,
                            (int)len, type);
        return;
    }
    static const char *const factors[] = {"rope.scaling.factor", "rope.scale_linear"};
    for (size_t i = 0; i < 2 && r->rc == 0; i++) {
        key_of(r, factors[i], key, sizeof key);
        if (gguf_get_f32(r->g, key, &factor, NULL) == 0 && factor != 0.0f && factor != 1.0f)
            r->rc = err_set(r->em, ERR_UNSUPPORTED, "key '%s': %g is not supported", key,
                            (double)factor);
    }
}

/* A tensor that this engine would leave out would make the answer another one. */
static void refuse_unknown_tensors(struct reader *r)
{
    static const char *const known[] = {"attn_norm.weight", "ffn_norm.weight"};
    for (size_t i = 0; i < gguf_n_tensors(r->g) && r->rc == 0; i++) {
        const char *name = gguf_tensor_at(r->g, i)->name, *rest;
        if (strcmp(name, "rope_freqs.weight") == 0) {
            r->rc = err_set(r->em, ERR_UNSUPPORTED, "tensor '%s' is not supported", name);
        } else if (strncmp(name, "blk.", 4) == 0 && (rest = strchr(name + 4, '.'))) {
            bool found = strcmp(rest + 1, known[0]) == 0 || strcmp(rest + 1, known[1]) == 0;
            for (int m = 0; m < N_MATS && !found; m++) {
                size_t n = strlen(arch_mat_name((enum arch_mat)m));
                found = strncmp(rest + 1, arch_mat_name((enum arch_mat)m), n) == 0 &&
                        strcmp(rest + 1 + n, ".weight") == 0;
            }
            if (!found)
                r->rc = err_set(r->em, ERR_UNSUPPORTED, "tensor '%s' is not supported", name);
        }
    }
}

/* What a llama file may ask for and this engine does not compute. */
static void refuse_variants(struct reader *r)
{
    char key[128];
    if (r->rc < 0) return;
    refuse_rope_scaling(r);
    refuse_unknown_tensors(r);
    key_of(r, "expert_count", key, sizeof key);
    uint32_t n_experts = 0;
    if (r->rc == 0 && gguf_get_u32(r->g, key, &n_experts, NULL) == 0 && n_experts)
        r->rc =
            err_set(r->em, ERR_UNSUPPORTED, "key '%s': mixtures of experts are not supported", key);
}

static void read_vocab(struct reader *r, struct arch_dims *d)
{
    if (r->rc < 0) return;
    const struct gguf_tensor *t = gguf_tensor(r->g, "token_embd.weight");
    const struct gguf_kv *tokens = gguf_find(r->g, "tokenizer.ggml.tokens");
    if (!t) {
        r->rc = err_set(r->em, ERR_FORMAT, "tensor 'token_embd.weight' is missing");
    } else if (t->n_dims != 2 || t->dims[0] != d->hidden || t->dims[1] > ARCH_WIDTH_MAX) {
        r->rc = err_set(r->em, ERR_FORMAT,
                        "tensor 'token_embd.weight' is %" PRIu64 " x %" PRIu64 ", not %" PRIu32
                        " x the vocabulary (at most %u)",
                        t->dims[0], t->dims[1], d->hidden, ARCH_WIDTH_MAX);
    } else if (tokens && tokens->type == GGUF_ARRAY && tokens->n_items != t->dims[1]) {
        r->rc = err_set(r->em, ERR_FORMAT,
                        "tensor 'token_embd.weight' has %" PRIu64 " rows, the vocabulary %" PRIu64
                        " tokens",
                        t->dims[1], tokens->n_items);
    } else {
        d->vocab = (uint32_t)t->dims[1];
    }
}

int arch_read(const struct gguf *g, struct arch_dims *ret, struct errmsg *em)
{
    const char *arch;
    size_t len;
    int rc = gguf_get_string(g, "general.architecture", &arch, &len, em);
    if (rc < 0) return rc == ERR_NOTFOUND ? ERR_FORMAT : rc;
    if (len != 5 || memcmp(arch, "llama", 5) != 0)
        return err_set(em, ERR_UNSUPPORTED, "architecture '%.*s' is not supported (llama is)",
                       len > 64 ? 64 : (int)len, arch);
    struct arch_dims d = {0};
    struct reader r = {.g = g, .arch = "llama", .em = em};
    d.n_layers = read_count(&r, "block_count", ARCH_LAYERS_MAX, 0);
    d.hidden = read_count(&r, "embedding_length", ARCH_WIDTH_MAX, 0);
    d.ffn = read_count(&r, "feed_forward_length", ARCH_WIDTH_MAX, 0);
    d.ctx_train = read_count(&r, "context_length", 1u << 30, 0);
    d.n_heads = read_count(&r, "attention.head_count", 4096, 0);
    d.n_kv_heads = read_count(&r, "attention.head_count_kv", 4096, d.n_heads);
    d.head_size = read_count(&r, "attention.key_length", HEAD_SIZE_MAX,
                             d.hidden / d.n_heads ? d.hidden / d.n_heads : 1);
    uint32_t value_size = read_count(&r, "attention.value_length", HEAD_SIZE_MAX, d.head_size);
    d.rope_dims = read_count(&r, "rope.dimension_count", HEAD_SIZE_MAX, d.head_size);
    d.rope_base = read_float(&r, "rope.freq_base", 10000.0f);
    d.norm_eps = read_float(&r, "attention.layer_norm_rms_epsilon", 1e-5f);
    read_vocab(&r, &d);
    refuse_variants(&r);
    if (r.rc < 0) return r.rc;
    if (d.n_heads % d.n_kv_heads || d.n_heads / d.n_kv_heads > ATTN_GROUP_MAX)
        return err_set(em, ERR_FORMAT,
                       "key 'llama.attention.head_count_kv': %" PRIu32 " KV heads for %" PRIu32
                       " heads (1 to %u heads share one)",
                       d.n_kv_heads, d.n_heads, ATTN_GROUP_MAX);
    if (d.head_size > HEAD_SIZE_MAX || value_size != d.head_size || d.rope_dims > d.head_size ||
        d.rope_dims % 2)
        return err_set(em, ERR_UNSUPPORTED,
                       "head size %" PRIu32 " (values %" PRIu32 ", rotated %" PRIu32 ")",
                       d.head_size, value_size, d.rope_dims);
    if (d.rope_base < 1.0f) return err_set(em, ERR_FORMAT, "key 'llama.rope.freq_base' is below 1");
    *ret = d;
    return 0;
}
