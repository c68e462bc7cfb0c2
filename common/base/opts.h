/* Command-line options, table-driven: one table a command, read in one pass. Every error names the
 * option, the value and what would be right. */
#ifndef FLOTILLA_BASE_OPTS_H
#define FLOTILLA_BASE_OPTS_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum opt_kind {
    OPT_FLAG,   /* bool: no value */
    OPT_STRING, /* const char *: borrowed from argv */
    OPT_U32,    /* uint32_t in [min, max] */
    OPT_U64,    /* uint64_t, all of it */
    OPT_F32,    /* float in [min, max] */
    OPT_LIST,   /* struct opt_list: may be repeated */
};

#define OPT_LIST_MAX 16

struct opt_list {
    const char *items[OPT_LIST_MAX];
    size_t n;
};

struct opt {
    const char *name; /* "--tokens"; a table ends with NULL */
    char short_name;  /* 'n' for -n, or 0 */
    enum opt_kind kind;
    void *value;
    double min, max;  /* of OPT_U32 and OPT_F32 */
    bool *given;      /* set when the option appears; may be NULL */
    const char *help; /* "N  how many tokens to generate" */
};

/* What help says beside the options. */
struct opts_usage {
    const char *line;     /* "flotilla-worker --coordinator ADDR [options]" */
    const char *does;     /* a sentence, or NULL */
    const char *version;  /* of the program; NULL: it is not told here */
    const char *examples; /* each on a line of its own, indented */
};

/* Reads argv[1..]; "--name value" and "--name=value". What is no option goes to rest (at most
 * rest_max). ERR_CONF on a usage error. --help and -h need no entry in the table: they print the
 * usage, the options and the examples to stdout, and the result is ERR_CANCELLED; so does --version
 * with the version. */
int opts_parse(const struct opts_usage *usage, const struct opt *table, int argc, char **argv,
               const char **rest, size_t rest_max, size_t *ret_n_rest, struct errmsg *em);

/* Whether an argument asks for help, for a program whose first argument is no option. */
bool opts_is_help(const char *arg);
/* "flotilla-worker 0.1.0" to stdout: the first word of the usage's line, and its version. */
void opts_print_version(const struct opts_usage *usage);

#endif
