/* Chat templates cannot be interpreted yet: none can be opened. */
#include "common/text/template.h"

int template_open(const char *text, size_t bytes, struct template **ret, struct errmsg *em)
{
    (void)text;
    (void)bytes;
    (void)ret;
    return err_set(em, ERR_UNSUPPORTED, "this build interprets no chat templates");
}

void template_close(struct template *t)
{
    (void)t;
}

int template_render(const struct template *t, const struct template_input *in,
                    struct template_prompt *ret, struct errmsg *em)
{
    (void)t;
    (void)in;
    (void)ret;
    return err_set(em, ERR_UNSUPPORTED, "this build interprets no chat templates");
}

void template_prompt_close(struct template_prompt *p)
{
    (void)p;
}
