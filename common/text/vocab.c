/* What both kinds of vocabulary share: the tokens' bytes, special tokens, ends of generation. A
 * text is cut at special tokens; what lies between is encoded by its kind (tok_bpe.c, tok_spm.c).
 */
#include "common/text/vocab_state.h"

#include "common/base/mem.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Names by which files mark an end of generation that their metadata does not list. */
static const char *const eog_names[] = {"<|endoftext|>",   "<|im_end|>",    "<|eot_id|>",
                                        "<|eom_id|>",      "<end_of_turn>", "<|end|>",
                                        "<|end_of_text|>", "<EOT>",         "</s>"};

/* ---- opening ---- */

static int store_pieces(struct vocab *v, const struct vocab_spec *s, struct errmsg *em)
{
    size_t total = 0;
    for (uint32_t i = 0; i < s->n_tokens; i++) total += s->tokens[i].len;
    if (total > UINT32_MAX - s->n_tokens)
        return err_set(em, ERR_LIMIT, "token texts of %zu bytes", total);
    v->bytes = mem_try(total + s->n_tokens); /* no token's bytes are longer than its text */
    v->offset = mem_try((s->n_tokens + 1) * sizeof *v->offset);
    v->type = mem_try(s->n_tokens);
    v->eog = mem_try(s->n_tokens);
    if (!v->bytes || !v->offset || !v->type || !v->eog)
        return err_set(em, ERR_NOMEM, "a vocabulary of %" PRIu32 " tokens", s->n_tokens);
    memset(v->eog, 0, s->n_tokens);
    memset(v->byte_token, 0xff, sizeof v->byte_token);
    uint32_t at = 0;
    for (uint32_t i = 0; i < s->n_tokens; i++) {
        int32_t type = s->types ? s->types[i] : TOKEN_NORMAL;
        v->type[i] = type >= TOKEN_NORMAL && type <= TOKEN_BYTE ? (uint8_t)type : TOKEN_NORMAL;
        v->offset[i] = at;
        at += (uint32_t)(v->bpe ? bpe__piece : spm__piece)(v, s, i, v->bytes + at);
    }
    v->offset[s->n_tokens] = at;
    return 0;
}

static int by_text(const void *a, const void *b)
{
    const struct special *x = a, *y = b;
    int c = memcmp(x->text, y->text, x->len < y->len ? x->len : y->len);
    if (c) return c;
    if (x->len != y->len) return x->len < y->len ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static bool is_special(const struct vocab *v, uint32_t i)
{
    return v->type[i] == TOKEN_CONTROL || v->type[i] == TOKEN_USER;
}

/* Of tokens with the same text only two can ever be found: the first, and the first that is no
 * control token. */
static size_t drop_repeated(struct special *x, size_t n)
{
    size_t kept = 0, same = 0; /* x[same]: the first with the text at hand */
    for (size_t i = 0; i < n; i++) {
        bool repeated =
            kept > 0 && x[i].len == x[same].len && memcmp(x[i].text, x[same].text, x[i].len) == 0;
        if (repeated && (x[i].control || !x[same].control || kept - same == 2)) continue;
        if (!repeated) same = kept;
        x[kept++] = x[i];
    }
    return kept;
}

/* Special tokens are found by their text as it is in the file. */
static int store_specials(struct vocab *v, const struct vocab_spec *s, struct errmsg *em)
{
    size_t n = 0, bytes = 0;
    for (uint32_t i = 0; i < v->n; i++) {
        n += is_special(v, i);
        bytes += is_special(v, i) ? s->tokens[i].len : 0;
    }
    v->specials = mem_try((n + 1) * sizeof *v->specials);
    v->special_bytes = mem_try(bytes + 1);
    if (!v->specials || !v->special_bytes) return err_set(em, ERR_NOMEM, "%zu special tokens", n);
    char *to = v->special_bytes;
    n = 0;
    for (uint32_t i = 0; i < v->n; i++) {
        struct vocab_string t = s->tokens[i];
        if (!is_special(v, i) || t.len == 0) continue;
        memcpy(to, t.data, t.len);
        v->specials[n++] =
            (struct special){to, (uint32_t)t.len, (int32_t)i, v->type[i] == TOKEN_CONTROL};
        to += t.len;
    }
    qsort(v->specials, n, sizeof *v->specials, by_text);
    n = drop_repeated(v->specials, n);
    for (uint32_t b = 0, i = 0; b <= 256; b++) {
        while (i < n && (uint8_t)v->specials[i].text[0] < b) i++;
        v->special_first[b] = b == 256 ? (uint32_t)n : i;
    }
    return 0;
}

static void mark_eog(struct vocab *v, const struct vocab_spec *s)
{
    const int32_t ids[] = {s->eos, s->eot, s->eom};
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++)
        if (ids[i] >= 0) v->eog[ids[i]] = 1;
    for (uint32_t i = 0; i < v->n; i++) {
        if (!is_special(v, i)) continue;
        struct vocab_string p = vocab_piece(v, (int32_t)i);
        for (size_t k = 0; k < sizeof eog_names / sizeof eog_names[0]; k++)
            if (p.len == strlen(eog_names[k]) && memcmp(p.data, eog_names[k], p.len) == 0)
                v->eog[i] = 1;
    }
}

