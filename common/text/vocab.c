/* Encoding: the text is cut at special tokens, each part by the pre-tokeniser's patterns into
 * words, each word's bytes become single-byte tokens, and neighbours are merged, best rank first.
 * Merging keeps a heap of candidate pairs over a linked list of symbols, O(n log n) in the word. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "common/text/vocab.h"

#include "common/base/hash.h"
#include "common/base/mem.h"

#include <inttypes.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#define PATTERNS_MAX 2

/* Pre-tokenisers by their name in the file: patterns are applied in turn, each to the pieces that
 * the one before left; what no match covers is a piece of its own. */
static const struct pre {
    const char *name;
    const char *patterns[PATTERNS_MAX];
} pres[] = {
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)"
    {"gpt-2", {GPT2}},
    {"smollm", {"\\p{N}", GPT2}},
#undef GPT2
};

/* Names by which files mark an end of generation that their metadata does not list. */
static const char *const eog_names[] = {"<|endoftext|>",   "<|im_end|>",    "<|eot_id|>",
                                        "<|eom_id|>",      "<end_of_turn>", "<|end|>",
                                        "<|end_of_text|>", "<EOT>",         "</s>"};

struct special {
    const char *text;
    uint32_t len;
    int32_t id;
    bool control;
};

struct vocab {
    uint32_t n;
    char *bytes;      /* all pieces */
    uint32_t *offset; /* n + 1 */
    uint8_t *type;
    uint8_t *eog;
    int32_t bos, unknown;
    bool add_bos;
    int32_t byte_token[256]; /* -1: the vocabulary lacks this byte */
    struct imap merges;      /* (left << 32 | right) -> index into merge */
    struct merge {
        uint32_t rank;
        int32_t result;
    } * merge;
    struct special *specials; /* by first byte, longest first */
    uint32_t special_first[257];
    pcre2_code *patterns[PATTERNS_MAX];
    uint32_t n_patterns;
};

/* ---- the byte alphabet of GPT-2: printable bytes stand for themselves, the others for U+0100.. */

static bool printable(int b)
{
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
}

/* code point -> byte, for code points below 0x144; -1 elsewhere */
static void fill_alphabet(int16_t *byte_of)
{
    int next = 256;
    memset(byte_of, 0xff, 0x144 * sizeof *byte_of);
    for (int b = 0; b < 256; b++) byte_of[printable(b) ? b : next++] = (int16_t)b;
}

/* The bytes that a token's text stands for. False: it has a character outside the alphabet. */
static bool decode_alphabet(const int16_t *byte_of, struct vocab_string s, char *out,
                            size_t *ret_len)
{
    size_t n = 0;
    for (size_t i = 0; i < s.len;) {
        utf8proc_int32_t c;
        utf8proc_ssize_t used = utf8proc_iterate((const utf8proc_uint8_t *)s.data + i,
                                                 (utf8proc_ssize_t)(s.len - i), &c);
        if (used <= 0 || c >= 0x144 || byte_of[c] < 0) return false;
        out[n++] = (char)byte_of[c];
        i += (size_t)used;
    }
    *ret_len = n;
    return true;
}

/* ---- opening ---- */

static int store_pieces(struct vocab *v, const struct vocab_spec *s, struct errmsg *em)
{
    int16_t byte_of[0x144];
    fill_alphabet(byte_of);
    size_t total = 0;
    for (uint32_t i = 0; i < s->n_tokens; i++) total += s->tokens[i].len;
    if (total > UINT32_MAX) return err_set(em, ERR_LIMIT, "token texts of %zu bytes", total);
    v->bytes = mem_try(total);
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
        size_t len = s->tokens[i].len;
        bool plain = v->type[i] == TOKEN_NORMAL || v->type[i] == TOKEN_BYTE;
        if (!plain || !decode_alphabet(byte_of, s->tokens[i], v->bytes + at, &len)) {
            len = s->tokens[i].len;
            if (len) memcpy(v->bytes + at, s->tokens[i].data, len);
        } else if (len == 1 && v->byte_token[(uint8_t)v->bytes[at]] < 0) {
            v->byte_token[(uint8_t)v->bytes[at]] = (int32_t)i;
        }
        at += (uint32_t)len;
    }
    v->offset[s->n_tokens] = at;
    return 0;
}

