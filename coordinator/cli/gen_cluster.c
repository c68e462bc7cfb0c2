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

static void keep_logprobs(struct gen_result *r, const struct client_reply *reply)
{
    if (!reply->logprobs) return;
    (void)buf_append(&r->chosen, reply->logprobs, reply->n_tokens * sizeof *reply->logprobs);
    r->n_top = reply->n_top;
    for (size_t i = 0; i < (size_t)reply->n_tokens * reply->n_top; i++) {
        struct sample_candidate c = {reply->top_logprobs[i], reply->top_ids[i]};
        (void)buf_append(&r->top, &c, sizeof c);
    }
}

static void on_reply(void *arg, struct client_call *call, const struct client_reply *reply)
{
    struct remote *r = arg;
    size_t len = strlen(reply->text);
    (void)call;
    if (reply->sample) { /* of another answer, which is shown at the end only */
        if (reply->sample > r->ret->n_more) return;
        struct gen_result *x = &r->ret->more[reply->sample - 1];
        append(&x->tokens, reply->tokens, reply->n_tokens);
        (void)buf_append(&x->text, reply->text, len);
        if (reply->finish_reason) x->finish_reason = reply->finish_reason;
        return;
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
        keep_logprobs(r->ret, reply);
    }
    if (len) {
        (void)buf_append(&r->ret->text, reply->text, len);
        if (r->on_text) r->on_text(r->arg, reply->text, len);
    }
    if (reply->finish_reason) r->ret->finish_reason = reply->finish_reason;
    if (reply->has_drafts) {
        r->ret->has_drafts = true;
        r->ret->draft_runs = reply->draft_runs;
        r->ret->drafted = reply->drafted;
        r->ret->accepted = reply->accepted;
    }
}

int gen_cluster(const struct gen_options *o, gen_text_fn on_text, void *arg, struct gen_result *ret,
                struct errmsg *em)
{
    struct client *c;
    int rc = client_open_keys(o->cluster, &o->keys, &c, em);
    if (rc < 0) return rc;
    struct remote r = {.ret = ret, .on_text = on_text, .arg = arg, .start_ns = clock_ns()};
    struct client_request q = {.prompt = o->conversation ? NULL : o->prompt,
                               .chat = o->conversation,
                               .prompt_tokens = ret->prompt.ids,
                               .n_prompt_tokens = (uint32_t)ret->prompt.n,
                               .format = o->format,
                               .special = o->special,
                               .ignore_eos = o->ignore_eos,
                               .has_seed = o->seed_given,
                               .max_tokens = o->tokens,
                               .sampling = o->sampling,
                               .stops = o->stops.items,
                               .n_stops = (uint32_t)o->stops.n,
                               .deadline_ms = (uint64_t)o->deadline_s * 1000,
                               .draft = o->draft,
                               .draft_length = o->draft_length};
    if (o->priority) {
        q.has_priority = true;
        q.priority = (enum priority)(o->priority - 1);
    }
    if (o->samples > 1) {
        q.samples = o->samples;
        ret->n_more = o->samples - 1;
        ret->more = mem_zalloc(ret->n_more * sizeof *ret->more);
    }
    struct client_end end;
    rc = client_generate(c, &q, on_reply, &r, &end, em);
    client_close(c);
    if (rc < 0) return rc;
    if (end.status != STATUS_OK)
        return err_set(em, ERR_CLOSED, "%s: %s", client_status_name(end.status), end.text);
    if (r.first_ns) gen_result_times(ret, r.start_ns, r.first_ns, r.last_ns);
    if (!ret->finish_reason) ret->finish_reason = FINISH_LENGTH;
    return 0;
}
