#include "coordinator/gateway/ask.h"

#include "common/base/mem.h"
#include "proto/limits.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(((struct ask *)0)->user) == LIMIT_USER_BYTES, "what the wire takes");

/* A parameter, and what it may be. `take` is for those that are no plain number or flag. */
enum form { REAL, COUNT, FLAG, OTHER };

struct param {
    const char *name;
    unsigned kinds; /* of requests that have it */
    enum form form;
    size_t at; /* in struct ask: a float, uint32_t or bool */
    double low, high;
    int (*take)(struct ask *a, const char *name, const struct json *v, struct fault *f);
};

#define BOTH (ASK_COMPLETION | ASK_CHAT)
#define ALL (BOTH | ASK_EMBEDDING)
#define AT(field) offsetof(struct ask, field)

static int wrong(struct fault *f, const char *name, const char *what)
{
    return fault_set(f, 400, name, "'%s' must be %s", name, what);
}

static int no_memory(struct fault *f)
{
    f->retry_s = 1;
    return fault_set(f, 503, NULL, "no memory for this request");
}

static int unsupported(struct fault *f, const char *name, const char *what)
{
    return fault_set(f, 400, name, "'%s': %s is not supported", name, what);
}

/* ---- values ---- */

static int take_real(struct ask *a, const struct param *p, const struct json *v, struct fault *f)
{
    double x;
    if (!json_as_real(v, &x)) return wrong(f, p->name, "a number");
    if (!(x >= p->low && x <= p->high)) /* NaN too */
        return fault_set(f, 400, p->name, "'%s' must be a number from %g to %g", p->name, p->low,
                         p->high);
    *(float *)(void *)((char *)a + p->at) = (float)x;
    return 0;
}

static int take_count(struct ask *a, const struct param *p, const struct json *v, struct fault *f)
{
    int64_t x;
    if (!json_as_int(v, &x) || (double)x < p->low || (double)x > p->high)
        return fault_set(f, 400, p->name, "'%s' must be a whole number from %g to %g", p->name,
                         p->low, p->high);
    *(uint32_t *)(void *)((char *)a + p->at) = (uint32_t)x;
    return 0;
}

static int take_flag(struct ask *a, const struct param *p, const struct json *v, struct fault *f)
{
    return json_as_bool(v, (bool *)((char *)a + p->at)) ? 0 : wrong(f, p->name, "true or false");
}

static int take_model(struct ask *a, const char *name, const struct json *v, struct fault *f)
{
    size_t n;
    return json_as_string(v, &a->request.model, &n) ? 0 : wrong(f, name, "a string");
}

/* -1: as many as the context holds, as other servers have it; so does any large number. */
static int take_max(struct ask *a, const char *name, const struct json *v, struct fault *f)
{
    int64_t x;
    if (!json_as_int(v, &x) || x < -1) return wrong(f, name, "a whole number of at least 0, or -1");
    bool newer = strcmp(name, "max_completion_tokens") == 0; /* it stands where both are given */
    if (a->newer_max && !newer) return 0;
    a->newer_max = newer;
    a->request.max_tokens = x < 0 || x > LIMIT_MAX_TOKENS ? LIMIT_MAX_TOKENS : (uint32_t)x;
    return 0;
}

static int take_top_k(struct ask *a, const char *name, const struct json *v, struct fault *f)
{
    int64_t x;
    if (!json_as_int(v, &x) || x < -1)
        return wrong(f, name, "a whole number of at least 0, or -1 for all");
    a->request.sampling.top_k = x < 0 ? 0 : x > UINT32_MAX ? UINT32_MAX : (uint32_t)x;
    return 0;
}

static int take_seed(struct ask *a, const char *name, const struct json *v, struct fault *f)
{
    int64_t x;
    if (!json_as_int(v, &x)) return wrong(f, name, "a whole number of 64 bits");
    a->request.has_seed = true;
    a->request.sampling.seed = (uint64_t)x;
    return 0;
}

static int take_user(struct ask *a, const char *name, const struct json *v, struct fault *f)
{
    const char *text;
    size_t n;
    if (!json_as_string(v, &text, &n)) return wrong(f, name, "a string");
    if (n >= sizeof a->user)
        return fault_set(f, 400, name, "'%s' has %zu bytes, the limit is %zu", name, n,
                         sizeof a->user - 1);
    memcpy(a->user, text, n + 1);
    return 0;
}