/* What a byte that the vocabulary lacks becomes: never a token that steers the model, though many
 * files name their end of text as the unknown token. */
static int32_t unknown_of(const struct vocab *v, int32_t id)
{
    bool steers = id < 0 || v->type[id] == TOKEN_CONTROL || v->eog[id] || id == v->bos;
    return steers ? -1 : id;
}

static bool model_is(const struct vocab_spec *s, const char *name)
{
    return s->model.len == strlen(name) && memcmp(s->model.data, name, s->model.len) == 0;
}

static int check_spec(const struct vocab_spec *s, struct errmsg *em)
{
    if (!model_is(s, "gpt2") && !model_is(s, "llama"))
        return err_set(em, ERR_UNSUPPORTED,
                       "tokenizer model '%.*s' is not supported (gpt2 and llama are)",
                       s->model.len > 64 ? 64 : (int)s->model.len, s->model.data);
    if (s->n_tokens == 0 || s->n_tokens > VOCAB_TOKENS_MAX)
        return err_set(em, ERR_LIMIT, "%" PRIu32 " tokens are not in 1..%u", s->n_tokens,
                       VOCAB_TOKENS_MAX);
    const int32_t ids[] = {s->bos, s->eos, s->eot, s->eom, s->unknown};
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++)
        if (ids[i] >= (int32_t)s->n_tokens)
            return err_set(em, ERR_FORMAT, "special token id %" PRId32 " of %" PRIu32 " tokens",
                           ids[i], s->n_tokens);
    return 0;
}

int vocab_open(const struct vocab_spec *spec, struct vocab **ret_vocab, struct errmsg *em)
{
    int rc = check_spec(spec, em);
    if (rc < 0) return rc;
    struct vocab *v = mem_zalloc(sizeof *v);
    v->n = spec->n_tokens;
    v->bos = spec->bos;
    v->add_bos = spec->add_bos && spec->bos >= 0;
    if (model_is(spec, "gpt2"))
        v->bpe = bpe__new();
    else
        v->spm = spm__new();
    rc = store_pieces(v, spec, em);
    if (rc == 0) rc = store_specials(v, spec, em);
    if (rc == 0 && !spec->decodes_only) rc = (v->bpe ? bpe__open : spm__open)(v, spec, em);
    if (rc < 0) {
        vocab_close(v);
        return rc;
    }
    mark_eog(v, spec);
    v->unknown = unknown_of(v, spec->unknown);
    *ret_vocab = v;
    return 0;
}

void vocab_close(struct vocab *v)
{
    if (!v) return;
    bpe__close(v->bpe);
    spm__close(v->spm);
    mem_free(v->special_bytes);
    mem_free(v->specials);
    mem_free(v->bytes);
    mem_free(v->offset);
    mem_free(v->type);
    mem_free(v->eog);
    mem_free(v);
}

uint32_t vocab_size(const struct vocab *v)
{
    return v->n;
}

int32_t vocab_bos(const struct vocab *v)
{
    return v->bos;
}

bool vocab_adds_bos(const struct vocab *v)
{
    return v->add_bos;
}

static bool in_range(const struct vocab *v, int32_t token)
{
    return token >= 0 && (uint32_t)token < v->n;
}

bool vocab_is_eog(const struct vocab *v, int32_t token)
{
    return in_range(v, token) && v->eog[token];
}

