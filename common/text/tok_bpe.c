/* Byte-level BPE (Sennrich et al., 2016; the byte alphabet of GPT-2): the pre-tokeniser's patterns
 * cut a text into words, each word's bytes become single-byte tokens, and neighbours are merged,
 * best rank first. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "common/text/nfc.h"
#include "common/text/vocab_state.h"
#include "common/text/word.h"

#include "common/base/buf.h"
#include "common/base/mem.h"
#include "common/base/utf8.h"

#include <inttypes.h>
#include <pcre2.h>
#include <stdio.h>
#include <string.h>

#define PATTERNS_MAX 2

/* White space as Unicode has it today, spelt out: PCRE2's \s also takes U+180E, which Unicode 6.3
 * removed. Inside brackets. */
#define WHITE "\\t-\\r\\x{85}\\p{Z}"
#define SPACE "[" WHITE "]"
/* A run of white space, without its last character if something follows. */
#define SPACES_BEFORE_LAST SPACE "+(?![^" WHITE "])"
#define SYMBOLS " ?[^" WHITE "\\p{L}\\p{N}]+"
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+|" SYMBOLS "|" SPACES_BEFORE_LAST
#define LLAMA3(digits)                                                                             \
    "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits  \
    "|" SYMBOLS "[\\r\\n]*|" SPACE "*[\\r\\n]+|" SPACES_BEFORE_LAST "|" SPACE "+"

/* Pre-tokenisers by their name in the file: patterns are applied in turn, each to the pieces that
 * the one before left; what no match covers is a piece of its own. */
static const struct pre {
    const char *name;
    bool whole_first; /* a word that is a token is not merged from its bytes */
    bool composes;    /* the text is put into Unicode's normalisation form C first */
    const char *patterns[PATTERNS_MAX];
} pres[] = {
    {"gpt-2", false, false, {GPT2}},
    {"smollm", false, false, {"\\p{N}", GPT2}},
    {"llama-bpe", true, false, {LLAMA3("\\p{N}{1,3}")}},
    {"qwen2", false, true, {LLAMA3("\\p{N}")}},
};

struct bpe {
    struct imap merges; /* (left << 32 | right) -> rank: the merge's place in the file's list */
    int32_t *results;   /* by rank: the token that the two become */
    pcre2_code *patterns[PATTERNS_MAX];
    uint32_t n_patterns;
    bool whole_first, composes;
    struct smap words; /* the bytes of tokens, where whole_first */
    int16_t byte_of[0x144];
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
        int32_t c = 0;
        size_t used = utf8_char(s.data + i, s.len - i, &c);
        if (used == 0 || c >= 0x144 || byte_of[c] < 0) return false;
        out[n++] = (char)byte_of[c];
        i += used;
    }
    *ret_len = n;
    return true;
}

/* ---- opening ---- */

size_t bpe__piece(struct vocab *v, const struct vocab_spec *s, uint32_t i, char *out)
{
    size_t len = s->tokens[i].len;
    bool plain = v->type[i] == TOKEN_NORMAL || v->type[i] == TOKEN_BYTE;
    if (plain && decode_alphabet(v->bpe->byte_of, s->tokens[i], out, &len)) {
        if (len == 1 && v->byte_token[(uint8_t)out[0]] < 0)
            v->byte_token[(uint8_t)out[0]] = (int32_t)i;
        return len;
    }
    len = s->tokens[i].len;
    if (len) memcpy(out, s->tokens[i].data, len);
    return len;
}