/* What takes the place of `user`, which counts where both are given. */
static int take_safety(struct ask *a, const char *name, const struct json *v, struct fault *f)
{
    return json_kind(json_get(a->doc, "user")) == JSON_KIND_STRING ? 0 : take_user(a, name, v, f);
}

/* A hint where equal prompts may be cached; here they are found without it. */
static int take_cache_key(struct ask *a, const char *name, const struct json *v, struct fault *f)
{
    const char *text;
    size_t n;
    (void)a;
    return json_as_string(v, &text, &n) ? 0 : wrong(f, name, "a string");
}

/* Of what is stored, for whoever looks it up: nothing is. */
static int take_metadata(struct ask *a, const char *name, const struct json *v, struct fault *f)
{
    const char *key;
    size_t n;
    const struct json *x;
    (void)a;
    bool right = json_kind(v) == JSON_KIND_OBJECT && json_n_members(v) <= ASK_METADATA_MAX;
    for (void *at = NULL; right && json_next(v, &at, &key, &n, &x);)
        right = json_kind(x) == JSON_KIND_STRING;
    if (right) return 0;
    return fault_set(f, 400, name, "'%s' must be an object of at most %u strings", name,
                     ASK_METADATA_MAX);
}

static int take_priority(struct ask *a, const char *name, const struct json *v, struct fault *f)
{
    static const char *const names[] = {"critical", "high", "normal", "low"};
    const char *text;
    int64_t x;
    size_t n;
    bool found = json_as_int(v, &x) && x >= PRIORITY_CRITICAL && x <= PRIORITY_LOW;
    if (!found && json_as_string(v, &text, &n))
        for (x = 0; x <= PRIORITY_LOW && !found; x += !found) found = strcmp(text, names[x]) == 0;
    if (!found) return wrong(f, name, "critical, high, normal or low (0 to 3)");
    a->request.has_priority = true;
    a->request.priority = (enum priority)x;
    return 0;
}

static int add_stop(struct ask *a, const char *name, const struct json *v, struct fault *f)
{
    const char *text;
    size_t n;
    if (!json_as_string(v, &text, &n)) return wrong(f, name, "a string or an array of strings");
    if (n > LIMIT_STOP_BYTES)
        return fault_set(f, 400, name, "'%s': a text of %zu bytes, the limit is %u", name, n,
                         LIMIT_STOP_BYTES);
    a->stops[a->request.n_stops++] = text;
    return 0;
}

static int take_stop(struct ask *a, const char *name, const struct json *v, struct fault *f)
{
    size_t n;
    int rc = 0;
    a->request.n_stops = 0;
    if (!json_count(v, &n)) return add_stop(a, name, v, f);
    if (n > CLIENT_STOPS_MAX)
        return fault_set(f, 400, name, "'%s' has %zu texts, the limit is %u", name, n,
                         CLIENT_STOPS_MAX);
    for (size_t i = 0; i < n && rc == 0; i++) rc = add_stop(a, name, json_at(v, i), f);
    return rc;
}

static int take_bias(struct ask *a, const char *name, const struct json *v, struct fault *f)
{
    uint32_t n = 0;
    const char *key;
    size_t bytes;
    const struct json *value;
    if (json_kind(v) != JSON_KIND_OBJECT)
        return wrong(f, name, "an object of token ids and numbers");
    size_t n_members = json_n_members(v);
    if (n_members > SAMPLING_BIASES_MAX)
        return fault_set(f, 400, name, "'%s' has %zu tokens, the limit is %u", name, n_members,
                         SAMPLING_BIASES_MAX);
    a->bias_ids = mem_try_zeroed(n_members + 1, sizeof *a->bias_ids);
    a->bias = mem_try_zeroed(n_members + 1, sizeof *a->bias);
    if (!a->bias_ids || !a->bias) return no_memory(f);
    for (void *at = NULL; json_next(v, &at, &key, &bytes, &value); n++) {
        char *end;
        double x;
        errno = 0;
        long id = strtol(key, &end, 10);
        bool plain = key[0] >= '0' && key[0] <= '9' && (key[0] != '0' || !key[1]);
        if (!plain || *end || errno || id > INT32_MAX) /* each token has one name */
            return fault_set(f, 400, name, "'%s': '%.40s' is no token id", name, key);
        if (!json_as_real(value, &x) || !(fabs(x) <= (double)SAMPLING_BIAS_MAX))
            return fault_set(f, 400, name, "'%s': token %ld: not a number from -%g to %g", name, id,
                             (double)SAMPLING_BIAS_MAX, (double)SAMPLING_BIAS_MAX);
        a->bias_ids[n] = (int32_t)id;
        a->bias[n] = (float)x;
    }
    a->request.sampling.n_bias = n;
    return 0;
}

