/* How long a chat template takes for 100 messages: the fastest of `times` renderings, so that other
 * work on the machine does not count.
 *
 *   template_bench FILE TIMES < MESSAGES     prints {"ms": X, "compile_ms": X, "steps": N, "bytes":
 * N}
 */
#include "common/text/template.h"
#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static int fail(const char *what, const struct errmsg *em)
{
    (void)fprintf(stderr, "template_bench: %s: %s\n", what, em->text);
    return 1;
}

static void read_file(FILE *f, struct buf *b)
{
    char block[65536];
    for (size_t n; f && (n = fread(block, 1, sizeof block, f)) > 0;) (void)buf_append(b, block, n);
}

static int measure(const struct buf *text, const struct json *j, int times)
{
    struct errmsg em = {0};
    struct template *t = NULL;
    struct template_prompt p = {0};
    const struct template_input in = {.messages = j, .add_generation_prompt = true};
    uint64_t best = UINT64_MAX, begin = clock_ns();
    if (template_open(text->data, text->len, &t, &em) < 0) return fail("template", &em);
    uint64_t compile = clock_ns() - begin;
    for (int i = 0; i < times; i++) {
        template_prompt_close(&p);
        begin = clock_ns();
        if (template_render(t, &in, &p, &em) < 0) return fail("messages", &em);
        uint64_t ns = clock_ns() - begin;
        best = ns < best ? ns : best;
    }
    (void)printf("{\"ms\": %.4f, \"compile_ms\": %.4f, \"steps\": %" PRIu64 ", \"bytes\": %zu}\n",
                 (double)best / 1e6, (double)compile / 1e6, p.steps, p.bytes);
    template_prompt_close(&p);
    template_close(t);
    return 0;
}

int main(int argc, char **argv)
{
    struct errmsg em = {0};
    struct buf text = {0}, messages = {0};
    struct json *j = NULL;
    int times = argc == 3 ? atoi(argv[2]) : 0;
    FILE *f = argc == 3 ? fopen(argv[1], "rb") : NULL;
    if (!f || times < 1) {
        (void)fprintf(stderr, "usage: template_bench FILE TIMES < MESSAGES\n");
        return 2;
    }
    read_file(f, &text);
    (void)fclose(f);
    read_file(stdin, &messages);
    if (json_read(messages.data ? messages.data : "", messages.len, &j, &em) < 0)
        return fail("stdin", &em);
    int rc = measure(&text, j, times);
    json_free(j);
    buf_close(&text);
    buf_close(&messages);
    return rc;
}
