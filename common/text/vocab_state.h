/* What a vocabulary holds, and the two kinds of them. Private to common/text. */
#ifndef FLOTILLA_TEXT_VOCAB_STATE_H
#define FLOTILLA_TEXT_VOCAB_STATE_H

#include "common/base/hash.h"
#include "common/text/vocab.h"

struct special {
    const char *text;
    uint32_t len;
    int32_t id;
    bool control;
};

struct bpe; /* tok_bpe.c */
struct spm; /* tok_spm.c */

struct vocab {
    uint32_t n;
    char *bytes;      /* all pieces */
    uint32_t *offset; /* n + 1 */
    uint8_t *type;
    uint8_t *eog;
    int32_t bos;
    int32_t unknown; /* what a byte without a token becomes; -1: nothing */
    bool add_bos;
    int32_t byte_token[256];     /* -1: the vocabulary lacks this byte */
    char *special_bytes;         /* the texts of specials, as in the file */
    struct special *specials;    /* sorted by text */
    uint32_t special_first[257]; /* index of the first whose text begins with this byte or above */
    struct bpe *bpe;             /* one of the two */
    struct spm *spm;
};

/* Whether a text may hold token i. Control tokens, bytes and the unknown are never merged from
 * characters that look like their names, as in SentencePiece. */
static inline bool vocab__is_text(const struct vocab *v, uint32_t i)
{
    return v->type[i] != TOKEN_CONTROL && v->type[i] != TOKEN_UNKNOWN && v->type[i] != TOKEN_BYTE;
}

/* Writes the bytes that token i stands for to `out`, at most as many as its text has. */
size_t bpe__piece(struct vocab *v, const struct vocab_spec *s, uint32_t i, char *out);
size_t spm__piece(struct vocab *v, const struct vocab_spec *s, uint32_t i, char *out);

struct bpe *bpe__new(void);
struct spm *spm__new(void);
/* To be called when all pieces are stored. */
int bpe__open(struct vocab *v, const struct vocab_spec *s, struct errmsg *em);
int spm__open(struct vocab *v, const struct vocab_spec *s, struct errmsg *em);
void bpe__close(struct bpe *b);
void spm__close(struct spm *s);

/* Text without special tokens. first: nothing, or a special token, is before it. */
int bpe__encode(const struct vocab *v, const char *text, size_t len, struct tokens *ret,
                struct errmsg *em);
int spm__encode(const struct vocab *v, const char *text, size_t len, bool first, struct tokens *ret,
                struct errmsg *em);

#endif