/* Of a completion a number of alternatives, of a chat a flag. */
static int take_logprobs(struct ask *a, const char *name, const struct json *v, struct fault *f)
{
    int64_t x;
    if (a->kind == ASK_CHAT)
        return json_as_bool(v, &a->logprobs) ? 0 : wrong(f, name, "true or false");
    if (!json_as_int(v, &x) || x < 0 || x > SAMPLING_TOP_MAX)
        return fault_set(f, 400, name, "'%s' must be a whole number from 0 to %u", name,
                         SAMPLING_TOP_MAX);
    a->logprobs = true;
    a->request.sampling.top_logprobs = (uint32_t)x;
    return 0;
}

static int take_stream_options(struct ask *a, const char *name, const struct json *v,
                               struct fault *f)
{
    if (json_kind(v) != JSON_KIND_OBJECT) return wrong(f, name, "an object");
    const char *key;
    size_t bytes;
    const struct json *x;
    bool obscured = false;
    for (void *at = NULL; json_next(v, &at, &key, &bytes, &x);) {
        bool usage = strcmp(key, "include_usage") == 0;
        if (!usage && strcmp(key, "include_obfuscation") != 0)
            return fault_set(f, 400, name, "'%s': '%.60s' is not known", name, key);
        if (json_kind(x) != JSON_KIND_NULL &&
            !json_as_bool(x, usage ? &a->include_usage : &obscured))
            return fault_set(f, 400, name, "'%s.%s' must be true or false", name, key);
    }
    return obscured ? unsupported(f, name, "include_obfuscation") : 0;
}

/* ---- prompts ---- */

/* An array of token ids. */
static int take_tokens(struct ask_prompt *p, const char *name, const struct json *v,
                       struct fault *f)
{
    size_t n;
    uint64_t id;
    if (!json_count(v, &n) || n == 0)
        return wrong(f, name, "a string, an array of token ids, or an array of either");
    if (n > LIMIT_CONTEXT)
        return fault_set(f, 400, name, "'%s' has %zu tokens, more than any context", name, n);
    p->tokens = mem_try_zeroed(n, sizeof *p->tokens);
    if (!p->tokens) return no_memory(f);
    p->n_tokens = (uint32_t)n;
    for (size_t i = 0; i < n; i++) {
        if (!json_as_u64(json_at(v, i), &id) || id > INT32_MAX)
            return fault_set(f, 400, name, "'%s': item %zu is no token id", name, i);
        p->tokens[i] = (int32_t)id;
    }
    return 0;
}

static int take_one_prompt(struct ask *a, const char *name, const struct json *v, struct fault *f)
{
    size_t n;
    struct ask_prompt *p = &a->prompts[a->n_prompts++];
    if (!json_as_string(v, &p->text, &n)) return take_tokens(p, name, v, f);
    if (n == 0 && a->kind == ASK_EMBEDDING) return wrong(f, name, "a text that is not empty");
    if (n > LIMIT_PROMPT_BYTES)
        return fault_set(f, 400, name, "'%s' has %zu bytes, the limit is %u", name, n,
                         LIMIT_PROMPT_BYTES);
    return 0;
}

static int take_prompt(struct ask *a, const char *name, const struct json *v, struct fault *f)
{
    size_t n = 0;
    uint64_t id;
    bool many = json_count(v, &n) && n > 0 && !json_as_u64(json_at(v, 0), &id);
    unsigned most = a->kind == ASK_EMBEDDING ? ASK_INPUTS_MAX : ASK_PROMPTS_MAX;
    if (many && n > most)
        return fault_set(f, 400, name, "'%s' has %zu prompts, the limit is %u", name, n, most);
    a->prompts = mem_try_zeroed(many ? n : 1, sizeof *a->prompts);
    if (!a->prompts) return no_memory(f);
    if (!many) return take_one_prompt(a, name, v, f);
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++) rc = take_one_prompt(a, name, json_at(v, i), f);
    return rc;
}

/* ---- conversations ---- */

/* Their form is checked where they are rendered. */
static int take_messages(struct ask *a, const char *name, const struct json *v, struct fault *f)
{
    size_t n;
    if (!json_count(v, &n) || n == 0) return wrong(f, name, "an array of at least one message");
    a->messages = v;
    return 0;
}

static int take_kwargs(struct ask *a, const char *name, const struct json *v, struct fault *f)
{
    if (json_kind(v) != JSON_KIND_OBJECT) return wrong(f, name, "an object");
    a->kwargs = v;
    return 0;
}

