/* The commands of `flotilla`. Each takes argv from its own name on and returns the exit status: 0
 * success, 1 failed, 2 usage or configuration error. Results go to stdout, all else to stderr. */
#ifndef FLOTILLA_CLI_CMD_H
#define FLOTILLA_CLI_CMD_H

#include "common/base/err.h"
#include "common/base/opts.h"
#include "common/base/pool.h"

#define CMD_OK 0
#define CMD_FAILED 1
#define CMD_USAGE 2

/* Rows of a table for options that several commands have; `at` takes the value. */
#define CMD_OPT_PRE(at)                                                                            \
    {                                                                                              \
        "--pre", 0, OPT_STRING, at, 0, 0, NULL, "NAME  pre-tokeniser in place of the file's"       \
    }
#define CMD_OPT_ISA(at)                                                                            \
    {                                                                                              \
        "--isa", 0, OPT_STRING, at, 0, 0, NULL, "NAME  force scalar, avx2 or avx512 (the best)"    \
    }
#define CMD_OPT_KV(at)                                                                             \
    {                                                                                              \
        "--kv", 0, OPT_STRING, at, 0, 0, NULL, "TYPE  keys and values: f32, f16, q8_0, q4_0 (f16)" \
    }
#define CMD_OPT_THREADS(at)                                                                        \
    {                                                                                              \
        "--threads", 't', OPT_U32, at, 1, POOL_THREADS_MAX, NULL,                                  \
            "N  threads (all cores, or the quota)"                                                 \
    }
/* Two rows: the keys of a struct client_keys. */
#define CMD_OPT_KEYS(keys)                                                                         \
    {                                                                                              \
        "--key", 0, OPT_STRING, &(keys)->file,                                                     \
        0,       0, NULL,       "FILE  your key, made by flotilla keygen"},                        \
    {                                                                                              \
        "--coordinator-key", 0, OPT_STRING, &(keys)->coordinator, 0, 0, NULL,                      \
            "KEY  the public key that the coordinator must have"                                   \
    }
#define CMD_OPT_JSON(at)                                                                           \
    {                                                                                              \
        "--json", 0, OPT_FLAG, at, 0, 0, NULL, "one JSON document instead of text"                 \
    }

int cmd_generate(int argc, char **argv);
int cmd_chat(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);
int cmd_template(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_status(int argc, char **argv);
int cmd_drain(int argc, char **argv);
int cmd_rebalance(int argc, char **argv);
int cmd_gateway(int argc, char **argv);
int cmd_keygen(int argc, char **argv);
int cmd_plan(int argc, char **argv);
int cmd_up(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_load(int argc, char **argv); /* bench --cluster */
int cmd_quality(int argc, char **argv);
int cmd_simulate(int argc, char **argv);

/* Prints "flotilla NAME: reason" and returns the exit status that fits the code. */
int cmd_fail(const char *name, int code, const struct errmsg *em);

struct buf;
/* All of stdin. ERR_LIMIT above VOCAB_TEXT_BYTES_MAX; ERR_IO. */
int cmd_read_stdin(struct buf *to, struct errmsg *em);

/* Reads the table. `usage` is the whole line, "flotilla NAME ..."; examples as in struct
 * opts_usage. True: go on; false, after an error or --help: return *ret_status. */
bool cmd_options(const char *usage, const char *examples, const struct opt *table, int argc,
                 char **argv, const char **rest, size_t rest_max, size_t *ret_n_rest,
                 int *ret_status);

#endif
