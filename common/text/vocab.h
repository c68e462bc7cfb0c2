/* A model's vocabulary: text to token ids and token ids to bytes. Byte-level BPE (tok_bpe.c) and
 * SentencePiece with scores (tok_spm.c). Read from GGUF metadata that the caller hands over as
 * plain arrays, so that this module knows no file format.
 *
 * Immutable once open: any thread may encode. */
#ifndef FLOTILLA_TEXT_VOCAB_H
#define FLOTILLA_TEXT_VOCAB_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VOCAB_TOKENS_MAX (1u << 20)
#define VOCAB_TEXT_BYTES_MAX ((size_t)16 << 20)

/* Values of tokenizer.ggml.token_type. */
enum token_type {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN,
    TOKEN_CONTROL,
    TOKEN_USER,
    TOKEN_UNUSED,
    TOKEN_BYTE
};

struct vocab_string {
    const char *data;
    size_t len;
};

/* Everything is borrowed during vocab_open only. */
struct vocab_spec {
    struct vocab_string model; /* "gpt2": byte-level BPE; "llama": SentencePiece */
    struct vocab_string pre;   /* BPE: name of the pre-tokeniser */
    const struct vocab_string *tokens;
    const int32_t *types; /* NULL: all normal */
    uint32_t n_tokens;
    const struct vocab_string *merges; /* "left right", best first */
    uint32_t n_merges;
    const float *scores;                 /* SentencePiece: n_tokens */
    bool space_prefix;                   /* SentencePiece: a text begins with a space of its own */
    int32_t bos, eos, eot, eom, unknown; /* -1: none */
    bool add_bos;
    bool decodes_only; /* nothing will be encoded: merges, patterns and scores are not looked at */
};

struct vocab;

/* ERR_UNSUPPORTED names an unknown kind of vocabulary or pre-tokeniser; ERR_FORMAT, ERR_LIMIT: the
 * vocabulary contradicts itself, or is too large; ERR_NOMEM. */
int vocab_open(const struct vocab_spec *spec, struct vocab **ret_vocab, struct errmsg *em);
/* May be NULL. */
void vocab_close(struct vocab *v);

uint32_t vocab_size(const struct vocab *v);
int32_t vocab_bos(const struct vocab *v);   /* -1: none */
bool vocab_adds_bos(const struct vocab *v); /* plain prompts of this model start with BOS */
bool vocab_is_eog(const struct vocab *v, int32_t token);
bool vocab_is_control(const struct vocab *v, int32_t token);
/* The token's bytes (a control token's: its name). Valid while the vocabulary is open. */
struct vocab_string vocab_piece(const struct vocab *v, int32_t token);

/* A growable list of token ids; zeroed, it is empty. */
struct tokens {
    int32_t *ids;  /* the caller frees it with mem_free */
    size_t n, cap; /* cap is private */
};

void tokens_push(struct tokens *t, int32_t id);

/* A stretch of a text. special: it may name control tokens. */
struct vocab_run {
    size_t bytes;
    bool special;
};

/* Appends the ids of `text`. `special`: names of control tokens in the text become those tokens;
 * otherwise they are text like any other. A byte that the vocabulary lacks becomes the unknown
 * token, or nothing where the model has none, or calls a control token, BOS or an end of generation
 * its unknown token. No BOS is added. ERR_LIMIT above VOCAB_TEXT_BYTES_MAX. */
int vocab_encode(const struct vocab *v, const char *text, size_t len, bool special,
                 struct tokens *ret, struct errmsg *em);

/* The same for a text that is cut into runs, whose bytes sum up to its length. It is encoded as one
 * text, so that tokens may span runs; but a control token is found only where every byte of its
 * name is in runs that are special. */
int vocab_encode_runs(const struct vocab *v, const char *text, const struct vocab_run *runs,
                      size_t n_runs, struct tokens *ret, struct errmsg *em);

#endif
