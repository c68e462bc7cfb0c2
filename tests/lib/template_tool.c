/* Renders chat templates by the line: reads {"template": TEXT, "request": {...}, "now": SECONDS} on
 * each line of stdin and prints {"text"}, {"refused"} or {"failed"} for each. The request is as
 * `flotilla template` takes it. */
#include "common/text/template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int render(const struct json *line, struct template_prompt *ret, struct errmsg *em)
{
    const char *text = "";
    size_t bytes = 0;
    const struct json *request = json_get(line, "request");
    struct template_input in = {.messages = json_get(request, "messages"),
                                .tools = json_get(request, "tools"),
                                .documents = json_get(request, "documents"),
                                .kwargs = json_get(request, "chat_template_kwargs"),
                                .add_generation_prompt = true};
    struct template *t = NULL;
    (void)json_as_string(json_get(line, "template"), &text, &bytes);
    (void)json_as_int(json_get(line, "now"), &in.now_s);
    (void)json_as_bool(json_get(request, "add_generation_prompt"), &in.add_generation_prompt);
    int rc = template_open(text, bytes, &t, em);
    if (rc == 0) rc = template_render(t, &in, ret, em);
    template_close(t);
    return rc;
}

int main(void)
{
    char *line = NULL;
    size_t cap = 0;
    for (ssize_t n; (n = getline(&line, &cap, stdin)) > 0;) {
        struct json *j = NULL, *out = json_new_object();
        struct errmsg em = {0};
        struct template_prompt p = {0};
        int rc = json_read(line, (size_t)n, &j, &em);
        if (rc == 0) rc = render(j, &p, &em);
        if (rc == 0)
            json_put_string(out, "text", p.text, p.bytes);
        else
            json_put_string(out, rc == ERR_REFUSED ? "refused" : "failed", em.text,
                            strlen(em.text));
        json_print(out, stdout);
        template_prompt_close(&p);
        json_free(j);
        json_free(out);
    }
    free(line);
    return 0;
}