static int store_merges(const struct vocab *vocab, const struct vocab_spec *s, struct errmsg *em)
{
    struct bpe *v = vocab->bpe;
    struct smap by_text = {0};
    v->results = mem_try(s->n_merges * sizeof *v->results);
    if (!v->results || smap_reserve(&by_text, s->n_tokens) < 0 ||
        imap_reserve(&v->merges, s->n_merges) < 0) {
        smap_close(&by_text);
        return err_set(em, ERR_NOMEM, "%" PRIu32 " tokens and %" PRIu32 " merges", s->n_tokens,
                       s->n_merges);
    }
    for (uint32_t i = 0; i < s->n_tokens; i++)
        if (vocab__is_text(vocab, i))
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
            mem_free(joined);
            joined = mem_try(cap);
        }
        if (!joined) {
            rc = err_set(em, ERR_NOMEM, "merge %" PRIu32 " of %zu bytes", i, left + right);
            break;
        }
        memcpy(joined, m.data, left);
        memcpy(joined + left, space + 1, right);
        const uint32_t *a = smap_get(&by_text, m.data, left);
        const uint32_t *b = smap_get(&by_text, space + 1, right);
        const uint32_t *r = smap_get(&by_text, joined, left + right);
        if (!a || !b || !r) continue; /* a merge of tokens that were dropped never applies */
        uint64_t key = (uint64_t)*a << 32 | *b;
        if (imap_get(&v->merges, key)) continue;
        v->results[i] = (int32_t)*r;
        imap_put(&v->merges, key, i);
    }
    mem_free(joined);
    smap_close(&by_text);
    return rc;
}

static int refuse_pre(struct vocab_string name, struct errmsg *em)
{
    char known[128] = "";
    for (size_t i = 0; i < sizeof pres / sizeof pres[0]; i++)
        (void)snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "",
                       pres[i].name);
    return err_set(em, ERR_UNSUPPORTED,
                   "pre-tokeniser '%.*s' is unknown (known are %s): if one of those cuts a text as "
                   "the model's does, name it with --pre or key 'pre'",
                   name.len > 64 ? 64 : (int)name.len, name.len ? name.data : "", known);
}

