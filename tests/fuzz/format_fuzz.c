/* Forms of answers. The first byte says what the others are: code of an automaton, as a peer sends
 * it, which is refused or bounded, whatever it does; or a format, a JSON schema, the pattern of
 * one, or a grammar in GBNF. What of these is compiled is code that is taken, and leads into no
 * dead end along the input's own bytes. */
#include "common/base/mem.h"
#include "common/text/format.h"
#include "common/text/grammar.h"
#include "common/text/json.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

#define WALK_BYTES 300u

/* compiled: the code is our own. */
static void walk(const struct grammar *g, const uint8_t *data, size_t size, bool compiled)
{
    static struct grammar_state a, b;
    grammar_start(g, &a);
    fuzz_check(a.n_words <= GRAMMAR_STATE_WORDS);
    for (size_t i = 0; i < size && i < WALK_BYTES; i++) {
        bool on = a.may_end;
        for (uint32_t c = 0; c < 256 && !on && compiled; c++)
            on = grammar_step(g, &a, (uint8_t)c, &b);
        fuzz_check(on || !compiled);
        struct grammar_state blurred = a;
        grammar_blur(g, &blurred, 8);
        bool far = grammar_step(g, &blurred, data[i], &b);
        bool near = grammar_step(g, &a, data[i], &b);
        fuzz_check(far == near || !compiled);
        if (!near) return;
        a = b;
    }
}

static void run_code(const uint8_t *data, size_t size)
{
    struct grammar g;
    struct errmsg em = {0};
    int rc = grammar_open(data, size, &g, &em);
    fuzz_check(rc == 0 || (rc == ERR_FORMAT && em.text[0]));
    if (rc == 0) walk(&g, data, size, false);
}

static void compile(const char *json, size_t bytes, const uint8_t *data, size_t size)
{
    struct buf code = {0};
    struct errmsg em = {0};
    struct grammar g;
    int rc = format_compile(json, bytes, (enum format_calls)(size % 4), size % 5 == 0, &code, &em);
    fuzz_check(rc == 0 || em.text[0]);
    fuzz_check(rc == 0 || (rc != ERR_NOMEM && code.len == 0));
    if (rc == 0 && code.len) {
        fuzz_check(grammar_open(code.data, code.len, &g, &em) == 0);
        walk(&g, data, size, true);
    }
    buf_close(&code);
}

/* {"type": type, ...: the input}, or nothing where that is no JSON. */
static void run_wrapped(const char *type, const struct json *schema, const uint8_t *data,
                        size_t size)
{
    struct json *format = json_new_object(), *inner = json_new_object();
    struct buf text = {0};
    json_put_string(format, "type", type, strlen(type));
    if (schema) json_put(inner, "schema", json_share(schema));
    json_put(format, "json_schema", inner);
    json_put_string(format, "grammar", (const char *)data, size);
    json_write_exact(format, &text);
    compile(text.data, text.len, data, size);
    buf_close(&text);
    json_free(format);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct json *j = NULL;
    if (size == 0) return 0;
    char kind = (char)*data++;
    size--;
    if (kind == 'c') run_code(data, size);
    if (kind == 'f') compile((const char *)data, size, data, size);
    if (kind == 'g') run_wrapped("grammar", NULL, data, size);
    if (kind == 's' && json_read((const char *)data, size, &j, NULL) == 0)
        run_wrapped("json_schema", j, data, size);
    if (kind == 'p') {
        j = json_new_object();
        json_put_string(j, "pattern", (const char *)data, size);
        run_wrapped("json_schema", j, data, size);
    }
    json_free(j);
    return 0;
}
