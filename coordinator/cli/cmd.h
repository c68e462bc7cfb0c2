/* The commands of `flotilla`. Each takes argv from its own name on and returns the exit status: 0
 * success, 1 failed, 2 usage or configuration error. Results go to stdout, all else to stderr. */
#ifndef FLOTILLA_CLI_CMD_H
#define FLOTILLA_CLI_CMD_H

#include "common/base/err.h"
#include "common/base/opts.h"

#define CMD_OK 0
#define CMD_FAILED 1
#define CMD_USAGE 2

int cmd_generate(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_status(int argc, char **argv);
int cmd_up(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_load(int argc, char **argv); /* bench --cluster */
int cmd_quality(int argc, char **argv);
int cmd_simulate(int argc, char **argv);

/* Prints "flotilla NAME: reason" and returns the exit status that fits the code. */
int cmd_fail(const char *name, int code, const struct errmsg *em);

/* Reads the table. `usage` is the whole line, "flotilla NAME ..."; examples as in struct
 * opts_usage. True: go on; false, after an error or --help: return *ret_status. */
bool cmd_options(const char *usage, const char *examples, const struct opt *table, int argc,
                 char **argv, const char **rest, size_t rest_max, size_t *ret_n_rest,
                 int *ret_status);

#endif