static int compile_patterns(struct bpe *v, struct vocab_string name, struct errmsg *em)
{
    const struct pre *pre = NULL;
    for (size_t i = 0; i < sizeof pres / sizeof pres[0]; i++)
        if (strlen(pres[i].name) == name.len && memcmp(pres[i].name, name.data, name.len) == 0)
            pre = &pres[i];
    if (!pre) return refuse_pre(name, em);
    v->whole_first = pre->whole_first;
    v->composes = pre->composes;
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

static int store_words(const struct vocab *v, struct errmsg *em)
{
    if (smap_reserve(&v->bpe->words, v->n) < 0)
        return err_set(em, ERR_NOMEM, "%" PRIu32 " words", v->n);
    for (uint32_t i = 0; i < v->n; i++) {
        struct vocab_string p = vocab_piece(v, (int32_t)i);
        if (p.len && v->type[i] == TOKEN_NORMAL) (void)smap_put(&v->bpe->words, p.data, p.len, i);
    }
    return 0;
}

struct bpe *bpe__new(void)
{
    struct bpe *b = mem_zalloc(sizeof *b);
    fill_alphabet(b->byte_of);
    return b;
}

int bpe__open(struct vocab *v, const struct vocab_spec *s, struct errmsg *em)
{
    int rc = store_merges(v, s, em);
    if (rc == 0) rc = compile_patterns(v->bpe, s->pre, em);
    if (rc == 0 && v->bpe->whole_first) rc = store_words(v, em);
    return rc;
}

void bpe__close(struct bpe *b)
{
    if (!b) return;
    for (uint32_t i = 0; i < b->n_patterns; i++) pcre2_code_free(b->patterns[i]);
    imap_close(&b->merges);
    smap_close(&b->words);
    mem_free(b->results);
    mem_free(b);
}

/* ---- encoding ---- */

struct encoder {
    const struct vocab *v;
    struct word word;
    pcre2_match_data *match;
    pcre2_match_context *context;
    struct tokens *ret;
};

static bool find_merge(const void *arg, const char *text, const struct symbol *left,
                       const struct symbol *right, int32_t *ret_id, uint32_t *ret_order)
{
    const struct bpe *b = arg;
    (void)text;
    if (left->id < 0 || right->id < 0) return false;
    const uint32_t *rank =
        imap_get(&b->merges, (uint64_t)(uint32_t)left->id << 32 | (uint32_t)right->id);
    if (!rank) return false;
    *ret_id = b->results[*rank];
    *ret_order = *rank;
    return true;
}

static int encode_word(struct encoder *e, const char *s, size_t n, struct errmsg *em)
{
    const uint32_t *whole = smap_get(&e->v->bpe->words, s, n);
    if (whole) {
        tokens_push(e->ret, (int32_t)*whole);
        return 0;
    }
    int rc = word_room(&e->word, n, em);
    if (rc < 0) return rc;
    for (size_t i = 0; i < n; i++)
        e->word.symbols[i] =
            (struct symbol){.at = (uint32_t)i, .len = 1, .id = e->v->byte_token[(uint8_t)s[i]]};
    word_merge(&e->word, n, s, find_merge, e->v->bpe);
    for (int32_t i = n ? 0 : -1; i >= 0; i = e->word.symbols[i].next) {
        int32_t id = e->word.symbols[i].id;
        if (id < 0) id = e->v->unknown;
        if (id >= 0) tokens_push(e->ret, id);
    }
    return 0;
}

/* Cuts s by pattern `level` and its followers, and encodes what is left whole. */
static int encode_pieces(struct encoder *e, uint32_t level, const char *s, size_t n,
                         struct errmsg *em)
{
    const struct bpe *b = e->v->bpe;
    if (level >= b->n_patterns || level >= PATTERNS_MAX) return encode_word(e, s, n, em);
    size_t at = 0;
    while (at < n) {
        int found = pcre2_match(b->patterns[level], (PCRE2_SPTR)s, n, at, PCRE2_NO_UTF_CHECK,
                                e->match, e->context);
        if (found < 0 && found != PCRE2_ERROR_NOMATCH)
            return err_set(em, ERR_LIMIT, "the pre-tokeniser gave up at byte %zu (PCRE2 error %d)",
                           at, found);
        const PCRE2_SIZE *o = pcre2_get_ovector_pointer(e->match);
        size_t start = found < 0 ? n : o[0], end = found < 0 ? n : o[1];
        int rc = 0;
        if (start > at) rc = encode_pieces(e, level + 1, s + at, start - at, em);
        if (rc == 0 && end > start) rc = encode_pieces(e, level + 1, s + start, end - start, em);
        if (rc < 0) return rc;
        at = end > at ? end : at + 1;
    }
    return 0;
}

/* Encodes valid UTF-8. */
static int encode_text(struct encoder *e, const char *s, size_t n, struct errmsg *em)
{
    if (!e->v->bpe->composes) return encode_pieces(e, 0, s, n, em);
    struct buf composed = {0};
    int rc = nfc_append(s, n, &composed, em);
    if (rc == 0) rc = encode_pieces(e, 0, composed.data, composed.len, em);
    buf_close(&composed);
    return rc;
}

/* Bytes that are not UTF-8 are words of their own. */
static int encode_valid_parts(struct encoder *e, const char *s, size_t n, struct errmsg *em)
{
    size_t start = 0, at = 0;
    while (start < n) {
        for (size_t used; at < n && (used = utf8_char(s + at, n - at, NULL)) > 0;) at += used;
        if (at > start) {
            int rc = encode_text(e, s + start, at - start, em);
            if (rc < 0) return rc;
        }
        start = at;
        while (at < n && utf8_char(s + at, n - at, NULL) == 0) at++;
        if (at > start) {
            int rc = encode_word(e, s + start, at - start, em);
            if (rc < 0) return rc;
        }
        start = at;
    }
    return 0;
}

int bpe__encode(const struct vocab *v, const char *text, size_t len, struct tokens *ret,
                struct errmsg *em)
{
    struct encoder e = {.v = v,
                        .ret = ret,
                        .match = pcre2_match_data_create(1, NULL),
                        .context = pcre2_match_context_create(NULL)};
    int rc = e.match && e.context ? 0 : err_set(em, ERR_NOMEM, "pre-tokeniser");
    if (rc == 0) {
        /* PCRE2 gives up after ten million steps unless told otherwise; one match may walk through
         * all of a text, but none of these patterns walks through it twice. */
        (void)pcre2_set_match_limit(e.context, UINT32_MAX);
        rc = encode_valid_parts(&e, text, len, em);
    }
    pcre2_match_data_free(e.match);
    pcre2_match_context_free(e.context);
    word_close(&e.word);
    return rc;
}