static int take_effort(struct ask *a, const char *name, const struct json *v, struct fault *f)
{
    size_t n;
    return json_as_string(v, &a->effort, &n) ? 0 : wrong(f, name, "a string");
}

static int take_generation_prompt(struct ask *a, const char *name, const struct json *v,
                                  struct fault *f)
{
    bool on;
    if (!json_as_bool(v, &on)) return wrong(f, name, "true or false");
    a->no_generation_prompt = !on;
    return 0;
}

static int take_tools(struct ask *a, const char *name, const struct json *v, struct fault *f)
{
    size_t n, len;
    const char *text;
    if (!json_count(v, &n)) return wrong(f, name, "an array");
    if (n > ASK_TOOLS_MAX)
        return fault_set(f, 400, name, "'%s' has %zu tools, the limit is %u", name, n,
                         ASK_TOOLS_MAX);
    for (size_t i = 0; i < n; i++) {
        const struct json *tool = json_at(v, i);
        if (!json_as_string(json_get(tool, "type"), &text, &len) || strcmp(text, "function") != 0)
            return fault_set(f, 400, name, "'%s': tool %zu is not of type 'function'", name, i);
        if (!json_as_string(json_get(json_get(tool, "function"), "name"), &text, &len) || !len)
            return fault_set(f, 400, name, "'%s': tool %zu has no function with a name", name, i);
    }
    a->tools = n ? v : NULL;
    return 0;
}

static int take_tool_choice(struct ask *a, const char *name, const struct json *v, struct fault *f)
{
    static const char may[] = "auto, none, required or a function of 'tools'";
    const char *text = "";
    size_t n;
    if (json_kind(v) == JSON_KIND_OBJECT) {
        a->forces_tools = true;
        (void)json_as_string(json_get(v, "type"), &text, &n);
        bool named = json_as_string(json_get(json_get(v, "function"), "name"), &a->forced, &n);
        return strcmp(text, "function") == 0 && named ? 0 : wrong(f, name, may);
    }
    if (!json_as_string(v, &text, &n)) return wrong(f, name, may);
    a->no_tools = strcmp(text, "none") == 0;
    a->forces_tools = strcmp(text, "required") == 0;
    return a->no_tools || a->forces_tools || strcmp(text, "auto") == 0 ? 0 : wrong(f, name, may);
}

static int take_parallel(struct ask *a, const char *name, const struct json *v, struct fault *f)
{
    bool on;
    if (!json_as_bool(v, &on)) return wrong(f, name, "true or false");
    a->one_call = !on;
    return 0;
}

static int take_reasoning(struct ask *a, const char *name, const struct json *v, struct fault *f)
{
    const char *text;
    size_t n;
    if (!json_as_string(v, &text, &n)) return wrong(f, name, "auto or none");
    a->raw_reasoning = strcmp(text, "none") == 0;
    return a->raw_reasoning || strcmp(text, "auto") == 0 ? 0 : wrong(f, name, "auto or none");
}

static int take_form(struct ask *a, const char *name, const struct json *v, struct fault *f)
{
    if (a->form)
        return fault_set(f, 400, name, "'%s' and '%s' exclude each other", name, a->form_name);
    a->form = v;
    a->form_name = name;
    return 0;
}

static int take_format(struct ask *a, const char *name, const struct json *v, struct fault *f)
{
    static const char *const types[] = {"json_object", "json_schema", "grammar"};
    const char *type;
    size_t n, i = 0;
    if (!json_as_string(json_get(v, "type"), &type, &n))
        return wrong(f, name, "an object with a 'type'");
    if (strcmp(type, "text") == 0) return 0;
    while (i < 3 && strcmp(types[i], type) != 0) i++;
    if (i == 3)
        return fault_set(f, 400, name, "'%s': the type '%.40s' is not supported", name, type);
    return take_form(a, name, v, f);
}

static int take_schema(struct ask *a, const char *name, const struct json *v, struct fault *f)
{
    bool any;
    if (json_kind(v) != JSON_KIND_OBJECT && !json_as_bool(v, &any))
        return wrong(f, name, "a JSON schema");
    return take_form(a, name, v, f);
}

static int take_grammar(struct ask *a, const char *name, const struct json *v, struct fault *f)
{
    const char *text;
    size_t n;
    if (!json_as_string(v, &text, &n)) return wrong(f, name, "a text");
    return n ? take_form(a, name, v, f) : 0;
}

