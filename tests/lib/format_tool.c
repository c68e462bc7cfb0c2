/* format_tool: formats of answers by the line, for tests without a model. Each line of stdin is an
 * object {"format": F, "calls": 0..3, "thought": false, "texts": [...], "random": N, "seed": S};
 * each line of stdout one
 * {"error": TEXT}, or {"bytes", "states": [...], "random": [...]}: of each text "whole", "prefix"
 * or "no", and N texts by random walks through the grammar, which end where they may with one
 * chance in eight; only {"bytes": 0} where any answer will do. */
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/text/format.h"
#include "common/text/grammar.h"
#include "common/text/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANDOM_BYTES 20000u

static const char *judge(const struct grammar *g, const char *text, size_t n)
{
    static struct grammar_state a, b;
    grammar_start(g, &a);
    for (size_t i = 0; i < n; i++) {
        if (!grammar_step(g, &a, (uint8_t)text[i], &b)) return "no";
        a = b;
    }
    return a.may_end ? "whole" : "prefix";
}

/* Mostly printable bytes, so that texts come to an end. */
static bool walk(const struct grammar *g, uint64_t seed, uint32_t round, struct buf *ret)
{
    static struct grammar_state a, next[256];
    grammar_start(g, &a);
    for (uint32_t i = 0; i < RANDOM_BYTES; i++) {
        uint8_t choices[256];
        uint32_t n = 0, quote = 256;
        struct philox r = philox(seed, i, round, 0, 0);
        for (uint32_t b = 0; b < 256; b++)
            if (grammar_step(g, &a, (uint8_t)b, &next[b])) {
                choices[n++] = (uint8_t)b;
                if (b == '"' || b == '}' || b == ']') quote = b;
            }
        if (a.may_end && (n == 0 || r.v[0] % 8 == 0)) return true;
        if (n == 0) return false; /* a dead end: the test says so */
        uint8_t byte = quote < 256 && r.v[2] % 6 == 0 ? (uint8_t)quote : choices[r.v[1] % n];
        (void)buf_append(ret, &byte, 1);
        a = next[byte];
    }
    return false;
}

static void answer(const struct json *in, struct json *out)
{
    struct errmsg em = {0};
    struct buf format = {0}, code = {0};
    struct grammar g;
    uint64_t calls = 0, random = 0, seed = 0;
    bool thought = false;
    size_t n = 0;
    json_write_exact(json_get(in, "format"), &format);
    (void)json_as_u64(json_get(in, "calls"), &calls);
    (void)json_as_u64(json_get(in, "random"), &random);
    (void)json_as_u64(json_get(in, "seed"), &seed);
    (void)json_as_bool(json_get(in, "thought"), &thought);
    int rc = format_compile(format.data, format.len, (enum format_calls)calls, thought, &code, &em);
    if (rc == 0 && code.len) rc = grammar_open(code.data, code.len, &g, &em);
    if (rc < 0) {
        json_put_string(out, "error", em.text, strlen(em.text));
    } else if (code.len == 0) {
        json_put_u64(out, "bytes", 0); /* any answer */
    } else {
        struct json *states = json_new_array(), *texts = json_new_array();
        (void)json_count(json_get(in, "texts"), &n);
        for (size_t i = 0; i < n; i++) {
            const char *text = "";
            size_t len = 0;
            (void)json_as_string(json_at(json_get(in, "texts"), i), &text, &len);
            const char *is = judge(&g, text, len);
            json_add_string(states, is, strlen(is));
        }
        for (uint32_t i = 0; i < random; i++) {
            struct buf text = {0};
            (void)buf_append(&text, "", 0);
            bool ends = walk(&g, seed, i, &text);
            struct json *pair = json_new_array();
            json_add_string(pair, text.data, text.len);
            json_add_int(pair, ends);
            json_add(texts, pair);
            buf_close(&text);
        }
        json_put_u64(out, "bytes", code.len);
        json_put(out, "states", states);
        json_put(out, "random", texts);
    }
    buf_close(&format);
    buf_close(&code);
}

int main(void)
{
    char *line = NULL;
    size_t cap = 0;
    for (ssize_t n; (n = getline(&line, &cap, stdin)) > 0;) {
        struct json *in = NULL, *out = json_new_object();
        if (json_read(line, (size_t)n, &in, NULL) == 0) answer(in, out);
        json_print(out, stdout);
        (void)fflush(stdout);
        json_free(in);
        json_free(out);
    }
    free(line);
    return 0;
}
