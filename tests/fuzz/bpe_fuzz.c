/* Byte-level BPE: any vocabulary, any text. The first bytes choose the pre-tokeniser, whether
 * special names count, and merges of what is there so far; the rest is text. All bytes are tokens,
 * so the tokens' bytes joined must be the text. */
#include "common/base/buf.h"
#include "common/base/mem.h"
#include "common/text/vocab.h"
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <string.h>

#define MERGES 24
#define SPECIALS 2

/* The alphabet of GPT-2: printable bytes stand for themselves, the others for U+0100 on. */
static size_t letter(int byte, int *next, char *out)
{
    bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    int c = printable ? byte : (*next)++;
    if (c < 128) {
        out[0] = (char)c;
        return 1;
    }
    out[0] = (char)(0xc0 | c >> 6);
    out[1] = (char)(0x80 | (c & 63));
    return 2;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const pres[] = {"gpt-2", "smollm", "llama-bpe", "qwen2", "none"};
    static char text[256 + MERGES][512], merge[MERGES][1100];
    struct vocab_string tokens[256 + MERGES + SPECIALS], merges[MERGES];
    int32_t types[256 + MERGES + SPECIALS];
    uint32_t n = 0, n_merges = 0;
    int next = 256;
    struct errmsg em = {0};
    if (size < 2 + MERGES) return 0;
    for (; n < 256; n++) {
        tokens[n] = (struct vocab_string){text[n], letter((int)n, &next, text[n])};
        types[n] = TOKEN_NORMAL;
    }
    for (uint32_t i = 0; i + 1 < MERGES; i += 2) {
        struct vocab_string a = tokens[data[2 + i] % n], b = tokens[data[3 + i] % n];
        if (a.len + b.len > 512) continue;
        memcpy(text[n], a.data, a.len);
        memcpy(text[n] + a.len, b.data, b.len);
        tokens[n] = (struct vocab_string){text[n], a.len + b.len};
        types[n++] = TOKEN_NORMAL;
        int len = snprintf(merge[n_merges], sizeof merge[0], "%.*s %.*s", (int)a.len, a.data,
                           (int)b.len, b.data);
        merges[n_merges] = (struct vocab_string){merge[n_merges], (size_t)len};
        n_merges++;
    }
    types[n] = TOKEN_CONTROL;
    tokens[n++] = (struct vocab_string){"<|end|>", 7};
    types[n] = TOKEN_USER;
    tokens[n++] = (struct vocab_string){"\n\n", 2};
    const char *pre = pres[data[0] % 5];
    struct vocab_spec s = {.model = {"gpt2", 4},
                           .pre = {pre, strlen(pre)},
                           .tokens = tokens,
                           .types = types,
                           .n_tokens = n,
                           .merges = merges,
                           .n_merges = n_merges,
                           .bos = -1,
                           .eos = -1,
                           .eot = -1,
                           .eom = -1,
                           .unknown = -1};
    struct vocab *v;
    bool known = strcmp(pre, "none") != 0;
    fuzz_check((vocab_open(&s, &v, &em) == 0) == known); /* an unknown pre-tokeniser is refused */
    if (!known) return 0;
    const char *in = (const char *)data + 2 + MERGES;
    size_t len = size - 2 - MERGES;
    bool special = data[1] & 1, same = true;
    struct tokens t = {0}, again = {0};
    struct buf out = {0};
    fuzz_check(vocab_encode(v, in, len, special, &t, &em) == 0);
    for (size_t i = 0; i < t.n; i++) {
        struct vocab_string p = vocab_piece(v, t.ids[i]);
        (void)buf_append(&out, p.data, p.len);
    }
    /* Every byte comes back; qwen2 composes characters first, and what is composed stays so. */
    if (strcmp(pre, "qwen2") != 0) {
        same = out.len == len && (len == 0 || memcmp(out.data, in, len) == 0);
    } else {
        fuzz_check(vocab_encode(v, out.data ? out.data : "", out.len, special, &again, &em) == 0);
        same = again.n == t.n && (t.n == 0 || memcmp(again.ids, t.ids, t.n * sizeof *t.ids) == 0);
    }
    fuzz_check(same);
    buf_close(&out);
    mem_free(again.ids);
    mem_free(t.ids);
    vocab_close(v);
    return 0;
}