static int store_merges(struct vocab *v, const struct vocab_spec *s, struct errmsg *em)
{
    struct smap by_text = {0};
    v->merge = mem_try((s->n_merges ? s->n_merges : 1) * sizeof *v->merge);
    if (!v->merge) return err_set(em, ERR_NOMEM, "%" PRIu32 " merges", s->n_merges);
    for (uint32_t i = 0; i < s->n_tokens; i++)
        (void)smap_put(&by_text, s->tokens[i].data, s->tokens[i].len, i);
    char *joined = NULL;
    size_t cap = 0;
    int rc = 0;
    for (uint32_t i = 0; i < s->n_merges && rc == 0; i++) {
        struct vocab_string m = s->merges[i];
        const char *space = m.len > 1 ? memchr(m.data + 1, ' ', m.len - 1) : NULL;
        if (!space) {
            rc = err_set(em, ERR_FORMAT, "merge %" PRIu32 " is not two tokens", i);
            break;
        }
        size_t left = (size_t)(space - m.data), right = m.len - left - 1;
        if (left + right > cap) {
            cap = (left + right) * 2;
            joined = mem_realloc(joined, cap);
        }
        memcpy(joined, m.data, left);
        memcpy(joined + left, space + 1, right);
        const uint32_t *a = smap_get(&by_text, m.data, left);
        const uint32_t *b = smap_get(&by_text, space + 1, right);
        const uint32_t *r = smap_get(&by_text, joined, left + right);
        if (!a || !b || !r) continue; /* a merge of tokens that were dropped never applies */
        uint64_t key = (uint64_t)*a << 32 | *b;
        if (imap_get(&v->merges, key)) continue;
        v->merge[i] = (struct merge){i, (int32_t)*r};
        imap_put(&v->merges, key, i);
    }
    mem_free(joined);
    smap_close(&by_text);
    return rc;
}

static int by_first_byte(const void *a, const void *b)
{
    const struct special *x = a, *y = b;
    int cx = (uint8_t)x->text[0], cy = (uint8_t)y->text[0];
    if (cx != cy) return cx - cy;
    return x->len < y->len ? 1 : x->len > y->len ? -1 : 0;
}

static void store_specials(struct vocab *v)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < v->n; i++)
        n += v->type[i] == TOKEN_CONTROL || v->type[i] == TOKEN_USER;
    v->specials = mem_alloc((n + 1) * sizeof *v->specials);
    n = 0;
    for (uint32_t i = 0; i < v->n; i++) {
        struct vocab_string p = vocab_piece(v, (int32_t)i);
        bool control = v->type[i] == TOKEN_CONTROL;
        if (p.len && (control || v->type[i] == TOKEN_USER))
            v->specials[n++] = (struct special){p.data, (uint32_t)p.len, (int32_t)i, control};
    }
    qsort(v->specials, n, sizeof *v->specials, by_first_byte);
    for (uint32_t b = 0, i = 0; b <= 256; b++) {
        while (i < n && (uint8_t)v->specials[i].text[0] < b) i++;
        v->special_first[b] = b == 256 ? n : i;
    }
}

static void mark_eog(struct vocab *v, const struct vocab_spec *s)
{
    const int32_t ids[] = {s->eos, s->eot, s->eom};
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++)
        if (ids[i] >= 0) v->eog[ids[i]] = 1;
    for (uint32_t i = 0; i < v->n; i++) {
        if (v->type[i] != TOKEN_CONTROL && v->type[i] != TOKEN_USER) continue;
        struct vocab_string p = vocab_piece(v, (int32_t)i);
        for (size_t k = 0; k < sizeof eog_names / sizeof eog_names[0]; k++)
            if (p.len == strlen(eog_names[k]) && memcmp(p.data, eog_names[k], p.len) == 0)
                v->eog[i] = 1;
    }
}

static int compile_patterns(struct vocab *v, struct vocab_string name, struct errmsg *em)
{
    const struct pre *pre = NULL;
    for (size_t i = 0; i < sizeof pres / sizeof pres[0]; i++)
        if (strlen(pres[i].name) == name.len && memcmp(pres[i].name, name.data, name.len) == 0)
            pre = &pres[i];
    if (em) em->text[0] = 0;
    if (!pre) {
        pre = &pres[0];
        (void)err_set(em, 0,
                      "pre-tokeniser '%.*s' is unknown, using '%s': the token ids may differ "
                      "from those the model was trained with",
                      (int)name.len, name.len ? name.data : "", pre->name);
    }
    for (int i = 0; i < PATTERNS_MAX && pre->patterns[i]; i++) {
        int code;
        PCRE2_SIZE at;
        v->patterns[i] =
            pcre2_compile((PCRE2_SPTR)pre->patterns[i], PCRE2_ZERO_TERMINATED,
                          PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK, &code, &at, NULL);
        if (!v->patterns[i])
            return err_set(em, ERR_UNSUPPORTED, "pre-tokeniser %s: PCRE2 error %d at %zu",
                           pre->name, code, (size_t)at);
        (void)pcre2_jit_compile(v->patterns[i], PCRE2_JIT_COMPLETE); /* slower without, not wrong */
        v->n_patterns++;
    }
    return 0;
}

