#include "common/text/jinja/interp.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void interp_fail(struct interp *in, int code, const char *format, ...)
{
    char why[384];
    va_list args;
    if (in->rc < 0) return;
    va_start(args, format);
    (void)vsnprintf(why, sizeof why, format, args);
    va_end(args);
    in->rc = err_set(in->em, code, "line %" PRIu32 ": %s", in->line, why);
}

const struct errmsg *interp_set_aside(struct interp *in, int *ret_rc)
{
    if (in->rc != ERR_RANGE) return NULL;
    *ret_rc = in->rc;
    in->rc = 0;
    struct errmsg *copy = interp_alloc(in, sizeof *copy);
    if (copy) *copy = *in->em;
    return copy;
}

void interp_raise(struct interp *in, int rc, const struct errmsg *em)
{
    if (in->rc < 0) return;
    in->rc = rc;
    *in->em = *em;
}

void interp_refuse(struct interp *in, struct value words)
{
    if (in->rc < 0) return;
    in->rc = err_set(in->em, ERR_REFUSED, "%.*s", (int)words.len, words.text);
}

bool interp_step(struct interp *in, uint64_t n)
{
    if (in->rc < 0) return false;
    in->steps += n;
    if (in->steps <= in->steps_max) return true;
    interp_fail(in, ERR_LIMIT, "the template takes more than %" PRIu64 " steps", in->steps_max);
    return false;
}

bool interp_bytes(struct interp *in, size_t n)
{
    return interp_step(in, n / 64);
}

bool interp_kinds(struct interp *in, size_t n)
{
    return interp_step(in, n / 8);
}

bool interp_enter(struct interp *in)
{
    if (++in->depth > in->depth_max)
        interp_fail(in, ERR_LIMIT, "calls or values nest more than %" PRIu32 " deep",
                    in->depth_max);
    return in->rc == 0;
}

void interp_leave(struct interp *in)
{
    in->depth--;
}

void *interp_alloc(struct interp *in, size_t bytes)
{
    void *p = in->rc < 0 ? NULL : arena_alloc(&in->arena, bytes);
    if (p || in->rc < 0) return p;
    if (in->arena.starved)
        interp_fail(in, ERR_NOMEM, "out of memory");
    else
        interp_fail(in, ERR_LIMIT, "the template needs more than %zu bytes of memory",
                    in->memory_max);
    return NULL;
}

void interp_undefined(struct interp *in, struct value v)
{
    int len = (int)(v.len > 64 ? 64 : v.len);
    if (v.type == V_UNSAFE)
        interp_fail(in, ERR_RANGE, "'%.*s' is forbidden: templates may not change values", len,
                    v.text);
    else if (v.of == V_MISSING)
        interp_fail(in, ERR_RANGE, "'%.*s' is undefined", len, v.text);
    else
        interp_fail(in, ERR_RANGE, "'%.*s' is undefined: no such member of a '%s'", len, v.text,
                    value_type_name(value_of(v.of)));
}

void scope_set(struct interp *in, struct scope *s, uint32_t name, struct value v)
{
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->variables[i].name != name) continue;
        s->variables[i].value = v;
        return;
    }
    if (s->n == s->cap) {
        uint32_t cap = s->cap ? 2 * s->cap : 4;
        struct variable *more = interp_alloc(in, cap * sizeof *more);
        if (!more) return;
        if (s->n) memcpy(more, s->variables, s->n * sizeof *more);
        s->variables = more;
        s->cap = cap;
    }
    s->variables[s->n++] = (struct variable){name, v};
}

const struct value *scope_get(struct interp *in, const struct scope *s, uint32_t name)
{
    for (; s; s = s->outer) {
        if (!interp_step(in, s->n / 16)) return NULL;
        for (uint32_t i = 0; i < s->n; i++)
            if (s->variables[i].name == name) return &s->variables[i].value;
    }
    return NULL;
}
