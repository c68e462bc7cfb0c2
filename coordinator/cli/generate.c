/* `generate`: its options, the prompt, and what is printed of an answer. */
#include "coordinator/cli/cmd.h"
#include "coordinator/cli/gen.h"

#include "common/base/mem.h"
#include "common/text/json.h"
#include "proto/limits.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_text(void *arg, const char *text, size_t len)
{
    (void)arg;
    (void)fwrite(text, 1, len, stdout);
    (void)fflush(stdout);
}

/* One object a token: {"logprob", "top": [[id, logprob], ...]}. */
static struct json *json_logprobs(const struct gen_result *r)
{
    struct json *list = json_new_array();
    const float *chosen = (const float *)(const void *)r->chosen.data;
    const struct sample_candidate *top = (const struct sample_candidate *)(const void *)r->top.data;
    for (size_t i = 0; i < r->chosen.len / sizeof *chosen; i++) {
        struct json *o = json_new_object(), *tops = json_new_array();
        for (uint32_t k = 0; k < r->n_top; k++, top++) {
            struct json *pair = json_new_array();
            json_add_int(pair, top->id);
            json_add_real(pair, (double)top->score);
            json_add(tops, pair);
        }
        json_put_real(o, "logprob", (double)chosen[i]);
        json_put(o, "top", tops);
        json_add(list, o);
    }
    return list;
}

static void put_finish(struct json *to, const struct gen_result *r)
{
    const char *text = finish_text(r->finish_reason);
    json_put_string(to, "finish_reason", text, strlen(text));
}

static struct json *json_more(const struct gen_result *r)
{
    struct json *list = json_new_array();
    for (uint32_t i = 0; i < r->n_more; i++) {
        const struct gen_result *x = &r->more[i];
        struct json *o = json_new_object();
        json_put_string(o, "text", x->text.data, x->text.len);
        json_put(o, "tokens", json_tokens(x->tokens.ids, x->tokens.n));
        put_finish(o, x);
        json_add(list, o);
    }
    return list;
}

static struct json *json_drafts(const struct gen_result *r)
{
    struct json *j = json_new_object();
    json_put_int(j, "drafted", (int64_t)r->drafted);
    json_put_int(j, "accepted", (int64_t)r->accepted);
    json_put_int(j, "runs", (int64_t)r->draft_runs);
    return j;
}

static struct json *json_counts(const struct masks_counts *c)
{
    struct json *o = json_new_object();
    json_put_u64(o, "tokens_tested", c->tested);
    json_put_u64(o, "masks_made", c->made);
    json_put_u64(o, "masks_known", c->kept);
    return o;
}

