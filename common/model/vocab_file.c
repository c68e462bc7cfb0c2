#include "common/model/vocab_file.h"

#include "common/base/mem.h"
#include "common/engine/meta.h"

#include <inttypes.h>
#include <string.h>

/* The id of a special token, -1 where there is none: no such key, a negative number, or -1 as the
 * file's writer put it into 32 bits without sign. */
static int token_id(const struct meta *m, const char *key, int32_t *ret, struct errmsg *em)
{
    const struct meta_kv *kv = meta_find(m, key);
    struct meta_int i;
    *ret = -1;
    if (!kv) return 0;
    if (kv->type == META_ARRAY || !meta_int_at(kv, 0, &i))
        return err_set(em, ERR_FORMAT, "key '%s' is not an integer", key);
    if (i.negative || i.value == UINT32_MAX) return 0;
    if (i.value >= VOCAB_TOKENS_MAX)
        return err_set(em, ERR_FORMAT, "key '%s': %" PRIu64 " is no token id (below %u)", key,
                       i.value, VOCAB_TOKENS_MAX);
    *ret = (int32_t)i.value;
    return 0;
}

/* The strings of an array, pointing into the open file. *ret_n is 0 where there is no such key. */
static int strings(const struct meta *m, const char *key, struct vocab_string **ret,
                   uint32_t *ret_n, struct errmsg *em)
{
    const struct meta_kv *kv = meta_find(m, key);
    *ret = NULL;
    *ret_n = 0;
    if (!kv) return 0;
    if (kv->type != META_ARRAY || kv->item_type != META_STRING ||
        kv->n_items > 4 * VOCAB_TOKENS_MAX)
        return err_set(em, ERR_FORMAT, "key '%s' is not an array of at most %u strings", key,
                       4 * VOCAB_TOKENS_MAX);
    struct vocab_string *s = mem_try((size_t)kv->n_items * sizeof *s + 1);
    if (!s) return err_set(em, ERR_NOMEM, "key '%s'", key);
    struct cursor c = {.data = kv->data, .size = (size_t)kv->data_bytes};
    for (uint64_t i = 0; i < kv->n_items; i++)
        if (!meta_next_string(&c, &s[i].data, &s[i].len)) break;
    *ret = s;
    *ret_n = (uint32_t)kv->n_items;
    return 0;
}

/* A key whose value is an array of one number for each token; NULL where there is none. */
static int array_of(const struct meta *m, const char *key, uint32_t n, const struct meta_kv **ret,
                    struct errmsg *em)
{
    *ret = meta_find(m, key);
    if (*ret && ((*ret)->type != META_ARRAY || (*ret)->n_items != n))
        return err_set(em, ERR_FORMAT,
                       "key '%s' is not an array of %" PRIu32 " numbers, one for each token", key,
                       n);
    return 0;
}

/* *ret stays NULL where there is no such key; else the caller frees it. */
static int token_types(const struct meta *m, uint32_t n, int32_t **ret, struct errmsg *em)
{
    static const char key[] = "tokenizer.ggml.token_type";
    const struct meta_kv *kv;
    int rc = array_of(m, key, n, &kv, em);
    if (rc < 0 || !kv) return rc;
    int32_t *types = mem_try(n * sizeof *types);
    if (!types) return err_set(em, ERR_NOMEM, "key '%s'", key);
    for (uint32_t i = 0; i < n && rc == 0; i++) {
        struct meta_int v;
        if (!meta_int_at(kv, i, &v) || v.negative || v.value > INT32_MAX)
            rc = err_set(em, ERR_FORMAT, "key '%s': item %" PRIu32 " is not a token type", key, i);
        else
            types[i] = (int32_t)v.value;
    }
    if (rc == 0)
        *ret = types;
    else
        mem_free(types);
    return rc;
}

