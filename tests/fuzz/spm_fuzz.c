/* SentencePiece: pieces and scores from the input, any text. All bytes are tokens, so the tokens'
 * bytes joined must be the text, with a space before it where the vocabulary wants one, and spaces
 * where it has U+2581. */
#include "common/base/mem.h"
#include "common/text/vocab.h"
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <string.h>

#define PIECES 16
#define SPACE "\xe2\x96\x81"

static const char *const special[] = {"<end>", "\n\n", SPACE SPACE}; /* the last three tokens */

static void check_text(const struct vocab *v, const struct vocab_spec *s, const char *in,
                       size_t left, bool control)
{
    struct errmsg em = {0};
    struct tokens t = {0};
    fuzz_check(vocab_encode(v, in, left, control, &t, &em) == 0);
    size_t at = 0;
    bool prefix = s->space_prefix;
    for (size_t i = 0; i < t.n; i++) {
        struct vocab_string piece = vocab_piece(v, t.ids[i]);
        /* U+2581 twice may also come from merging; as a special token it is there as it is. */
        int32_t which = t.ids[i] - ((int32_t)s->n_tokens - 3);
        bool is_special = which >= 0 && strlen(special[which]) <= left - at &&
                          memcmp(in + at, special[which], strlen(special[which])) == 0;
        for (size_t k = 0; k < piece.len; k++) {
            if (prefix && !is_special) { /* the space that was put before a text */
                fuzz_check(piece.data[k] == ' ');
                prefix = false;
            } else if (left - at >= 3 && memcmp(in + at, SPACE, 3) == 0 && piece.data[k] == ' ') {
                at += 3;
            } else {
                fuzz_check(at < left && piece.data[k] == in[at]);
                at++;
            }
        }
        if (is_special) prefix = s->space_prefix;
    }
    fuzz_check(at == left);
    mem_free(t.ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char names[256][8];
    struct vocab_string tokens[257 + PIECES + 3];
    int32_t types[257 + PIECES + 3];
    float scores[257 + PIECES + 3];
    uint32_t n = 0;
    struct errmsg em = {0};
    if (size < 2 + 4 * PIECES) return 0;
    for (; n < 256; n++) {
        (void)snprintf(names[n], sizeof names[n], "<0x%02X>", (unsigned)n);
        tokens[n] = (struct vocab_string){names[n], 6};
        types[n] = TOKEN_BYTE;
        scores[n] = 0;
    }
    tokens[n] = (struct vocab_string){SPACE, 3}; /* all real vocabularies have it */
    types[n] = TOKEN_NORMAL;
    scores[n++] = -1;
    const uint8_t *p = data + 2, *body = p + 4 * PIECES;
    size_t left = size - 2 - 4 * PIECES;
    for (uint32_t i = 0; i < PIECES; i++, p += 4) { /* length, place in the text, score */
        size_t len = p[0] % 8, at = left ? (size_t)(p[1] | p[2] << 8) % left : 0;
        if (len > left - at || len == 0) continue;
        tokens[n] = (struct vocab_string){(const char *)body + at, len};
        types[n] = TOKEN_NORMAL;
        scores[n++] = (float)(int8_t)p[3];
    }
    for (int i = 0; i < 3; i++) {
        tokens[n] = (struct vocab_string){special[i], strlen(special[i])};
        types[n] = i ? TOKEN_USER : TOKEN_CONTROL;
        scores[n++] = -5;
    }
    struct vocab_spec s = {.model = {"llama", 5},
                           .tokens = tokens,
                           .types = types,
                           .n_tokens = n,
                           .scores = scores,
                           .space_prefix = data[0] & 1,
                           .bos = -1,
                           .eos = -1,
                           .eot = -1,
                           .eom = -1,
                           .unknown = -1};
    struct vocab *v;
    fuzz_check(vocab_open(&s, &v, &em) == 0);
    check_text(v, &s, (const char *)body, left, data[1] & 1);
    vocab_close(v);
    return 0;
}
