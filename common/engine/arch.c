#include "common/engine/arch.h"

#include "common/base/check.h"
#include "common/base/mem.h"
#include "common/engine/arch/family.h"
#include "common/engine/kern.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct arch *const families[] = {
#define X(name) &arch_##name,
    ARCH_FAMILIES(X)
#undef X
};

#define N_FAMILIES (sizeof families / sizeof families[0])

const char *arch_mat_name(enum arch_mat m)
{
    static const char *const names[N_MATS] = {
        "attn_q.weight",   "attn_k.weight", "attn_v.weight",  "attn_output.weight",
        "ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"};
    return names[m];
}

const char *arch_vec_name(enum arch_vec v)
{
    static const char *const names[N_VECS] = {[VEC_ATTN_NORM] = "attn_norm.weight",
                                              [VEC_Q_BIAS] = "attn_q.bias",
                                              [VEC_K_BIAS] = "attn_k.bias",
                                              [VEC_V_BIAS] = "attn_v.bias",
                                              [VEC_Q_NORM] = "attn_q_norm.weight",
                                              [VEC_K_NORM] = "attn_k_norm.weight",
                                              [VEC_ATTN_POST_NORM] = "post_attention_norm.weight",
                                              [VEC_FFN_NORM] = "ffn_norm.weight",
                                              [VEC_FFN_POST_NORM] = "post_ffw_norm.weight"};
    return names[v];
}

