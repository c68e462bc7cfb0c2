#include "coordinator/cli/cmd.h"
#include "coordinator/cli/gen.h"

#include "common/base/mem.h"
#include "common/text/json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_text(void *arg, const char *text, size_t len)
{
    (void)arg;
    (void)fwrite(text, 1, len, stdout);
    (void)fflush(stdout);
}

static void print_json(const struct gen_result *r)
{
    struct json *j = json_new_object(), *t = json_new_object();
    json_put_string(j, "text", r->text.data, r->text.len);
    json_put(j, "prompt_tokens", json_tokens(r->prompt.ids, r->prompt.n));
    json_put(j, "tokens", json_tokens(r->tokens.ids, r->tokens.n));
    json_put_string(j, "finish_reason", r->finish_reason, strlen(r->finish_reason));
    json_put_int(j, "seed", (int64_t)r->seed);
    if (r->isa) json_put_string(j, "isa", r->isa, strlen(r->isa));
    json_put_real(t, "prompt_ms", r->prompt_ms);
    json_put_real(t, "ttft_ms", r->ttft_ms);
    json_put_real(t, "decode_ms", r->decode_ms);
    json_put_real(t, "tokens_per_s", r->tokens_per_s);
    json_put(j, "timings", t);
    json_print(j, stdout);
    json_free(j);
}

/* The text ends with a newline; what a person wants to know of it goes to stderr. */
static void print_summary(const struct gen_result *r)
{
    (void)printf("\n");
    (void)fflush(stdout);
    (void)fprintf(stderr,
                  "%zu tokens after %zu of the prompt, first after %.0f ms, then %.1f tokens/s\n",
                  r->tokens.n, r->prompt.n, r->ttft_ms, r->tokens_per_s);
}

/* An option that the chosen form would not look at is refused. */
static int check(const struct gen_options *o, struct errmsg *em)
{
    if (!o->model == !o->cluster || !o->prompt == !o->prompt_tokens)
        return err_set(em, ERR_CONF,
                       "needs --prompt or --prompt-tokens, and one of --model and --cluster");
    if (o->cluster && (o->threads || o->ctx || o->chunk || o->isa || o->kv))
        return err_set(em, ERR_CONF,
                       "--threads, --ctx, --chunk, --isa and --kv are the cluster's own: they go "
                       "with --model");
    if (o->model && o->deadline_s) return err_set(em, ERR_CONF, "--deadline goes with --cluster");
    return 0;
}

static int parse_ids(const char *text, struct tokens *ret, struct errmsg *em)
{
    const char *at = text;
    for (;;) {
        char *end;
        errno = 0;
        long id = strtol(at, &end, 10);
        if (end == at || errno || id < 0 || id > INT32_MAX || (*end && *end != ','))
            return err_set(em, ERR_CONF, "--prompt-tokens: '%s' is not a list of ids like 1,2,3",
                           text);
        tokens_push(ret, (int32_t)id);
        if (!*end) return 0;
        at = end + 1;
    }
}

int cmd_generate(int argc, char **argv)
{
    struct gen_options o = {.tokens = 128, .sampling = {.top_p = 1.0f}};
    bool json = false;
    const struct opt table[] = {
        {"--model", 'm', OPT_STRING, &o.model, 0, 0, NULL,
         "FILE  a GGUF file: the engine alone, in this process"},
        {"--cluster", 0, OPT_STRING, &o.cluster, 0, 0, NULL,
         "ADDR  a running cluster, e.g. tcp://127.0.0.1:7070"},
        {"--prompt", 'p', OPT_STRING, &o.prompt, 0, 0, NULL,
         "TEXT  what to continue; control tokens in it are text"},
        {"--prompt-tokens", 0, OPT_STRING, &o.prompt_tokens, 0, 0, NULL,
         "IDS  the prompt as token ids, 1,2,3; nothing is added to it"},
        {"--special", 0, OPT_FLAG, &o.special, 0, 0, NULL,
         "names of control tokens in the prompt are those tokens"},
        {"--tokens", 'n', OPT_U32, &o.tokens, 0, 1 << 20, NULL, "N  most tokens to generate (128)"},
        {"--temp", 0, OPT_F32, &o.sampling.temp, 0, 1e6, NULL,
         "T  temperature; 0, the default, takes the likeliest token"},
        {"--top-k", 0, OPT_U32, &o.sampling.top_k, 0, UINT32_MAX, NULL,
         "K  choose among the K likeliest; 0: no limit"},
        {"--top-p", 0, OPT_F32, &o.sampling.top_p, 0, 1, NULL,
         "P  choose among the likeliest that hold P of the mass (1)"},
        {"--min-p", 0, OPT_F32, &o.sampling.min_p, 0, 1, NULL,
         "P  drop tokens below P times the likeliest (0)"},
        {"--seed", 0, OPT_U64, &o.sampling.seed, 0, 0, &o.seed_given,
         "S  same seed, same answer; drawn if not given"},
        {"--stop", 0, OPT_LIST, &o.stops, 0, 0, NULL,
         "TEXT  end before this text; may be repeated"},
        {"--ignore-eos", 0, OPT_FLAG, &o.ignore_eos, 0, 0, NULL,
         "go on after an end-of-generation token"},
        {"--ctx", 0, OPT_U32, &o.ctx, 1, 1 << 30, NULL,
         "N  context limit; the model's if not given (--model)"},
        {"--chunk", 0, OPT_U32, &o.chunk, 1, 4096, NULL,
         "N  prompt tokens computed at once (512, --model)"},
        {"--threads", 't', OPT_U32, &o.threads, 1, 256, NULL,
         "N  threads; all cores if not given (--model)"},
        {"--isa", 0, OPT_STRING, &o.isa, 0, 0, NULL,
         "NAME  force scalar, avx2 or avx512; the best if not given (--model)"},
        {"--kv", 0, OPT_STRING, &o.kv, 0, 0, NULL,
         "TYPE  keys and values: f32, f16, q8_0, q4_0 (f16, --model)"},
        {"--deadline", 0, OPT_U32, &o.deadline_s, 1, 86400, NULL,
         "S  end the request after S seconds (600, --cluster)"},
        {"--json", 0, OPT_FLAG, &json, 0, 0, NULL, "one JSON document instead of text"},
        {0},
    };
    size_t n_rest;
    int status;
    if (!cmd_options(
            "generate (--model FILE | --cluster ADDR) --prompt TEXT [options]",
            "  flotilla generate --model smol.gguf --prompt 'Once upon a time' --tokens 64\n"
            "  flotilla generate --cluster tcp://127.0.0.1:7070 --prompt Hi --temp 0.8 --seed 7\n",
            table, argc, argv, NULL, 0, &n_rest, &status))
        return status;
    struct errmsg em = {0};
    if (check(&o, &em) < 0) return cmd_fail("generate", ERR_CONF, &em);
    if (!o.chunk) o.chunk = 512;
    struct gen_result r = {0};
    if (o.prompt_tokens && parse_ids(o.prompt_tokens, &r.prompt, &em) < 0) {
        gen_result_close(&r);
        return cmd_fail("generate", ERR_CONF, &em);
    }
    int rc = (o.model ? gen_local : gen_cluster)(&o, json ? NULL : print_text, NULL, &r, &em);
    if (rc == 0 && json)
        print_json(&r);
    else if (rc == 0)
        print_summary(&r);
    gen_result_close(&r);
    return rc < 0 ? cmd_fail("generate", rc, &em) : CMD_OK;
}
