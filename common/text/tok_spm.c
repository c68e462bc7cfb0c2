/* SentencePiece vocabularies with scores (Kudo and Richardson, 2018; its BPE form, as Llama 2,
 * Phi-3 and Gemma have it): spaces become U+2581, a text's characters are merged to the neighbours
 * that have the highest score together, and a character that is no token becomes its bytes. */
#include "common/text/vocab_state.h"
#include "common/text/word.h"

#include "common/base/fmath.h"
#include "common/base/mem.h"
#include "common/base/utf8.h"

#include <string.h>

#define SPACE "\xe2\x96\x81"
#define SPACE_LEN 3

struct spm {
    struct smap by_text; /* token texts as in the file, of the tokens that a text can hold */
    char *texts;         /* their bytes */
    uint32_t *order;     /* a token's score as a number that is smaller for higher scores */
    bool space_prefix;   /* a text begins with a space of its own */
};

/* The value of "<0x0A>", or -1. */
static int byte_of(struct vocab_string s)
{
    static const char digits[] = "0123456789ABCDEF";
    if (s.len != 6 || memcmp(s.data, "<0x", 3) != 0 || s.data[5] != '>') return -1;
    const char *hi = memchr(digits, s.data[3], 16), *lo = memchr(digits, s.data[4], 16);
    return hi && lo ? (int)(hi - digits) * 16 + (int)(lo - digits) : -1;
}

size_t spm__piece(struct vocab *v, const struct vocab_spec *s, uint32_t i, char *out)
{
    struct vocab_string t = s->tokens[i];
    int byte = v->type[i] == TOKEN_BYTE ? byte_of(t) : -1;
    if (byte >= 0) {
        if (v->byte_token[byte] < 0) v->byte_token[byte] = (int32_t)i;
        out[0] = (char)byte;
        return 1;
    }
    bool plain = v->type[i] == TOKEN_NORMAL || v->type[i] == TOKEN_USER;
    size_t n = 0;
    for (size_t at = 0; at < t.len;) {
        if (plain && t.len - at >= SPACE_LEN && memcmp(t.data + at, SPACE, SPACE_LEN) == 0) {
            out[n++] = ' ';
            at += SPACE_LEN;
        } else {
            out[n++] = t.data[at++];
        }
    }
    return n;
}

/* Floats in reverse order as integers; a NaN goes last. */
static uint32_t order_of(float score)
{
    uint32_t u = fm_bits(score);
    if (score != score) return UINT32_MAX;
    u = u & 0x80000000 ? ~u : u | 0x80000000; /* ascending */
    return UINT32_MAX - u;
}

struct spm *spm__new(void)
{
    return mem_zalloc(sizeof(struct spm));
}

int spm__open(struct vocab *v, const struct vocab_spec *s, struct errmsg *em)
{
    struct spm *m = v->spm;
    size_t total = 0, at = 0;
    if (!s->scores) return err_set(em, ERR_FORMAT, "key 'tokenizer.ggml.scores' is missing");
    for (uint32_t i = 0; i < s->n_tokens; i++) total += s->tokens[i].len;
    m->space_prefix = s->space_prefix;
    m->texts = mem_try(total + 1);
    m->order = mem_try(s->n_tokens * sizeof *m->order);
    if (!m->texts || !m->order || smap_reserve(&m->by_text, s->n_tokens) < 0)
        return err_set(em, ERR_NOMEM, "token texts of %zu bytes", total);
    for (uint32_t i = 0; i < s->n_tokens; i++) {
        struct vocab_string t = s->tokens[i];
        m->order[i] = order_of(s->scores[i]);
        if (t.len == 0 || !vocab__is_text(v, i)) continue;
        memcpy(m->texts + at, t.data, t.len);
        (void)smap_put(&m->by_text, m->texts + at, t.len, i);
        at += t.len;
    }
    return 0;
}

void spm__close(struct spm *s)
{
    if (!s) return;
    smap_close(&s->by_text);
    mem_free(s->texts);
    mem_free(s->order);
    mem_free(s);
}

/* ---- encoding ---- */

static bool find_token(const void *arg, const char *text, const struct symbol *left,
                       const struct symbol *right, int32_t *ret_id, uint32_t *ret_order)
{
    const struct spm *m = arg;
    const uint32_t *id = smap_get(&m->by_text, text + left->at, left->len + right->len);
    if (!id) return false;
    *ret_id = (int32_t)*id;
    *ret_order = m->order[*id];
    return true;
}

/* The text with U+2581 for spaces and, with `prefix`, one before it. The caller frees it; NULL: no
 * memory. */
static char *escape(const char *text, size_t len, bool prefix, size_t *ret_len)
{
    char *out = mem_try((len + 1) * SPACE_LEN);
    if (!out) return NULL;
    size_t n = 0;
    for (size_t i = prefix ? SIZE_MAX : 0; i == SIZE_MAX || i < len; i++) {
        if (i == SIZE_MAX || text[i] == ' ') {
            memcpy(out + n, SPACE, SPACE_LEN);
            n += SPACE_LEN;
        } else {
            out[n++] = text[i];
        }
    }
    *ret_len = n;
    return out;
}

/* Fills w's symbols, one for each character; a byte that is not UTF-8 is one of its own. Returns
 * how many they are. */
static size_t split(struct word *w, const struct spm *m, const char *text, size_t len)
{
    size_t n = 0;
    for (size_t at = 0; at < len; n++) {
        size_t bytes = utf8_char(text + at, len - at, NULL);
        if (bytes == 0) bytes = 1;
        const uint32_t *id = smap_get(&m->by_text, text + at, bytes);
        w->symbols[n] = (struct symbol){
            .at = (uint32_t)at, .len = (uint32_t)bytes, .id = id ? (int32_t)*id : -1};
        at += bytes;
    }
    return n;
}

int spm__encode(const struct vocab *v, const char *text, size_t len, bool first, struct tokens *ret,
                struct errmsg *em)
{
    struct word w = {0};
    size_t n = 0;
    if (len == 0) return 0;
    char *escaped = escape(text, len, first && v->spm->space_prefix, &n);
    if (!escaped) return err_set(em, ERR_NOMEM, "a text of %zu bytes", len);
    int rc = word_room(&w, len + 1, em); /* a byte is at most one symbol, and so is the prefix */
    if (rc == 0) {
        word_merge(&w, split(&w, v->spm, escaped, n), escaped, find_token, v->spm);
        for (int32_t i = 0; i >= 0; i = w.symbols[i].next) {
            const struct symbol *s = &w.symbols[i];
            if (s->id >= 0) {
                tokens_push(ret, s->id);
                continue;
            }
            for (uint32_t b = 0; b < s->len; b++) {
                int32_t id = v->byte_token[(uint8_t)escaped[s->at + b]];
                if (id < 0) id = v->unknown;
                if (id >= 0) tokens_push(ret, id);
            }
        }
    }
    word_close(&w);
    mem_free(escaped);
    return rc;
}