static int check_spec(const struct vocab_spec *s, struct errmsg *em)
{
    if (s->model.len != 4 || memcmp(s->model.data, "gpt2", 4) != 0)
        return err_set(em, ERR_UNSUPPORTED, "tokenizer model '%.*s' is not supported (gpt2 is)",
                       (int)s->model.len, s->model.data);
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
    v->unknown = spec->unknown;
    v->add_bos = spec->add_bos && spec->bos >= 0;
    rc = store_pieces(v, spec, em);
    if (rc == 0) rc = store_merges(v, spec, em);
    if (rc == 0) rc = compile_patterns(v, spec->pre, em);
    if (rc < 0) {
        vocab_close(v);
        return rc;
    }
    store_specials(v);
    mark_eog(v, spec);
    *ret_vocab = v;
    return 0;
}

void vocab_close(struct vocab *v)
{
    if (!v) return;
    for (uint32_t i = 0; i < v->n_patterns; i++) pcre2_code_free(v->patterns[i]);
    imap_close(&v->merges);
    mem_free(v->merge);
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

struct symbol {
    int32_t id; /* -1: a byte without a token; it never merges */
    int32_t prev, next;
};

struct pair {
    uint32_t rank;
    int32_t left, left_id, right_id; /* stale once the symbols changed */
};

struct word {
    const struct vocab *v;
    struct symbol *symbols;
    struct pair *heap;
    size_t n_heap, cap;
};

static bool before(const struct pair *a, const struct pair *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->left < b->left;
}

static void heap_push(struct word *w, struct pair p)
{
    size_t i = w->n_heap++;
    while (i && before(&p, &w->heap[(i - 1) / 2])) {
        w->heap[i] = w->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    w->heap[i] = p;
}

static struct pair heap_pop(struct word *w)
{
    struct pair top = w->heap[0], last = w->heap[--w->n_heap];
    size_t i = 0;
    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= w->n_heap) break;
        if (c + 1 < w->n_heap && before(&w->heap[c + 1], &w->heap[c])) c++;
        if (!before(&w->heap[c], &last)) break;
        w->heap[i] = w->heap[c];
        i = c;
    }
    w->heap[i] = last;
    return top;
}

static const struct merge *merge_of(const struct vocab *v, int32_t left, int32_t right)
{
    if (left < 0 || right < 0) return NULL;
    const uint32_t *i = imap_get(&v->merges, (uint64_t)(uint32_t)left << 32 | (uint32_t)right);
    return i ? &v->merge[*i] : NULL;
}

static void consider(struct word *w, int32_t left)
{
    if (left < 0 || w->symbols[left].next < 0) return;
    int32_t a = w->symbols[left].id, b = w->symbols[w->symbols[left].next].id;
    const struct merge *m = merge_of(w->v, a, b);
    if (m) heap_push(w, (struct pair){m->rank, left, a, b});
}

/* Room for n symbols; a merge adds at most two pairs and removes a symbol, so 3n bounds the heap.
 */
static int word_room(struct word *w, size_t n, struct errmsg *em)
{
    if (n <= w->cap) return 0;
    mem_free(w->symbols);
    mem_free(w->heap);
    w->symbols = mem_try(n * sizeof *w->symbols);
    w->heap = mem_try(3 * n * sizeof *w->heap);
    w->cap = w->symbols && w->heap ? n : 0;
    return w->cap ? 0 : err_set(em, ERR_NOMEM, "a word of %zu bytes", n);
}

static int encode_word(struct word *w, const uint8_t *s, size_t n, struct tokens *ret,
                       struct errmsg *em)
{
    int rc = word_room(w, n, em);
    if (rc < 0) return rc;
    for (size_t i = 0; i < n; i++)
        w->symbols[i] = (struct symbol){w->v->byte_token[s[i]], (int32_t)i - 1,
                                        i + 1 < n ? (int32_t)i + 1 : -1};
    w->n_heap = 0;
    for (size_t i = 0; i + 1 < n; i++) consider(w, (int32_t)i);
    while (w->n_heap) {
        struct pair p = heap_pop(w);
        struct symbol *l = &w->symbols[p.left];
        if (l->id != p.left_id || l->next < 0 || w->symbols[l->next].id != p.right_id) continue;
        struct symbol *r = &w->symbols[l->next];
        l->id = merge_of(w->v, p.left_id, p.right_id)->result;
        r->id = -2; /* gone: no pair names it again */
        l->next = r->next;
        if (l->next >= 0) w->symbols[l->next].prev = p.left;
        consider(w, l->prev);
        consider(w, p.left);
    }
    for (int32_t i = n ? 0 : -1; i >= 0; i = w->symbols[i].next) {
        int32_t id = w->symbols[i].id;
        if (id < 0) id = w->v->unknown;
        if (id >= 0) tokens_push(ret, id);
    }
    return 0;
}