static int token_scores(const struct meta *m, uint32_t n, float **ret, struct errmsg *em)
{
    static const char key[] = "tokenizer.ggml.scores";
    const struct meta_kv *kv;
    int rc = array_of(m, key, n, &kv, em);
    if (rc < 0 || !kv) return rc;
    float *scores = mem_try(n * sizeof *scores);
    if (!scores) return err_set(em, ERR_NOMEM, "key '%s'", key);
    for (uint32_t i = 0; i < n && rc == 0; i++)
        if (!meta_f32_at(kv, i, &scores[i]))
            rc = err_set(em, ERR_FORMAT, "key '%s': its items are not numbers", key);
    if (rc == 0)
        *ret = scores;
    else
        mem_free(scores);
    return rc;
}

/* Values of a vocabulary that may be missing, but not be of another kind. */
static int missing_is_fine(int rc)
{
    return rc == ERR_NOTFOUND ? 0 : rc;
}

static int read_scalars(const struct meta *m, const char *pre, struct vocab_spec *s,
                        struct errmsg *em)
{
    const struct {
        const char *key;
        int32_t *id;
    } ids[] = {{"tokenizer.ggml.bos_token_id", &s->bos},
               {"tokenizer.ggml.eos_token_id", &s->eos},
               {"tokenizer.ggml.eot_token_id", &s->eot},
               {"tokenizer.ggml.eom_token_id", &s->eom},
               {"tokenizer.ggml.unknown_token_id", &s->unknown}};
    int rc = 0;
    for (size_t i = 0; i < sizeof ids / sizeof ids[0] && rc == 0; i++)
        rc = token_id(m, ids[i].key, ids[i].id, em);
    s->model = s->pre = (struct vocab_string){"", 0};
    if (rc == 0)
        rc = missing_is_fine(
            meta_get_string(m, "tokenizer.ggml.model", &s->model.data, &s->model.len, em));
    if (rc == 0)
        rc = missing_is_fine(
            meta_get_string(m, "tokenizer.ggml.pre", &s->pre.data, &s->pre.len, em));
    if (pre) s->pre = (struct vocab_string){pre, strlen(pre)};
    /* SentencePiece files that do not say want both. */
    s->add_bos = s->space_prefix = s->model.len == 5 && memcmp(s->model.data, "llama", 5) == 0;
    if (rc == 0)
        rc = missing_is_fine(meta_get_bool(m, "tokenizer.ggml.add_bos_token", &s->add_bos, em));
    if (rc == 0)
        rc = missing_is_fine(
            meta_get_bool(m, "tokenizer.ggml.add_space_prefix", &s->space_prefix, em));
    return rc;
}

int vocab_file_open(const struct weights *w, const struct vocab_file_options *o, struct vocab **ret,
                    struct errmsg *em)
{
    const struct meta *m = weights_meta(w);
    const char *pre = o->pre;
    struct vocab_spec s = {.decodes_only = o->decodes_only};
    struct vocab_string *tokens = NULL, *merges = NULL;
    int32_t *types = NULL;
    float *scores = NULL;
    int rc = read_scalars(m, pre, &s, em);
    if (rc == 0 && pre && (s.model.len != 4 || memcmp(s.model.data, "gpt2", 4) != 0))
        rc = err_set(em, ERR_CONF, "a pre-tokeniser is named, but this vocabulary uses none");
    if (rc == 0) rc = strings(m, "tokenizer.ggml.tokens", &tokens, &s.n_tokens, em);
    if (rc == 0 && !o->decodes_only)
        rc = strings(m, "tokenizer.ggml.merges", &merges, &s.n_merges, em);
    if (rc == 0) rc = token_types(m, s.n_tokens, &types, em);
    if (rc == 0 && !o->decodes_only) rc = token_scores(m, s.n_tokens, &scores, em);
    s.tokens = tokens;
    s.merges = merges;
    s.types = types;
    s.scores = scores;
    if (rc == 0) rc = vocab_open(&s, ret, em);
    mem_free(tokens);
    mem_free(merges);
    mem_free(types);
    mem_free(scores);
    return rc;
}
