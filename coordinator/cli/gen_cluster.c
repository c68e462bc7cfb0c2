/* A generation by a running cluster. */
#include "coordinator/cli/gen.h"

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/client/client.h"

#include <string.h>

struct remote {
    struct gen_result *ret;
    gen_text_fn on_text;
    void *arg;
    uint64_t start_ns, first_ns, last_ns;
};

static void append(struct tokens *t, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++) tokens_push(t, ids[i]);
}

static void keep_logprobs(struct gen_result *r, const struct msg_logprobs *l, uint32_t n)
{
    if (!l->chosen) return;
    (void)buf_append(&r->chosen, l->chosen, n * sizeof *l->chosen);
    r->n_top = l->n_top;
    for (size_t i = 0; i < (size_t)n * l->n_top; i++) {
        struct sample_candidate c = {l->top[i], l->top_ids[i]};
        (void)buf_append(&r->top, &c, sizeof c);
    }
}

static bool on_reply(void *arg, const struct msg_generate_reply *reply)
{
    struct remote *r = arg;
    size_t len = strlen(reply->text);
    if (reply->sample) { /* of another answer, which is shown at the end only */
        if (reply->sample > r->ret->n_more) return true;
        struct gen_result *x = &r->ret->more[reply->sample - 1];
        append(&x->tokens, reply->tokens, reply->n_tokens);
        (void)buf_append(&x->text, reply->text, len);
        if (reply->finish_reason) x->finish_reason = reply->finish_reason;
        return true;
    }
    if (reply->has_usage) {
        r->ret->prompt.n = 0;
        append(&r->ret->prompt, reply->prompt_tokens, reply->n_prompt_tokens);
        r->ret->seed = reply->seed;
    }
    if (reply->n_tokens) {
        r->last_ns = clock_ns();
        if (!r->first_ns) r->first_ns = r->last_ns;
        append(&r->ret->tokens, reply->tokens, reply->n_tokens);
        keep_logprobs(r->ret, &reply->logprobs, reply->n_tokens);
    }
    if (len) {
        (void)buf_append(&r->ret->text, reply->text, len);
        if (r->on_text) r->on_text(r->arg, reply->text, len);
    }
    if (reply->finish_reason) r->ret->finish_reason = reply->finish_reason;
    return true;
}

static const char *status_name(enum status s)
{
    switch (s) {
    case STATUS_OK: return "OK";
    case STATUS_CANCELLED: return "CANCELLED";
    case STATUS_INVALID_ARGUMENT: return "INVALID_ARGUMENT";
    case STATUS_DEADLINE_EXCEEDED: return "DEADLINE_EXCEEDED";
    case STATUS_NOT_FOUND: return "NOT_FOUND";
    case STATUS_RESOURCE_EXHAUSTED: return "RESOURCE_EXHAUSTED";
    case STATUS_FAILED_PRECONDITION: return "FAILED_PRECONDITION";
    case STATUS_UNIMPLEMENTED: return "UNIMPLEMENTED";
    case STATUS_INTERNAL: return "INTERNAL";
    case STATUS_UNAVAILABLE: return "UNAVAILABLE";
    }
    return "status unknown";
}

int gen_cluster(const struct gen_options *o, gen_text_fn on_text, void *arg, struct gen_result *ret,
                struct errmsg *em)
{
    struct client *c;
    int rc = client_open(o->cluster, &c, em);
    if (rc < 0) return rc;
    struct remote r = {.ret = ret, .on_text = on_text, .arg = arg, .start_ns = clock_ns()};
    struct msg_generate m = {.prompt = o->prompt,
                             .prompt_tokens = ret->prompt.ids,
                             .n_prompt_tokens = (uint32_t)ret->prompt.n,
                             .special = o->special,
                             .ignore_eos = o->ignore_eos,
                             .has_seed = o->seed_given,
                             .max_tokens = o->tokens,
                             .sampling = o->sampling,
                             .n_stops = (uint32_t)o->stops.n};
    memcpy(m.stops, o->stops.items, o->stops.n * sizeof m.stops[0]);
    if (o->priority) {
        m.has_priority = true;
        m.priority = (enum priority)(o->priority - 1);
    }
    if (o->samples > 1) {
        m.samples = o->samples;
        ret->n_more = o->samples - 1;
        ret->more = mem_zalloc(ret->n_more * sizeof *ret->more);
    }
    struct client_end end;
    rc = client_generate(c, &m, (uint64_t)o->deadline_s * 1000, on_reply, &r, &end, em);
    client_close(c);
    if (rc < 0) return rc;
    if (end.status != STATUS_OK)
        return err_set(em, ERR_CLOSED, "%s: %s", status_name(end.status), end.text);
    if (r.first_ns) gen_result_times(ret, r.start_ns, r.first_ns, r.last_ns);
    if (!ret->finish_reason) ret->finish_reason = FINISH_LENGTH;
    return 0;
}