static int take_modalities(struct ask *a, const char *name, const struct json *v, struct fault *f)
{
    const char *text;
    size_t n, bytes;
    (void)a;
    if (!json_count(v, &n)) return wrong(f, name, "an array");
    for (size_t i = 0; i < n; i++)
        if (!json_as_string(json_at(v, i), &text, &bytes) || strcmp(text, "text") != 0)
            return unsupported(f, name, "anything but text");
    return 0;
}

static int take_encoding(struct ask *a, const char *name, const struct json *v, struct fault *f)
{
    const char *text;
    size_t n;
    if (!json_as_string(v, &text, &n)) return wrong(f, name, "float or base64");
    a->base64 = strcmp(text, "base64") == 0;
    return a->base64 || strcmp(text, "float") == 0 ? 0 : wrong(f, name, "float or base64");
}

/* ---- what is known, and not served ---- */

static int refuse_dimensions(struct ask *a, const char *name, const struct json *v, struct fault *f)
{
    (void)a;
    (void)v;
    return unsupported(f, name, "another number of dimensions than the model's width");
}

/* Only the value that changes nothing. */
static int refuse_flag(struct ask *a, const char *name, const struct json *v, struct fault *f)
{
    bool on;
    (void)a;
    if (!json_as_bool(v, &on)) return wrong(f, name, "true or false");
    return on ? unsupported(f, name, "true") : 0;
}

static int refuse_text(struct ask *a, const char *name, const struct json *v, struct fault *f)
{
    const char *text;
    size_t n;
    (void)a;
    if (!json_as_string(v, &text, &n)) return wrong(f, name, "a string");
    return n ? unsupported(f, name, "a text") : 0;
}

static int take_verbosity(struct ask *a, const char *name, const struct json *v, struct fault *f)
{
    const char *text;
    size_t n;
    (void)a;
    if (!json_as_string(v, &text, &n)) return wrong(f, name, "a string");
    return strcmp(text, "medium") == 0 ? 0 : unsupported(f, name, "anything but 'medium'");
}

static int take_tier(struct ask *a, const char *name, const struct json *v, struct fault *f)
{
    const char *text;
    size_t n;
    (void)a;
    if (!json_as_string(v, &text, &n)) return wrong(f, name, "a string");
    if (strcmp(text, "auto") == 0 || strcmp(text, "default") == 0) return 0;
    return fault_set(f, 400, name, "'%s' must be auto or default; see 'priority'", name);
}

/* ---- all of them ---- */

#define SAMPLING(field) AT(request.sampling.field)

