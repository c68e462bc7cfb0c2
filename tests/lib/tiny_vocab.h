/* The keys of a vocabulary for a tiny_llama, whose tokens have made-up names. */
#ifndef FLOTILLA_TESTS_TINY_VOCAB_H
#define FLOTILLA_TESTS_TINY_VOCAB_H

#include "tests/lib/gguf_bytes.h"

#include <stdio.h>

#define TINY_VOCAB_KEYS 4u

/* Token i is "<prefix>i"; `end` ends an answer, and `other`, if it is not negative, has another
 * name. */
static inline void tiny_vocab_keys(struct buf *ret, uint32_t n, const char *prefix, int32_t end,
                                   int32_t other)
{
    put_text_key(ret, "tokenizer.ggml.model", "gpt2");
    put_text_key(ret, "tokenizer.ggml.pre", "gpt-2");
    str(ret, "tokenizer.ggml.tokens");
    u32(ret, META_ARRAY);
    u32(ret, META_STRING);
    u64(ret, n);
    for (uint32_t i = 0; i < n; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "%s%u", (int32_t)i == other ? "other" : prefix, i);
        str(ret, name);
    }
    put_number_key(ret, "tokenizer.ggml.eos_token_id", META_U32, end);
}

#endif
