#include "coordinator/model_file.h"

#include "common/base/mem.h"

#include <stdio.h>
#include <string.h>

static int32_t token_id(const struct gguf *g, const char *key)
{
    uint32_t id;
    return gguf_get_u32(g, key, &id, NULL) == 0 && id < VOCAB_TOKENS_MAX ? (int32_t)id : -1;
}

/* The strings of an array, pointing into the open file. *ret_n is 0 where there is no such key. */
static int strings(const struct gguf *g, const char *key, struct vocab_string **ret,
                   uint32_t *ret_n, struct errmsg *em)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    *ret = NULL;
    *ret_n = 0;
    if (!kv) return 0;
    if (kv->type != GGUF_ARRAY || kv->item_type != GGUF_STRING ||
        kv->n_items > 4 * VOCAB_TOKENS_MAX)
        return err_set(em, ERR_FORMAT, "key '%s' is not an array of at most %u strings", key,
                       4 * VOCAB_TOKENS_MAX);
    struct vocab_string *s = mem_try((size_t)kv->n_items * sizeof *s + 1);
    if (!s) return err_set(em, ERR_NOMEM, "key '%s'", key);
    struct cursor c = {.data = kv->data, .size = (size_t)kv->data_bytes};
    for (uint64_t i = 0; i < kv->n_items; i++)
        if (!gguf_next_string(&c, &s[i].data, &s[i].len)) break;
    *ret = s;
    *ret_n = (uint32_t)kv->n_items;
    return 0;
}

/* n numbers of 4 bytes, one for each token, aligned. *ret stays NULL where there is no such key. */
static int numbers(const struct gguf *g, const char *key, enum gguf_type type, uint32_t n,
                   void **ret, struct errmsg *em)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv) return 0;
    if (kv->type != GGUF_ARRAY || kv->item_type != type || kv->n_items != n)
        return err_set(em, ERR_FORMAT, "key '%s' does not fit the tokens", key);
    *ret = mem_try((size_t)kv->data_bytes + 1);
    if (!*ret) return err_set(em, ERR_NOMEM, "key '%s'", key);
    memcpy(*ret, kv->data, (size_t)kv->data_bytes);
    return 0;
}

static void string_of(const struct gguf *g, const char *key, struct vocab_string *ret)
{
    *ret = (struct vocab_string){"", 0};
    (void)gguf_get_string(g, key, &ret->data, &ret->len, NULL);
}

static int open_vocab(struct model_file *f, struct errmsg *em)
{
    const struct gguf *g = f->gguf;
    struct vocab_spec s = {.bos = token_id(g, "tokenizer.ggml.bos_token_id"),
                           .eos = token_id(g, "tokenizer.ggml.eos_token_id"),
                           .eot = token_id(g, "tokenizer.ggml.eot_token_id"),
                           .eom = token_id(g, "tokenizer.ggml.eom_token_id"),
                           .unknown = token_id(g, "tokenizer.ggml.unknown_token_id")};
    string_of(g, "tokenizer.ggml.model", &s.model);
    string_of(g, "tokenizer.ggml.pre", &s.pre);
    /* SentencePiece files that do not say want both. */
    s.add_bos = s.space_prefix = s.model.len == 5 && memcmp(s.model.data, "llama", 5) == 0;
    (void)gguf_get_bool(g, "tokenizer.ggml.add_bos_token", &s.add_bos, NULL);
    (void)gguf_get_bool(g, "tokenizer.ggml.add_space_prefix", &s.space_prefix, NULL);
    struct vocab_string *tokens, *merges = NULL;
    int32_t *types = NULL;
    float *scores = NULL;
    int rc = strings(g, "tokenizer.ggml.tokens", &tokens, &s.n_tokens, em);
    if (rc == 0) rc = strings(g, "tokenizer.ggml.merges", &merges, &s.n_merges, em);
    if (rc == 0)
        rc = numbers(g, "tokenizer.ggml.token_type", GGUF_I32, s.n_tokens, (void **)&types, em);
    if (rc == 0)
        rc = numbers(g, "tokenizer.ggml.scores", GGUF_F32, s.n_tokens, (void **)&scores, em);
    struct errmsg warning = {0};
    s.tokens = tokens;
    s.merges = merges;
    s.types = types;
    s.scores = scores;
    if (rc == 0) {
        rc = vocab_open(&s, &f->vocab, &warning);
        if (rc < 0)
            (void)err_set(em, rc, "%s", warning.text);
        else
            (void)snprintf(f->warning, sizeof f->warning, "%.250s", warning.text);
    }
    mem_free(tokens);
    mem_free(merges);
    mem_free(types);
    mem_free(scores);
    return rc;
}

int model_file_open(const char *path, bool with_model, struct model_file *ret, struct errmsg *em)
{
    struct model_file f = {0};
    int rc = gguf_open(path, &f.gguf, em);
    if (rc < 0) return rc;
    if (with_model) rc = arch_read(f.gguf, &f.dims, em);
    if (rc == 0) rc = open_vocab(&f, em);
    if (rc < 0) {
        model_file_close(&f);
        return err_wrap(em, rc, "%s", path);
    }
    f.path = mem_strdup(path);
    *ret = f;
    return 0;
}

void model_file_close(struct model_file *f)
{
    vocab_close(f->vocab);
    gguf_close(f->gguf);
    mem_free(f->path);
    *f = (struct model_file){0};
}