static const struct param params[] = {
    {"model", ALL, OTHER, 0, 0, 0, take_model},
    {"prompt", ASK_COMPLETION, OTHER, 0, 0, 0, take_prompt},
    {"input", ASK_EMBEDDING, OTHER, 0, 0, 0, take_prompt},
    {"encoding_format", ASK_EMBEDDING, OTHER, 0, 0, 0, take_encoding},
    {"dimensions", ASK_EMBEDDING, OTHER, 0, 0, 0, refuse_dimensions},
    {"stream", BOTH, FLAG, AT(stream), 0, 0, NULL},
    {"stream_options", BOTH, OTHER, 0, 0, 0, take_stream_options},
    {"max_tokens", BOTH, OTHER, 0, 0, 0, take_max},
    {"max_completion_tokens", ASK_CHAT, OTHER, 0, 0, 0, take_max},
    {"temperature", BOTH, REAL, SAMPLING(temp), 0, 1e30, NULL},
    {"top_p", BOTH, REAL, SAMPLING(top_p), 0, 1, NULL},
    {"top_k", BOTH, OTHER, 0, 0, 0, take_top_k},
    {"min_p", BOTH, REAL, SAMPLING(min_p), 0, 1, NULL},
    {"repetition_penalty", BOTH, REAL, SAMPLING(repetition), (double)SAMPLING_REPETITION_MIN,
     (double)SAMPLING_REPETITION_MAX, NULL},
    {"presence_penalty", BOTH, REAL, SAMPLING(presence), -(double)SAMPLING_PENALTY_MAX,
     (double)SAMPLING_PENALTY_MAX, NULL},
    {"frequency_penalty", BOTH, REAL, SAMPLING(frequency), -(double)SAMPLING_PENALTY_MAX,
     (double)SAMPLING_PENALTY_MAX, NULL},
    {"seed", BOTH, OTHER, 0, 0, 0, take_seed},
    {"stop", BOTH, OTHER, 0, 0, 0, take_stop},
    {"logit_bias", BOTH, OTHER, 0, 0, 0, take_bias},
    {"n", BOTH, COUNT, AT(n), 1, LIMIT_SAMPLES, NULL},
    {"best_of", ASK_COMPLETION, COUNT, AT(best_of), 1, LIMIT_SAMPLES, NULL},
    {"logprobs", BOTH, OTHER, 0, 0, 0, take_logprobs},
    {"top_logprobs", ASK_CHAT, COUNT, SAMPLING(top_logprobs), 0, SAMPLING_TOP_MAX, NULL},
    {"ignore_eos", BOTH, FLAG, AT(request.ignore_eos), 0, 0, NULL},
    {"cache_prompt", BOTH, FLAG, AT(cache_prompt), 0, 0, NULL},
    {"special", ASK_COMPLETION, FLAG, AT(request.special), 0, 0, NULL},
    {"user", ALL, OTHER, 0, 0, 0, take_user},
    {"safety_identifier", ASK_CHAT, OTHER, 0, 0, 0, take_safety},
    {"prompt_cache_key", ASK_CHAT, OTHER, 0, 0, 0, take_cache_key},
    {"metadata", ASK_CHAT, OTHER, 0, 0, 0, take_metadata},
    {"verbosity", ASK_CHAT, OTHER, 0, 0, 0, take_verbosity},
    {"priority", ALL, OTHER, 0, 0, 0, take_priority},
    {"service_tier", BOTH, OTHER, 0, 0, 0, take_tier},
    {"store", ASK_CHAT, OTHER, 0, 0, 0, refuse_flag},
    {"messages", ASK_CHAT, OTHER, 0, 0, 0, take_messages},
    {"chat_template_kwargs", ASK_CHAT, OTHER, 0, 0, 0, take_kwargs},
    {"reasoning_effort", ASK_CHAT, OTHER, 0, 0, 0, take_effort},
    {"add_generation_prompt", ASK_CHAT, OTHER, 0, 0, 0, take_generation_prompt},
    {"tools", ASK_CHAT, OTHER, 0, 0, 0, take_tools},
    {"tool_choice", ASK_CHAT, OTHER, 0, 0, 0, take_tool_choice},
    {"parallel_tool_calls", ASK_CHAT, OTHER, 0, 0, 0, take_parallel},
    {"reasoning_format", ASK_CHAT, OTHER, 0, 0, 0, take_reasoning},
    {"response_format", BOTH, OTHER, 0, 0, 0, take_format},
    {"json_schema", BOTH, OTHER, 0, 0, 0, take_schema},
    {"grammar", BOTH, OTHER, 0, 0, 0, take_grammar},
    {"modalities", ASK_CHAT, OTHER, 0, 0, 0, take_modalities},
    {"echo", ASK_COMPLETION, OTHER, 0, 0, 0, refuse_flag},
    {"suffix", ASK_COMPLETION, OTHER, 0, 0, 0, refuse_text},
};

#define N_PARAMS (sizeof params / sizeof params[0])

static int take_param(struct ask *a, const char *name, const struct json *v, struct fault *f)
{
    const struct param *p = params;
    while (p < params + N_PARAMS && (!(p->kinds & a->kind) || strcmp(p->name, name) != 0)) p++;
    if (p == params + N_PARAMS) {
        (void)fault_set(f, 400, name, "'%.60s' is no parameter that is supported here", name);
        f->code = "unknown_parameter";
        return -1;
    }
    if (json_kind(v) == JSON_KIND_NULL) return 0; /* as if it were absent */
    switch (p->form) {
    case REAL: return take_real(a, p, v, f);
    case COUNT: return take_count(a, p, v, f);
    case FLAG: return take_flag(a, p, v, f);
    case OTHER: break;
    }
    return p->take(a, p->name, v, f); /* the name outlives the body */
}

static bool has_tool(const struct ask *a, const char *name)
{
    size_t n = 0, len;
    const char *text;
    (void)json_count(a->tools, &n);
    for (size_t i = 0; i < n; i++)
        if (json_as_string(json_get(json_get(json_at(a->tools, i), "function"), "name"), &text,
                           &len) &&
            strcmp(text, name) == 0)
            return true;
    return false;
}

