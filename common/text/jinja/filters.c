/* Finding filters by name. filters_text.c has those that make text, filters_items.c the others. */
#include "common/text/jinja/interp.h"

#include <string.h>

const struct filter_def *filter_find(const char *name, size_t len)
{
    const struct filter_def *tables[] = {filters_text, filters_items};
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++)
        for (const struct filter_def *f = tables[i]; f->name; f++)
            if (strlen(f->name) == len && memcmp(f->name, name, len) == 0) return f;
    return NULL;
}

struct value filter_run(struct interp *in, const struct filter_def *f, struct value v,
                        const struct call_args *a)
{
    struct value to[CALL_PARAMS_MAX] = {0};
    if (!f->run) {
        interp_fail(in, ERR_UNSUPPORTED, "the filter '%s' is not supported", f->name);
        return value_none();
    }
    if (f->params && !call_bind(in, f->name, f->params, a, to)) return value_none();
    return f->run(in, v, to, a);
}