/* Cuts s by pattern `level` and its followers, and encodes what is left whole. */
static int encode_pieces(struct word *w, pcre2_match_data *match, uint32_t level, const char *s,
                         size_t n, struct tokens *ret, struct errmsg *em)
{
    if (level >= w->v->n_patterns || level >= PATTERNS_MAX) {
        return encode_word(w, (const uint8_t *)s, n, ret, em);
    }
    size_t at = 0;
    while (at < n) {
        int found = pcre2_match(w->v->patterns[level], (PCRE2_SPTR)s, n, at, PCRE2_NO_UTF_CHECK,
                                match, NULL);
        if (found < 0 && found != PCRE2_ERROR_NOMATCH)
            return err_set(em, ERR_LIMIT, "the pre-tokeniser gave up at byte %zu (PCRE2 error %d)",
                           at, found);
        const PCRE2_SIZE *o = pcre2_get_ovector_pointer(match);
        size_t start = found < 0 ? n : o[0], end = found < 0 ? n : o[1];
        int rc = 0;
        if (start > at) rc = encode_pieces(w, match, level + 1, s + at, start - at, ret, em);
        if (rc == 0 && end > start)
            rc = encode_pieces(w, match, level + 1, s + start, end - start, ret, em);
        if (rc < 0) return rc;
        at = end > at ? end : at + 1;
    }
    return 0;
}

/* Text without special tokens. Bytes that are not UTF-8 are words of their own. */
static int encode_text(struct word *w, pcre2_match_data *match, const char *s, size_t n,
                       struct tokens *ret, struct errmsg *em)
{
    size_t start = 0, at = 0;
    while (start < n) {
        utf8proc_int32_t c;
        utf8proc_ssize_t used = 1;
        while (at < n && (used = utf8proc_iterate((const utf8proc_uint8_t *)s + at,
                                                  (utf8proc_ssize_t)(n - at), &c)) > 0)
            at += (size_t)used;
        if (at > start) {
            int rc = encode_pieces(w, match, 0, s + start, at - start, ret, em);
            if (rc < 0) return rc;
        }
        start = at;
        while (at < n && utf8proc_iterate((const utf8proc_uint8_t *)s + at,
                                          (utf8proc_ssize_t)(n - at), &c) <= 0)
            at++;
        if (at > start) {
            int rc = encode_word(w, (const uint8_t *)s + start, at - start, ret, em);
            if (rc < 0) return rc;
        }
        start = at;
    }
    return 0;
}

static const struct special *special_at(const struct vocab *v, const char *s, size_t n,
                                        bool control)
{
    uint8_t b = (uint8_t)s[0];
    for (uint32_t i = v->special_first[b]; i < v->special_first[b + 1]; i++) {
        const struct special *x = &v->specials[i];
        if ((control || !x->control) && x->len <= n && memcmp(x->text, s, x->len) == 0) return x;
    }
    return NULL;
}

int vocab_encode(const struct vocab *v, const char *text, size_t len, bool special,
                 struct tokens *ret, struct errmsg *em)
{
    if (len > VOCAB_TEXT_BYTES_MAX)
        return err_set(em, ERR_LIMIT, "a text of %zu bytes, the limit is %zu", len,
                       VOCAB_TEXT_BYTES_MAX);
    struct word w = {.v = v};
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    if (!match) return err_set(em, ERR_NOMEM, "pre-tokeniser");
    size_t start = 0;
    int rc = 0;
    for (size_t at = 0; at <= len && rc == 0; at++) {
        const struct special *x = at < len ? special_at(v, text + at, len - at, special) : NULL;
        if (!x && at < len) continue;
        rc = encode_text(&w, match, text + start, at - start, ret, em);
        if (!x) break;
        tokens_push(ret, x->id);
        start = at + x->len;
        at = start - 1;
    }
    pcre2_match_data_free(match);
    mem_free(w.symbols);
    mem_free(w.heap);
    return rc;
}