/* What several parameters have to do with each other. */
static int check(struct ask *a, struct fault *f)
{
    if (a->kind == ASK_COMPLETION && a->n_prompts == 0)
        return fault_set(f, 400, "prompt", "'prompt' is missing");
    if (a->kind == ASK_EMBEDDING && a->n_prompts == 0)
        return fault_set(f, 400, "input", "'input' is missing");
    if (a->kind == ASK_CHAT && !a->messages)
        return fault_set(f, 400, "messages", "'messages' is missing");
    if (!a->best_of) a->best_of = a->n;
    if (a->best_of < a->n)
        return fault_set(f, 400, "best_of",
                         "'best_of' (%" PRIu32 ") must be at least 'n' (%" PRIu32 ")", a->best_of,
                         a->n);
    if (a->stream && a->best_of > a->n)
        return fault_set(f, 400, "best_of", "'best_of' above 'n' cannot be streamed");
    if (a->include_usage && !a->stream)
        return fault_set(f, 400, "stream_options", "'stream_options' is for 'stream': true");
    if (a->kind == ASK_CHAT && a->request.sampling.top_logprobs && !a->logprobs)
        return fault_set(f, 400, "top_logprobs", "'top_logprobs' needs 'logprobs': true");
    if (a->forces_tools && !a->tools)
        return fault_set(f, 400, "tool_choice", "'tool_choice': there are no 'tools'");
    if (a->forced && !has_tool(a, a->forced))
        return fault_set(f, 400, "tool_choice", "'tool_choice': there is no tool '%.64s'",
                         a->forced);
    if (a->forces_tools && a->form)
        return fault_set(f, 400, a->form_name, "'%s' and 'tool_choice' exclude each other",
                         a->form_name);
    if (a->one_call && a->tools && !a->forces_tools && !a->holds_tools)
        return fault_set(f, 400, "parallel_tool_calls",
                         "'parallel_tool_calls': false is not supported beside '%s'",
                         a->form ? a->form_name : "ignore_eos");
    if ((a->form || a->forces_tools) && a->request.ignore_eos)
        return fault_set(f, 400, "ignore_eos", "'ignore_eos': an answer with a form has an end");
    if (a->format.len > LIMIT_FORMAT_BYTES)
        return fault_set(f, 400, a->format_param, "'%s' has %zu bytes, the limit is %u",
                         a->format_param, a->format.len, LIMIT_FORMAT_BYTES);
    if (a->best_of > 1 && a->n_prompts * a->best_of > ASK_CHOICES_MAX)
        return fault_set(f, 400, a->best_of > a->n ? "best_of" : "n",
                         "%" PRIu32 " answers to each of %" PRIu32 " prompts, the limit is %u",
                         a->best_of, a->n_prompts, ASK_CHOICES_MAX);
    return 0;
}

/* As client.proto says under Chat. */
static void put_chat(struct ask *a)
{
    struct json *o = json_new_object(), *kwargs = json_new_object();
    const char *key;
    size_t n;
    const struct json *v;
    json_put(o, "messages", json_share(a->messages));
    if (a->tools) json_put(o, "tools", json_share(a->tools));
    if (a->effort) json_put_string(kwargs, "reasoning_effort", a->effort, strlen(a->effort));
    for (void *at = NULL; a->kwargs && json_next(a->kwargs, &at, &key, &n, &v);)
        json_put(kwargs, key, json_share(v));
    json_put(o, "kwargs", kwargs);
    if (a->no_generation_prompt) json_put_bool(o, "add_generation_prompt", false);
    json_write(o, &a->chat);
    json_free(o);
}

/* A chat is one prompt. */
static int make_chat(struct ask *a, struct fault *f)
{
    a->prompts = mem_try_zeroed(1, sizeof *a->prompts);
    if (!a->prompts) return no_memory(f);
    a->n_prompts = 1;
    if (a->no_tools) a->tools = NULL;
    put_chat(a);
    return 0;
}

/* As client.proto says under Formats. */
static void make_format(struct ask *a)
{
    struct json *o = json_new_object(), *inner;
    if (a->forces_tools || a->holds_tools) {
        a->format_param = a->tools ? "tools" : "tool_choice";
        json_put_string(o, "type", "tool_calls", 10);
        if (a->tools) json_put(o, "tools", json_share(a->tools));
        if (a->forced) json_put_string(o, "name", a->forced, strlen(a->forced));
        json_put_bool(o, "parallel", !a->one_call && !a->forced);
        if (a->holds_tools) json_put_bool(o, "optional", true);
        if (a->holds_tools && a->raw_reasoning) json_put_bool(o, "reasoning", false);
    } else {
        a->format_param = a->form_name;
        bool schema = strcmp(a->form_name, "json_schema") == 0;
        json_put_string(o, "type", a->form_name, strlen(a->form_name));
        if (schema) {
            inner = json_new_object();
            json_put(inner, "schema", json_share(a->form));
            json_put(o, "json_schema", inner);
        } else {
            json_put(o, a->form_name, json_share(a->form));
        }
    }
    json_write_exact(a->form && strcmp(a->form_name, "response_format") == 0 ? a->form : o,
                     &a->format);
    json_free(o);
}