uint32_t arch_vec_width(const struct arch_dims *d, enum arch_vec v)
{
    switch (v) {
    case VEC_Q_NORM:
    case VEC_K_NORM: return d->head_size;
    case VEC_Q_BIAS: return d->n_heads * d->head_size;
    case VEC_K_BIAS:
    case VEC_V_BIAS: return d->n_kv_heads * d->head_size;
    case VEC_ATTN_NORM:
    case VEC_ATTN_POST_NORM:
    case VEC_FFN_NORM:
    case VEC_FFN_POST_NORM:
    case N_VECS: break;
    }
    return d->hidden;
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

/* ---- keys, for the families and below ---- */

/* The whole name of a key that is about to be read. */
static void key_of(const struct arch_reader *r, const char *name, char *key, size_t size)
{
    (void)snprintf(key, size, "%s.%s", r->arch->name, name);
    const struct meta_kv *kv = r->read ? meta_find(r->meta, key) : NULL;
    if (kv) r->read[kv - r->meta->kvs] = true;
}

uint32_t arch__count(struct arch_reader *r, const char *name, uint32_t max, uint32_t fallback)
{
    char key[128];
    key_of(r, name, key, sizeof key);
    uint32_t v = fallback;
    if (r->rc < 0) return 1;
    int rc = meta_get_u32(r->meta, key, &v, r->em);
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

float arch__float(struct arch_reader *r, const char *name, float fallback)
{
    char key[128];
    key_of(r, name, key, sizeof key);
    float v = fallback;
    if (r->rc < 0) return v;
    int rc = meta_get_f32(r->meta, key, &v, r->em);
    if (rc < 0 && rc != ERR_NOTFOUND) r->rc = rc;
    if (r->rc == 0 && (!isfinite(v) || v < 0.0f))
        r->rc = err_set(r->em, ERR_FORMAT, "key '%s' is negative or not finite", key);
    return v;
}

uint32_t arch__number(struct arch_reader *r, const char *name)
{
    char key[128];
    key_of(r, name, key, sizeof key);
    uint32_t v = 0;
    if (r->rc < 0) return 0;
    int rc = meta_get_u32(r->meta, key, &v, r->em);
    if (rc < 0 && rc != ERR_NOTFOUND) r->rc = rc;
    return v;
}

void arch__refuse(struct arch_reader *r, const char *name, const char *what)
{
    if (arch__number(r, name) && r->rc == 0)
        r->rc = err_set(r->em, ERR_UNSUPPORTED, "key '%s.%s': %s are not supported for %s",
                        r->arch->name, name, what, r->arch->name);
}

float arch__rope_base(struct arch_reader *r, const char *name, float fallback)
{
    float base = arch__float(r, name, fallback);
    if (r->rc == 0 && base < 1.0f)
        r->rc = err_set(r->em, ERR_FORMAT, "key '%s.%s' is below 1", r->arch->name, name);
    return base;
}

/* Scaled positions: by a named type, or by a bare factor, which older files mean as linear. */
void arch__rope_scaling(struct arch_reader *r, struct rope_params *p)
{
    char key[128];
    const char *type;
    size_t len;
    float factor = arch__float(r, "rope.scaling.factor", 0.0f);
    if (factor == 0.0f) factor = arch__float(r, "rope.scale_linear", 0.0f);
    if (factor == 0.0f) factor = 1.0f;
    key_of(r, "rope.scaling.type", key, sizeof key);
    if (r->rc < 0) return;
    int rc = meta_get_string(r->meta, key, &type, &len, r->em);
    if (rc == ERR_NOTFOUND) {
        type = "linear";
        len = strlen(type);
    } else if (rc < 0) {
        r->rc = rc;
        return;
    }
    if (len == 4 && memcmp(type, "none", 4) == 0) return;
    if (len == 4 && memcmp(type, "yarn", 4) == 0)
        p->scaling = ROPE_YARN;
    else if (len == 6 && memcmp(type, "linear", 6) == 0)
        p->scaling = factor == 1.0f ? ROPE_PLAIN : ROPE_LINEAR;
    else
        r->rc = err_set(r->em, ERR_UNSUPPORTED,
                        "key '%s': '%.*s' is not supported (none, linear, yarn)", key,
                        len > 64 ? 64 : (int)len, type);
    p->factor = factor;
    if (r->rc == 0 && factor < 1.0f)
        r->rc = err_set(r->em, ERR_FORMAT, "key '%s.rope.scaling.factor' is %g, below 1",
                        r->arch->name, (double)factor);
    if (p->scaling != ROPE_YARN) return;
    p->ctx_orig = (float)arch__number(r, "rope.scaling.original_context_length");
    p->attn_factor = arch__float(r, "rope.scaling.attn_factor", 1.0f);
    p->beta_fast = arch__float(r, "rope.scaling.yarn_beta_fast", 32.0f);
    p->beta_slow = arch__float(r, "rope.scaling.yarn_beta_slow", 1.0f);
    if (r->rc == 0 && p->base <= 1.0f)
        r->rc =
            err_set(r->em, ERR_FORMAT, "key '%s.rope.freq_base' is %g: YaRN needs a base above 1",
                    r->arch->name, (double)p->base);
    if (r->rc == 0 && (p->ctx_orig < 1.0f || p->beta_fast < 1e-3f || p->beta_slow < 1e-3f))
        r->rc =
            err_set(r->em, ERR_FORMAT,
                    "YaRN needs key '%s.rope.scaling.original_context_length' and betas above 0",
                    r->arch->name);
}

struct arch_block *arch__add_block(struct arch_dims *d)
{
    CHECK(d->n_blocks < ARCH_BLOCKS_MAX);
    struct arch_block *b = &d->blocks[d->n_blocks++];
    *b = (struct arch_block){.rope = {.scaling = ROPE_PLAIN, .factor = 1.0f}};
    return b;
}

/* ---- tensors ---- */

/* Whether a layer with these vectors has the tensor "blk.N.NAME". */
static bool known_of_layer(uint32_t vecs, const char *name)
{
    for (int m = 0; m < N_MATS; m++)
        if (strcmp(arch_mat_name((enum arch_mat)m), name) == 0) return true;
    for (int v = 0; v < N_VECS; v++)
        if (vecs >> v & 1 && strcmp(arch_vec_name((enum arch_vec)v), name) == 0) return true;
    return false;
}

/* The layer of "blk.N.REST", N as this engine writes it; false for another name. */
static bool layer_of(const char *name, uint32_t *ret_layer, const char **ret_rest)
{
    const char *at = name + strlen("blk.");
    uint32_t layer = 0;
    if (strncmp(name, "blk.", 4) != 0 || *at < '0' || *at > '9' || (*at == '0' && at[1] != '.'))
        return false;
    for (; *at >= '0' && *at <= '9' && layer <= ARCH_LAYERS_MAX; at++)
        layer = layer * 10 + (uint32_t)(*at - '0');
    *ret_layer = layer;
    *ret_rest = at + 1;
    return *at == '.';
}

/* Leaving a tensor out would change the answer. */
static void refuse_unknown_tensors(struct arch_reader *r, const struct arch_dims *d)
{
    static const char *const known[] = {"token_embd.weight", "output_norm.weight", "output.weight",
                                        "rope_freqs.weight"};
    for (size_t i = 0; i < weights_n_tensors(r->w) && r->rc == 0; i++) {
        const char *name = weights_tensor_at(r->w, i)->name, *rest;
        uint32_t layer;
        bool found = false;
        if (layer_of(name, &layer, &rest)) {
            uint32_t any = 0;
            for (uint32_t b = 0; b < d->n_blocks; b++) any |= d->blocks[b].vecs;
            found = known_of_layer(layer < d->n_layers ? arch_block(d, layer)->vecs : any, rest);
            if (found && layer >= d->n_layers) {
                r->rc = err_set(r->em, ERR_FORMAT,
                                "tensor '%s' belongs to no layer: key '%s.block_count' is %" PRIu32,
                                name, r->arch->name, d->n_layers);
                return;
            }
        }
        for (size_t k = 0; k < sizeof known / sizeof known[0]; k++)
            found = found || strcmp(name, known[k]) == 0;
        if (!found)
            r->rc = err_set(r->em, ERR_UNSUPPORTED, "tensor '%s' is not supported for %s", name,
                            r->arch->name);
    }
}

static void read_vocab(struct arch_reader *r, struct arch_dims *d)
{
    uint32_t said = arch__number(r, "vocab_size");
    if (r->rc < 0) return;
    const struct weights_tensor *t = weights_tensor(r->w, "token_embd.weight");
    const struct meta_kv *tokens = meta_find(r->meta, "tokenizer.ggml.tokens");
    if (!t) {
        r->rc = err_set(r->em, ERR_FORMAT, "tensor 'token_embd.weight' is missing");
    } else if (t->n_dims != 2 || t->dims[0] != d->hidden || t->dims[1] > ARCH_WIDTH_MAX) {
        r->rc = err_set(r->em, ERR_FORMAT,
                        "tensor 'token_embd.weight' is %" PRIu64 " x %" PRIu64 ", not %" PRIu32
                        " x the vocabulary (at most %u)",
                        t->dims[0], t->dims[1], d->hidden, ARCH_WIDTH_MAX);
    } else if (tokens && tokens->type == META_ARRAY && tokens->n_items != t->dims[1]) {
        r->rc = err_set(r->em, ERR_FORMAT,
                        "tensor 'token_embd.weight' has %" PRIu64 " rows, the vocabulary %" PRIu64
                        " tokens",
                        t->dims[1], tokens->n_items);
    } else if (said && said != t->dims[1]) {
        r->rc = err_set(r->em, ERR_FORMAT,
                        "tensor 'token_embd.weight' has %" PRIu64
                        " rows, key '%s.vocab_size' is %" PRIu32,
                        t->dims[1], r->arch->name, said);
    } else {
        d->vocab = (uint32_t)t->dims[1];
    }
}

static int find_arch(const struct meta *m, const struct arch **ret, struct errmsg *em)
{
    const char *name;
    size_t len;
    int rc = meta_get_string(m, "general.architecture", &name, &len, em);
    if (rc < 0) return rc == ERR_NOTFOUND ? ERR_FORMAT : rc;
    char all[256] = "";
    for (size_t i = 0; i < N_FAMILIES; i++) {
        const char *of = families[i]->name;
        if (strlen(of) == len && memcmp(of, name, len) == 0) {
            *ret = families[i];
            return 0;
        }
        size_t at = strlen(all);
        (void)snprintf(all + at, sizeof all - at, "%s%s", i ? ", " : "", of);
    }
    return err_set(em, ERR_UNSUPPORTED, "architecture '%.*s' is not supported (%s)",
                   len > 64 ? 64 : (int)len, name, all);
}

static int check_heads(const struct arch_dims *d, uint32_t value_size, struct errmsg *em)
{
    if (d->n_heads % d->n_kv_heads || d->n_heads / d->n_kv_heads > ATTN_GROUP_MAX)
        return err_set(em, ERR_FORMAT,
                       "key '%s.attention.head_count_kv': %" PRIu32 " KV heads for %" PRIu32
                       " heads (1 to %u heads share one)",
                       d->arch->name, d->n_kv_heads, d->n_heads, ATTN_GROUP_MAX);
    if (d->head_size > HEAD_SIZE_MAX || value_size != d->head_size || d->rope_dims > d->head_size ||
        d->rope_dims % 2)
        return err_set(em, ERR_UNSUPPORTED,
                       "head size %" PRIu32 " (values %" PRIu32 ", rotated %" PRIu32 ")",
                       d->head_size, value_size, d->rope_dims);
    return 0;
}

static void read_dims(struct arch_reader *r, struct arch_dims *d)
{
    d->arch = r->arch;
    d->n_layers = arch__count(r, "block_count", ARCH_LAYERS_MAX, 0);
    d->hidden = arch__count(r, "embedding_length", ARCH_WIDTH_MAX, 0);
    d->ffn = arch__count(r, "feed_forward_length", ARCH_WIDTH_MAX, 0);
    d->ctx_train = arch__count(r, "context_length", 1u << 30, 0);
    d->n_heads = arch__count(r, "attention.head_count", 4096, 0);
    d->n_kv_heads = arch__count(r, "attention.head_count_kv", 4096, d->n_heads);
    d->head_size = arch__count(r, "attention.key_length", HEAD_SIZE_MAX,
                               d->hidden / d->n_heads ? d->hidden / d->n_heads : 1);
    uint32_t value_size = arch__count(r, "attention.value_length", HEAD_SIZE_MAX, d->head_size);
    d->rope_dims = arch__count(r, "rope.dimension_count", HEAD_SIZE_MAX, d->head_size);
    d->norm_eps = arch__float(r, "attention.layer_norm_rms_epsilon", 1e-5f);
    d->embd_scale = 1.0f;
    d->q_scale = 1.0f / sqrtf((float)d->head_size);
    d->score_softcap = arch__float(r, "attn_logit_softcapping", 0.0f);
    d->logit_softcap = arch__float(r, "final_logit_softcapping", 0.0f);
    r->arch->fill(r, d);
    read_vocab(r, d);
    arch__refuse(r, "expert_count", "mixtures of experts");
    if (r->rc == 0) refuse_unknown_tensors(r, d);
    if (r->rc == 0) r->rc = check_heads(d, value_size, r->em);
}

int arch_read(const struct weights *w, struct arch_dims *ret, struct errmsg *em)
{
    struct arch_dims d = {0};
    struct arch_reader r = {.w = w, .meta = weights_meta(w), .em = em};
    int rc = find_arch(weights_meta(w), &r.arch, em);
    if (rc < 0) return rc;
    read_dims(&r, &d);
    if (r.rc == 0) *ret = d;
    return r.rc;
}

/* Adds a name to a list that may be too long for its text. */
static void list_name(struct errmsg *to, const struct meta_kv *kv)
{
    size_t at = strlen(to->text), room = sizeof to->text - at;
    int n = snprintf(to->text + at, room, "%s'%.*s'", at ? ", " : "", (int)kv->key_len, kv->key);
    if (n >= (int)room) to->text[at] = 0;
}

size_t arch_unread(const struct weights *w, struct errmsg *ret)
{
    struct arch_dims d = {0};
    struct errmsg ignored, names = {0};
    struct arch_reader r = {.w = w, .meta = weights_meta(w), .em = &ignored};
    size_t n = 0;
    if (find_arch(weights_meta(w), &r.arch, &ignored) < 0) return 0;
    r.read = mem_try(r.meta->n * sizeof *r.read);
    if (!r.read) return 0;
    memset(r.read, 0, r.meta->n * sizeof *r.read);
    read_dims(&r, &d);
    size_t prefix = strlen(r.arch->name);
    for (size_t i = 0; i < r.meta->n; i++) {
        const struct meta_kv *kv = &r.meta->kvs[i];
        if (r.read[i] || kv->key_len <= prefix || memcmp(kv->key, r.arch->name, prefix) != 0 ||
            kv->key[prefix] != '.')
            continue;
        list_name(&names, kv);
        n++;
    }
    mem_free(r.read);
    if (n)
        (void)err_set(ret, 0, "%zu key%s of the model without effect here: %s", n,
                      n == 1 ? " is" : "s are", names.text);
    return n;
}
