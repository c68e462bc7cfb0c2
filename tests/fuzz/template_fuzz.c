/* Chat templates: a template, a NUL, and a request as JSON. Any bytes are refused with a reason, or
 * end within the limits; and whatever a template does with the client's text, no byte of it passes
 * for the template's own. */
#include "common/base/utf8.h"
#include "common/text/template.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

/* Characters of a private area, which no template has without saying so. */
#define MARK "\xee\x80\x80"
static const char usual[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"" MARK "s\"}, "
    "{\"role\": \"user\", \"content\": \"" MARK " a,b\\n" MARK "\"}, {\"role\": \"" MARK
    "\", \"content\": [{\"type\": \"text\", \"text\": \"" MARK "\"}], \"tool_calls\": [{\"type\": "
    "\"function\", \"function\": {\"name\": \"" MARK "\", \"arguments\": {\"" MARK "\": 1.5}}}]}], "
    "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {}}}], "
    "\"kwargs\": {\"x\": \"" MARK "x" MARK "\", \"n\": 5}}";

static void check_prompt(const struct template_prompt *p, bool template_has_marks)
{
    size_t at = 0;
    for (size_t i = 0; i < p->n_runs; at += p->runs[i++].bytes) {
        fuzz_check(p->runs[i].bytes > 0 && p->runs[i].bytes <= p->bytes - at);
        fuzz_check(i == 0 || p->runs[i].special != p->runs[i - 1].special);
        fuzz_check(template_has_marks || !p->runs[i].special ||
                   !memchr(p->text + at, MARK[0], p->runs[i].bytes));
    }
    fuzz_check(at == p->bytes && p->text[at] == 0);
    for (size_t n, i = 0; i < p->bytes; i += n)
        fuzz_check((n = utf8_char(p->text + i, p->bytes - i, NULL)) > 0);
}

static void render(const struct template *t, const struct json *j, bool template_has_marks)
{
    const struct template_token bos = {"bos_token", {"<s>", 3}};
    struct errmsg em = {0};
    struct template_prompt p = {0};
    const struct template_input in = {
        .messages = json_get(j, "messages"),
        .tools = json_get(j, "tools"),
        .documents = json_get(j, "documents"),
        .kwargs = json_get(j, "kwargs"),
        .add_generation_prompt = true,
        .tokens = &bos,
        .n_tokens = 1,
        .limits = {.steps = 100000, .output_bytes = 1 << 16, .memory_bytes = 32 << 20}};
    int rc = template_render(t, &in, &p, &em);
    fuzz_check(rc == 0 || rc == ERR_REFUSED || rc == ERR_RANGE || rc == ERR_LIMIT ||
               rc == ERR_UNSUPPORTED);
    fuzz_check((rc == 0) == (p.text != NULL) && (rc == 0 || rc == ERR_REFUSED || em.text[0]));
    if (rc == 0) check_prompt(&p, template_has_marks);
    template_prompt_close(&p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = size ? memchr(data, 0, size) : NULL;
    size_t bytes = end ? (size_t)(end - data) : size;
    bool marks = bytes && (memchr(data, MARK[0], bytes) || memchr(data, '\\', bytes));
    struct template *t = NULL;
    struct json *j = NULL;
    struct errmsg em = {0};
    int rc = template_open((const char *)data, bytes, &t, &em);
    fuzz_check(rc == 0 || ((rc == ERR_FORMAT || rc == ERR_UNSUPPORTED || rc == ERR_LIMIT) &&
                           strncmp(em.text, "line ", 5) == 0));
    if (rc < 0) return 0;
    fuzz_check(json_read(usual, sizeof usual - 1, &j, NULL) == 0);
    render(t, j, marks);
    json_free(j);
    if (end && json_read((const char *)end + 1, size - bytes - 1, &j, NULL) == 0) {
        render(t, j, marks);
        json_free(j);
    }
    template_close(t);
    return 0;
}