/* What of the request follows from several parameters, or from none. */
static void complete(struct ask *a)
{
    struct client_request *r = &a->request;
    r->samples = a->best_of;
    r->sampling.logprobs = a->logprobs || a->best_of > a->n; /* the best are the likeliest */
    r->pieces = a->logprobs;
    r->stops = a->stops;
    r->sampling.bias_ids = a->bias_ids;
    r->sampling.bias = a->bias;
    if (a->user[0]) r->user = a->user;
    if (a->kind == ASK_CHAT) r->chat = a->chat.data;
    r->format = a->format.len ? a->format.data : NULL;
    r->embed = a->kind == ASK_EMBEDDING;
}

static int parse(const char *body, size_t bytes, struct json **ret, struct fault *f)
{
    struct errmsg em = {0};
    size_t at = 0;
    char key[64];
    if (json_read_at(body, bytes, ret, &at, &em) < 0) {
        json_key_at(body, at < bytes ? at : bytes, key, sizeof key);
        return key[0] ? fault_set(f, 400, key, "the body, at '%s': %.400s", key, em.text)
                      : fault_set(f, 400, NULL, "the body: %.400s", em.text);
    }
    if (json_kind(*ret) == JSON_KIND_OBJECT) return 0;
    json_free(*ret);
    return fault_set(f, 400, NULL, "the body is no JSON object");
}

int ask_read(enum ask_kind kind, const char *body, size_t bytes, struct ask *ret, struct fault *f)
{
    struct ask a = {.kind = kind, .n = 1, .cache_prompt = true};
    client_request_init(&a.request);
    a.request.sampling.temp = 1;
    a.request.max_tokens = kind == ASK_CHAT ? LIMIT_MAX_TOKENS : ASK_COMPLETION_TOKENS;
    a.request.special = kind == ASK_COMPLETION;
    int rc = parse(body, bytes, &a.doc, f);
    if (rc < 0) return rc;
    const char *key;
    size_t n;
    const struct json *value;
    for (void *at = NULL; rc == 0 && json_next(a.doc, &at, &key, &n, &value);)
        rc = take_param(&a, key, value, f);
    if (rc == 0 && kind == ASK_CHAT && a.messages) rc = make_chat(&a, f);
    /* An answer without an end, or with another form, is not held to its calls' as well. */
    a.holds_tools = a.tools && !a.forces_tools && !a.form && !a.request.ignore_eos;
    if (rc == 0 && (a.form || a.forces_tools || a.holds_tools)) make_format(&a);
    if (rc == 0) rc = check(&a, f);
    if (rc < 0) {
        ask_close(&a);
        return rc;
    }
    *ret = a;
    complete(ret);
    return 0;
}

static void free_body(struct ask *a)
{
    for (uint32_t i = 0; a->prompts && i < a->n_prompts; i++) mem_free(a->prompts[i].tokens);
    mem_free(a->prompts);
    mem_free(a->bias_ids);
    mem_free(a->bias);
    buf_close(&a->chat);
    buf_close(&a->format);
    json_free(a->doc);
}

/* A copy of the text that lives as long as the array. */
static const char *keep_text(struct json *array, const char *text)
{
    size_t n;
    if (!text) return NULL;
    json_add_string(array, text, strlen(text));
    (void)json_count(array, &n);
    (void)json_as_string(json_at(array, n - 1), &text, &n);
    return text;
}

void ask_drop_body(struct ask *a)
{
    struct json *kept = json_new_array();
    if (a->tools) json_add(kept, json_share(a->tools));
    const char *model = keep_text(kept, a->request.model);
    for (uint32_t i = 0; i < a->request.n_stops; i++) a->stops[i] = keep_text(kept, a->stops[i]);
    free_body(a);
    a->doc = kept;
    a->prompts = NULL;
    a->bias_ids = NULL;
    a->bias = NULL;
    a->messages = a->kwargs = a->form = NULL;
    a->effort = a->forced = NULL;
    a->request = (struct client_request){.model = model,
                                         .stops = a->request.stops,
                                         .n_stops = a->request.n_stops,
                                         .user = a->request.user};
}

void ask_close(struct ask *a)
{
    free_body(a);
    *a = (struct ask){.doc = NULL};
}