bool vocab_is_control(const struct vocab *v, int32_t token)
{
    return in_range(v, token) &&
           (v->type[token] == TOKEN_CONTROL || v->type[token] == TOKEN_UNUSED ||
            v->type[token] == TOKEN_UNKNOWN);
}

struct vocab_string vocab_piece(const struct vocab *v, int32_t token)
{
    if (!in_range(v, token)) return (struct vocab_string){"", 0};
    return (struct vocab_string){v->bytes + v->offset[token],
                                 v->offset[token + 1] - v->offset[token]};
}

/* ---- encoding ---- */

void tokens_push(struct tokens *t, int32_t id)
{
    if (t->n == t->cap) {
        t->cap = t->cap ? t->cap * 2 : 64;
        t->ids = mem_realloc(t->ids, t->cap * sizeof *t->ids);
    }
    t->ids[t->n++] = id;
}

/* The first of specials [lo, hi) whose byte d is at least b; they agree in all bytes before. */
static uint32_t lower_bound(const struct special *x, uint32_t lo, uint32_t hi, uint32_t d, int b)
{
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if ((uint8_t)x[mid].text[d] < b)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* The longest special token that s begins with; control tokens only within its first n_control
 * bytes. The sorted tokens are walked as a trie: those that begin with s[0..d) are a range, in
 * which the token of length d comes first. */
static const struct special *special_at(const struct vocab *v, const char *s, size_t n,
                                        size_t n_control)
{
    const struct special *x = v->specials, *longest = NULL;
    uint32_t lo = v->special_first[(uint8_t)s[0]], hi = v->special_first[(uint8_t)s[0] + 1];
    for (uint32_t d = 1; lo < hi; d++) {
        bool found = false;
        for (; lo < hi && x[lo].len == d; lo++) {
            if (found || (x[lo].control && d > n_control)) continue;
            longest = &x[lo];
            found = true;
        }
        if (d == n) break;
        lo = lower_bound(x, lo, hi, d, (uint8_t)s[d]);
        hi = lower_bound(x, lo, hi, d, (uint8_t)s[d] + 1);
    }
    return longest;
}

/* Where in the runs a walk through the text is. */
struct run_at {
    const struct vocab_run *runs;
    size_t n, i;
    size_t begin; /* of run i in the text */
    size_t end;   /* of the special runs from i on; begin where i is not special */
};

/* How many bytes from `at` on are special without a gap; `at` never decreases. */
static size_t special_bytes_at(struct run_at *r, size_t at)
{
    if (at < r->end) return r->end - at;
    while (r->i < r->n && r->begin + r->runs[r->i].bytes <= at) r->begin += r->runs[r->i++].bytes;
    if (r->i == r->n || !r->runs[r->i].special) return 0;
    r->end = r->begin;
    for (size_t k = r->i; k < r->n && (r->runs[k].special || r->runs[k].bytes == 0); k++)
        r->end += r->runs[k].bytes;
    return r->end - at;
}

int vocab_encode_runs(const struct vocab *v, const char *text, const struct vocab_run *runs,
                      size_t n_runs, struct tokens *ret, struct errmsg *em)
{
    struct run_at r = {.runs = runs, .n = n_runs};
    size_t start = 0, len = 0;
    bool first = true;
    for (size_t i = 0; i < n_runs && len <= VOCAB_TEXT_BYTES_MAX; i++) len += runs[i].bytes;
    if (len > VOCAB_TEXT_BYTES_MAX)
        return err_set(em, ERR_LIMIT, "a text of %zu bytes, the limit is %zu", len,
                       VOCAB_TEXT_BYTES_MAX);
    for (size_t at = 0; at <= len; at++) {
        const struct special *x =
            at < len ? special_at(v, text + at, len - at, special_bytes_at(&r, at)) : NULL;
        if (!x && at < len) continue;
        if (at > start) {
            int rc = v->bpe ? bpe__encode(v, text + start, at - start, ret, em)
                            : spm__encode(v, text + start, at - start, first, ret, em);
            if (rc < 0) return rc;
            first = false;
        }
        if (!x) break;
        tokens_push(ret, x->id);
        first = true;
        start = at + x->len;
        at = start - 1;
    }
    return 0;
}

int vocab_encode(const struct vocab *v, const char *text, size_t len, bool special,
                 struct tokens *ret, struct errmsg *em)
{
    const struct vocab_run whole = {len, special};
    return vocab_encode_runs(v, text, &whole, 1, ret, em);
}