static void print_json(const struct gen_result *r)
{
    struct json *j = json_new_object(), *t = json_new_object();
    json_put_string(j, "text", r->text.data, r->text.len);
    json_put(j, "prompt_tokens", json_tokens(r->prompt.ids, r->prompt.n));
    json_put(j, "tokens", json_tokens(r->tokens.ids, r->tokens.n));
    if (r->chosen.len) json_put(j, "logprobs", json_logprobs(r));
    put_finish(j, r);
    if (r->n_more) json_put(j, "more", json_more(r));
    json_put_u64(j, "seed", r->seed);
    if (r->isa) json_put_string(j, "isa", r->isa, strlen(r->isa));
    if (r->counts.tested || r->counts.made) json_put(j, "constrained", json_counts(&r->counts));
    json_put_real(t, "prompt_ms", r->prompt_ms);
    json_put_real(t, "ttft_ms", r->ttft_ms);
    json_put_real(t, "decode_ms", r->decode_ms);
    json_put_real(t, "tokens_per_s", r->tokens_per_s);
    json_put(j, "timings", t);
    if (r->has_drafts) json_put(j, "speculation", json_drafts(r));
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
static int check(struct gen_options *o, const char *priority, struct errmsg *em)
{
    static const char *const priorities[] = {"critical", "high", "normal", "low"};
    if (!o->model == !o->cluster || !!o->prompt + !!o->file + !!o->prompt_tokens != 1)
        return err_set(em, ERR_CONF,
                       "needs one of --prompt, --file and --prompt-tokens, and one of --model and "
                       "--cluster");
    if (o->cluster && (o->threads || o->ctx || o->chunk || o->isa || o->kv || o->pre))
        return err_set(
            em, ERR_CONF,
            "--threads, --ctx, --chunk, --isa, --kv and --pre are the cluster's own: they go "
            "with --model");
    if (o->model && (o->deadline_s || o->samples || priority || o->draft || o->draft_length))
        return err_set(em, ERR_CONF,
                       "--deadline, --samples, --priority, --draft and --draft-len go with "
                       "--cluster");
    if (o->model && (o->keys.file || o->keys.coordinator))
        return err_set(em, ERR_CONF, "--key and --coordinator-key go with --cluster");
    if (o->schema && o->grammar)
        return err_set(em, ERR_CONF, "--json-schema and --grammar exclude each other");
    if ((o->schema || o->grammar) && o->ignore_eos)
        return err_set(em, ERR_CONF, "--ignore-eos: an answer with a form has an end");
    if (o->cluster && o->sample) return err_set(em, ERR_CONF, "--sample goes with --model");
    for (uint32_t i = 0; priority && i < 4; i++)
        if (strcmp(priority, priorities[i]) == 0) o->priority = i + 1;
    if (priority && !o->priority)
        return err_set(em, ERR_CONF, "--priority: '%s' is unknown (critical, high, normal, low)",
                       priority);
    return 0;
}

/* What a conversation has no place for is refused. */
static int check_chat(const struct gen_options *o, struct errmsg *em)
{
    if (o->system && !o->chat) return err_set(em, ERR_CONF, "--system goes with --chat");
    if (o->chat && o->prompt_tokens)
        return err_set(em, ERR_CONF, "--chat needs a text: --prompt or --file");
    if (o->chat && o->special)
        return err_set(em, ERR_CONF, "--special: control tokens of a chat are the template's own");
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

/* Room for what --logit-bias names. */
struct biases {
    int32_t ids[OPT_LIST_MAX];
    float values[OPT_LIST_MAX];
};

static int parse_bias(const char *text, int32_t *ret_id, float *ret_value, struct errmsg *em)
{
    char *end, *value_end;
    errno = 0;
    long id = strtol(text, &end, 10);
    float value = *end == '=' ? strtof(end + 1, &value_end) : 0.0f;
    if (end == text || *end != '=' || value_end == end + 1 || *value_end || errno || id < 0 ||
        id > INT32_MAX || !(value >= -SAMPLING_BIAS_MAX && value <= SAMPLING_BIAS_MAX))
        return err_set(em, ERR_CONF, "--logit-bias: '%s' is not ID=B with B in -%g..%g", text,
                       (double)SAMPLING_BIAS_MAX, (double)SAMPLING_BIAS_MAX);
    *ret_id = (int32_t)id;
    *ret_value = value;
    return 0;
}

/* A file, or stdin (path NULL): all that is there, as it is, the last newline too. */
static int read_text(const char *option, const char *path, struct buf *text, struct errmsg *em)
{
    const char *name = path ? path : "stdin";
    char block[65536];
    size_t n;
    FILE *f = path ? fopen(path, "re") : stdin;
    if (!f) return err_set(em, ERR_CONF, "%s %s: %s", option, path, strerror(errno));
    int rc = 0;
    while (rc == 0 && (n = fread(block, 1, sizeof block, f)) > 0)
        if (buf_append(text, block, n) < 0)
            rc = err_set(em, ERR_CONF, "%s %s: longer than %zu bytes", option, name, text->max);
    if (rc == 0 && ferror(f)) rc = err_set(em, ERR_IO, "%s: %s", name, strerror(errno));
    if (path) (void)fclose(f);
    return rc;
}

/* --json-schema and --grammar, as a format. */
static int read_format(struct gen_options *o, struct buf *ret, struct errmsg *em)
{
    const char *option = o->schema ? "--json-schema" : "--grammar";
    const char *path = o->schema ? o->schema : o->grammar;
    struct buf text = {.max = LIMIT_FORMAT_BYTES};
    struct json *schema = NULL;
    if (!path) return 0;
    int rc = read_text(option, path, &text, em);
    if (rc == 0 && o->schema && json_read(text.data, text.len, &schema, em) < 0)
        rc = err_wrap(em, ERR_CONF, "%s %s", option, path);
    if (rc == 0) {
        struct json *format = json_new_object(), *inner = json_new_object();
        json_put_string(format, "type", o->schema ? "json_schema" : "grammar", o->schema ? 11 : 7);
        if (o->schema) {
            json_put(inner, "schema", schema);
            json_put(format, "json_schema", inner);
        } else {
            json_free(inner);
            json_put_string(format, "grammar", text.data, text.len);
        }
        json_write_exact(format, ret);
        json_free(format);
        o->format = ret->data;
    }
    buf_close(&text);
    return rc;
}

/* --prompt -, --file - and --file F. */
static int read_prompt(struct gen_options *o, struct buf *text, struct errmsg *em)
{
    const char *given = o->prompt ? o->prompt : o->file;
    bool from_stdin = given && strcmp(given, "-") == 0;
    const char *name = from_stdin ? "stdin" : o->file;
    if (!name) return 0;
    int rc = read_text(from_stdin ? "--prompt" : "--file", from_stdin ? NULL : o->file, text, em);
    if (rc == 0 && !text->len) rc = err_set(em, ERR_CONF, "the prompt in %s is empty", name);
    const char *nul = rc == 0 ? memchr(text->data, 0, text->len) : NULL;
    if (nul)
        rc = err_set(em, ERR_CONF, "the prompt in %s holds a NUL, at byte %td", name,
                     nul - text->data);
    o->prompt = text->data;
    return rc;
}

/* Checks what was given and parses lists. */
static int complete(struct gen_options *o, const char *priority, struct biases *b,
                    struct gen_result *r, struct errmsg *em)
{
    int rc = check(o, priority, em);
    if (rc == 0) rc = check_chat(o, em);
    if (!o->chunk) o->chunk = 512;
    o->sampling.bias_ids = b->ids;
    o->sampling.bias = b->values;
    o->sampling.n_bias = (uint32_t)o->biases.n;
    for (size_t i = 0; i < o->biases.n && rc == 0; i++)
        rc = parse_bias(o->biases.items[i], &b->ids[i], &b->values[i], em);
    if (rc == 0 && sampling_check(&o->sampling, em) < 0) rc = ERR_CONF;
    if (rc == 0 && o->prompt_tokens) rc = parse_ids(o->prompt_tokens, &r->prompt, em);
    return rc;
}

/* The prompt as a message, for the model's chat template. */
static int make_conversation(struct gen_options *o, struct buf *ret, struct errmsg *em)
{
    if (!o->chat) return 0;
    const char *const said[][2] = {{"system", o->system}, {"user", o->prompt}};
    struct json *j = json_new_object(), *messages = json_new_array();
    int rc = 0;
    for (int i = 0; i < 2; i++) {
        if (!said[i][1]) continue;
        size_t n = strlen(said[i][1]);
        struct json *m = json_new_object();
        json_put_string(m, "role", said[i][0], strlen(said[i][0]));
        json_put_string(m, "content", said[i][1], n);
        if (json_kind(json_get(m, "content")) != JSON_KIND_STRING)
            rc = err_set(em, ERR_CONF, "the %s's message is not UTF-8", said[i][0]);
        json_add(messages, m);
    }
    json_put(j, "messages", messages);
    json_write(j, ret);
    json_free(j);
    o->conversation = ret->data;
    return rc;
}

static int run_generate(struct gen_options *o, const char *priority, bool json)
{
    struct biases biases;
    struct errmsg em = {0};
    struct gen_result r = {0};
    struct buf text = {.max = LIMIT_PROMPT_BYTES}, conversation = {0}, format = {0};
    int rc = complete(o, priority, &biases, &r, &em);
    if (rc == 0) rc = read_prompt(o, &text, &em);
    if (rc == 0) rc = make_conversation(o, &conversation, &em);
    if (rc == 0) rc = read_format(o, &format, &em);
    if (rc == 0)
        rc = (o->model ? gen_local : gen_cluster)(o, json ? NULL : print_text, NULL, &r, &em);
    if (rc == 0) (json ? print_json : print_summary)(&r);
    gen_result_close(&r);
    buf_close(&text);
    buf_close(&conversation);
    buf_close(&format);
    return rc < 0 ? cmd_fail("generate", rc, &em) : CMD_OK;
}

/* Options that go with --cluster alone. */
#define CLUSTER_OPTIONS(o, priority)                                                               \
    {"--deadline",                                                                                 \
     0,                                                                                            \
     OPT_U32,                                                                                      \
     &(o)->deadline_s,                                                                             \
     1,                                                                                            \
     86400,                                                                                        \
     NULL,                                                                                         \
     "S  end the request after S seconds (600, --cluster)"},                                       \
        {"--priority",                                                                             \
         0,                                                                                        \
         OPT_STRING,                                                                               \
         priority,                                                                                 \
         0,                                                                                        \
         0,                                                                                        \
         NULL,                                                                                     \
         "NAME  critical, high, normal or low (normal, --cluster)"},                               \
        {"--samples", 0,                                                                           \
         OPT_U32,     &(o)->samples,                                                               \
         1,           LIMIT_SAMPLES,                                                               \
         NULL,        "N  answers to the one prompt; the others are in --json (1, --cluster)"},    \
        {"--draft",  0,                                                                            \
         OPT_STRING, &(o)->draft,                                                                  \
         0,          0,                                                                            \
         NULL,       "KIND  guess tokens ahead: off, ngram, model, recorded or auto (--cluster)"}, \
    {                                                                                              \
        "--draft-len", 0, OPT_U32, &(o)->draft_length, 1, LIMIT_DRAFT, NULL,                       \
            "K  so many at once; as the cluster does if not given (--cluster)"                     \
    }

/* The form of the answer. */
#define OPT_FORMS(o)                                                                               \
    {"--json-schema",                                                                              \
     0,                                                                                            \
     OPT_STRING,                                                                                   \
     &(o)->schema,                                                                                 \
     0,                                                                                            \
     0,                                                                                            \
     NULL,                                                                                         \
     "FILE  the answer is JSON that is valid by the schema in FILE"},                              \
    {                                                                                              \
        "--grammar", 0, OPT_STRING, &(o)->grammar, 0, 0, NULL,                                     \
            "FILE  the answer is of the grammar in FILE, in GBNF"                                  \
    }

static const char usage[] =
    "flotilla generate (--model FILE | --cluster ADDR) (--prompt TEXT | --file FILE) "
    "[options]";
static const char examples[] =
    "  flotilla generate --model smol.gguf --prompt 'Once upon a time' --tokens 64\n"
    "  flotilla generate --cluster tcp://127.0.0.1:7070 --prompt Hi --temp 0.8 --seed 7\n"
    "  flotilla generate --model smol.gguf --chat --system 'Be brief.' --file - < question.txt\n";

int cmd_generate(int argc, char **argv)
{
    struct gen_options o = {.tokens = 128, .sampling = SAMPLING_PLAIN};
    struct sampling *s = &o.sampling;
    const char *priority = NULL;
    bool json = false;
    const struct opt table[] = {
        {"--model", 'm', OPT_STRING, &o.model, 0, 0, NULL,
         "FILE  a GGUF file: the engine alone, in this process"},
        {"--cluster", 0, OPT_STRING, &o.cluster, 0, 0, NULL,
         "ADDR  a running cluster, e.g. tcp://127.0.0.1:7070"},
        CMD_OPT_KEYS(&o.keys),
        {"--prompt", 'p', OPT_STRING, &o.prompt, 0, 0, NULL,
         "TEXT  what to continue; control tokens in it are text; - reads it from stdin"},
        {"--file", 'f', OPT_STRING, &o.file, 0, 0, NULL, "FILE  holds the prompt; - is stdin"},
        {"--prompt-tokens", 0, OPT_STRING, &o.prompt_tokens, 0, 0, NULL,
         "IDS  the prompt as token ids, 1,2,3; nothing is added to it"},
        {"--chat", 0, OPT_FLAG, &o.chat, 0, 0, NULL,
         "the prompt is a user's message, for the model's chat template"},
        {"--system", 0, OPT_STRING, &o.system, 0, 0, NULL,
         "TEXT  what the system says before it (--chat)"},
        {"--special", 0, OPT_FLAG, &o.special, 0, 0, NULL,
         "names of control tokens in the prompt are those tokens"},
        {"--tokens", 'n', OPT_U32, &o.tokens, 0, LIMIT_MAX_TOKENS, NULL,
         "N  most tokens to generate (128)"},
        {"--temp", 0, OPT_F32, &s->temp, 0, 1e6, NULL, "T  temperature (0: the likeliest token)"},
        {"--top-k", 0, OPT_U32, &s->top_k, 0, UINT32_MAX, NULL,
         "K  choose among the K likeliest (0: all)"},
        {"--top-p", 0, OPT_F32, &s->top_p, 0, 1, NULL,
         "P  choose among the likeliest tokens that have probability P together (1)"},
        {"--min-p", 0, OPT_F32, &s->min_p, 0, 1, NULL,
         "P  drop tokens less probable than P x the likeliest (0)"},
        {"--repetition-penalty", 0, OPT_F32, &s->repetition, SAMPLING_REPETITION_MIN,
         SAMPLING_REPETITION_MAX, NULL,
         "R  divide logits of tokens of prompt and answer by R; multiply negative ones (1)"},
        {"--presence-penalty", 0, OPT_F32, &s->presence, -SAMPLING_PENALTY_MAX,
         SAMPLING_PENALTY_MAX, NULL, "P  subtract P from the logits of tokens of the answer (0)"},
        {"--frequency-penalty", 0, OPT_F32, &s->frequency, -SAMPLING_PENALTY_MAX,
         SAMPLING_PENALTY_MAX, NULL,
         "P  subtract P for each time that a token is in the answer (0)"},
        {"--logit-bias", 0, OPT_LIST, &o.biases, 0, 0, NULL,
         "ID=B  add B, -100 to 100, to a token's logit; may be repeated"},
        {"--logprobs", 0, OPT_U32, &s->top_logprobs, 0, SAMPLING_TOP_MAX, &s->logprobs,
         "N  log-probabilities of tokens and of N alternatives (with --json)"},
        {"--seed", 0, OPT_U64, &s->seed, 0, 0, &o.seed_given,
         "S  same seed, same answer; up to 2^64-1"},
        {"--stop", 0, OPT_LIST, &o.stops, 0, 0, NULL,
         "TEXT  end before this text; may be repeated"},
        OPT_FORMS(&o),
        {"--ignore-eos", 0, OPT_FLAG, &o.ignore_eos, 0, 0, NULL,
         "go on after an end-of-generation token"},
        {"--ctx", 0, OPT_U32, &o.ctx, 1, 1 << 30, NULL,
         "N  context limit; the model's if not given (--model)"},
        {"--chunk", 0, OPT_U32, &o.chunk, 1, 4096, NULL, "N  prompt tokens at once (512, --model)"},
        {"--threads", 't', OPT_U32, &o.threads, 1, POOL_THREADS_MAX, NULL,
         "N  threads; all cores if not given (--model)"},
        {"--isa", 0, OPT_STRING, &o.isa, 0, 0, NULL,
         "NAME  force scalar, avx2 or avx512; the best if not given (--model)"},
        {"--kv", 0, OPT_STRING, &o.kv, 0, 0, NULL,
         "TYPE  keys and values: f32, f16, q8_0, q4_0 (f16, --model)"},
        {"--pre", 0, OPT_STRING, &o.pre, 0, 0, NULL,
         "NAME  pre-tokeniser in place of the file's (--model)"},
        CLUSTER_OPTIONS(&o, &priority),
        {"--sample", 0, OPT_U32, &o.sample, 0, LIMIT_SAMPLES - 1, NULL,
         "I  compute answer I of the several that --samples gives (0, --model)"},
        CMD_OPT_JSON(&json),
        {0},
    };
    size_t n_rest;
    int status;
    if (!cmd_options(usage, examples, table, argc, argv, NULL, 0, &n_rest, &status)) return status;
    return run_generate(&o, priority, json);
}
