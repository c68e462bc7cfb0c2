#include "common/base/opts.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct opt *find(const struct opt *table, const char *arg, size_t len)
{
    for (const struct opt *o = table; o->name; o++) {
        if (strlen(o->name) == len && memcmp(o->name, arg, len) == 0) return o;
        if (o->short_name && len == 2 && arg[0] == '-' && arg[1] == o->short_name) return o;
    }
    return NULL;
}

static int bad(const struct opt *o, const char *value, struct errmsg *em)
{
    if (o->kind == OPT_U32 || o->kind == OPT_F32)
        return err_set(em, ERR_CONF, "%s: '%s' is not a number in %g..%g", o->name, value, o->min,
                       o->max);
    return err_set(em, ERR_CONF, "%s: '%s' is not a whole number in 0..%" PRIu64, o->name, value,
                   UINT64_MAX);
}

static int set_number(const struct opt *o, const char *value, struct errmsg *em)
{
    char *end;
    errno = 0;
    if (o->kind == OPT_F32) {
        float f = strtof(value, &end);
        if (end == value || *end || !isfinite(f) || (double)f < o->min || (double)f > o->max)
            return bad(o, value, em);
        *(float *)o->value = f;
        return 0;
    }
    if (value[0] < '0' || value[0] > '9') return bad(o, value, em);
    unsigned long long v = strtoull(value, &end, 10);
    if (*end || errno) return bad(o, value, em);
    if (o->kind == OPT_U64) {
        *(uint64_t *)o->value = v;
        return 0;
    }
    if (v > UINT32_MAX || (double)v < o->min || (double)v > o->max) return bad(o, value, em);
    *(uint32_t *)o->value = (uint32_t)v;
    return 0;
}

static int set(const struct opt *o, const char *value, struct errmsg *em)
{
    if (o->given) *o->given = true;
    switch (o->kind) {
    case OPT_FLAG: *(bool *)o->value = true; return 0;
    case OPT_STRING: *(const char **)o->value = value; return 0;
    case OPT_LIST: {
        struct opt_list *l = o->value;
        if (l->n == OPT_LIST_MAX)
            return err_set(em, ERR_CONF, "%s: given more than %d times", o->name, OPT_LIST_MAX);
        l->items[l->n++] = value;
        return 0;
    }
    default: return set_number(o, value, em);
    }
}

bool opts_is_help(const char *arg)
{
    return strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0;
}

static void print_option(char short_name, const char *long_name, const char *help)
{
    char name[64];
    if (short_name)
        (void)snprintf(name, sizeof name, "-%c, %s", short_name, long_name);
    else
        (void)snprintf(name, sizeof name, "    %s", long_name);
    (void)printf("  %-18s %s\n", name, help);
}

static void print_help(const struct opts_usage *u, const struct opt *table)
{
    (void)printf("usage: %s\n\n", u->line);
    if (u->does) (void)printf("%s\n\n", u->does);
    (void)printf("options:\n");
    for (const struct opt *o = table; o->name; o++) print_option(o->short_name, o->name, o->help);
    print_option('h', "--help", "this text");
    if (u->version) print_option(0, "--version", "version and commit");
    (void)printf("\nexamples:\n%s", u->examples);
}

void opts_print_version(const struct opts_usage *usage)
{
    int name = (int)strcspn(usage->line, " ");
    (void)printf("%.*s %s\n", name, usage->line, usage->version);
}

int opts_parse(const struct opts_usage *usage, const struct opt *table, int argc, char **argv,
               const char **rest, size_t rest_max, size_t *ret_n_rest, struct errmsg *em)
{
    size_t n_rest = 0;
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        if (arg[0] != '-' || !arg[1]) {
            if (n_rest == rest_max) return err_set(em, ERR_CONF, "unexpected argument '%s'", arg);
            rest[n_rest++] = arg;
            continue;
        }
        const char *equals = strncmp(arg, "--", 2) == 0 ? strchr(arg, '=') : NULL;
        const struct opt *o = find(table, arg, equals ? (size_t)(equals - arg) : strlen(arg));
        if (!o && opts_is_help(arg)) {
            print_help(usage, table);
            return ERR_CANCELLED;
        }
        if (!o && usage->version && strcmp(arg, "--version") == 0) {
            opts_print_version(usage);
            return ERR_CANCELLED;
        }
        if (!o) return err_set(em, ERR_CONF, "unknown option '%s'", arg);
        const char *value = equals ? equals + 1 : NULL;
        if (o->kind == OPT_FLAG && value)
            return err_set(em, ERR_CONF, "%s takes no value", o->name);
        if (o->kind != OPT_FLAG && !value) {
            if (i + 1 == argc) return err_set(em, ERR_CONF, "%s needs a value", o->name);
            value = argv[++i];
        }
        int rc = set(o, value, em);
        if (rc < 0) return rc;
    }
    *ret_n_rest = n_rest;
    return 0;
}
