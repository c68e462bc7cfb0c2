/* A request for completions: the calls that it makes, one for each prompt, and its reply.
 *
 *   whole body -> calls run -> reply begins -> reply whole, or the peer is gone -> calls ended ->
 * freed
 *
 * A stream's reply begins with its first token or end, so that whatever goes wrong before has a
 * status of its own. What the calls bring waits in the choices, as plain text, until the peer takes
 * more; it then goes out merged. */
#include "coordinator/gateway/gateway_state.h"

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "coordinator/gateway/choice.h"
#include "coordinator/gateway/message.h"
#include "coordinator/gateway/response.h"
#include "coordinator/gateway/sse.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* What may wait for a reader; and log-probabilities of a reply that is told as a whole, which as a
 * document take many times as much. */
#define PENDING_BYTES ((size_t)4 << 20)
#define BEAT_NS (15 * NS_PER_S)

/* One call. */
struct part {
    struct job *job;
    struct client_call *call; /* NULL: it has ended, or did not begin */
    uint32_t first;           /* of the job's choices; it has as many as it computes answers */
    uint32_t n_prompt, cached;
    bool failed;
};

struct job {
    struct exchange e;
    struct job *next, **at;
    struct ask ask;
    char id[40];
    char alone[64]; /* a tenant of its own, for a request that is to share nothing */
    uint64_t begun_ns, created_s;
    uint64_t told_ns;   /* when the stream last said something */
    struct part *parts; /* ask.n_prompts */
    uint32_t n_live;    /* of them */
    uint32_t n_choices;
    struct choice *choices;
    enum job_form form;
    struct message_stream message;   /* of JOB_MESSAGES */
    struct response_stream response; /* of JOB_RESPONSES, */
    struct json *echo;               /* and what a response repeats of its request */
    bool replied;                    /* the reply has begun */
    bool beat;                       /* a comment is due */
    bool told_end;                   /* the last bytes of the stream are in `out` */
    struct fault fault;              /* http is 0 as long as all is well */
    struct buf out;                  /* of a stream: bytes on their way to the peer, */
    size_t n_taken;                  /* and how many of them it has taken */
};

static void free_job(struct job *j)
{
    if (j->e.http || j->n_live) return;
    for (uint32_t i = 0; i < j->n_choices; i++) choice_close(&j->choices[i]);
    mem_free(j->choices);
    mem_free(j->parts);
    response_close(&j->response);
    json_free(j->echo);
    buf_close(&j->out);
    ask_close(&j->ask);
    *j->at = j->next;
    if (j->next) j->next->at = j->at;
    j->e.g->n_jobs--;
    mem_free(j);
}

static void cancel_all(struct job *j)
{
    for (uint32_t i = 0; i < j->ask.n_prompts; i++)
        if (j->parts[i].call) client_cancel(j->parts[i].call);
}

static void on_http_end(struct exchange *e, bool gone)
{
    struct job *j = (struct job *)e;
    j->e.http = NULL;
    e->g->count.gone += gone;
    cancel_all(j);
    free_job(j);
}

/* ---- the reply ---- */

static struct message_usage counts_of(const struct job *j)
{
    struct message_usage u = {0};
    for (uint32_t i = 0; i < j->ask.n_prompts; i++) {
        u.prompt += j->parts[i].n_prompt;
        u.cached += j->parts[i].cached;
    }
    for (uint32_t i = 0; i < j->n_choices; i++) u.answer += j->choices[i].n_tokens;
    return u;
}

static const char *model_of(const struct job *j)
{
    return j->ask.request.model ? j->ask.request.model : j->e.g->model;
}

static struct message_head message_head_of(const struct job *j)
{
    const struct choice *c = &j->choices[0];
    bool stopped = c->has_stop && c->stop < j->ask.request.n_stops;
    return (struct message_head){.id = j->id,
                                 .model = model_of(j),
                                 .stop = stopped ? j->ask.stops[c->stop] : NULL,
                                 .usage = counts_of(j)};
}

static struct response_head response_head_of(const struct job *j)
{
    struct message_usage n = counts_of(j);
    return (struct response_head){.id = j->id,
                                  .model = model_of(j),
                                  .created_s = j->created_s,
                                  .echo = j->echo,
                                  .n_prompt = n.prompt,
                                  .n_cached = n.cached,
                                  .n_answer = n.answer,
                                  .n_reasoning = j->choices[0].n_reasoning};
}

static struct json *usage_of(const struct job *j)
{
    struct message_usage n = counts_of(j);
    struct json *u = json_new_object(), *details = json_new_object();
    json_put_u64(u, "prompt_tokens", n.prompt);
    json_put_u64(u, "completion_tokens", n.answer);
    json_put_u64(u, "total_tokens", n.prompt + n.answer);
    json_put_u64(details, "cached_tokens", n.cached);
    json_put(u, "prompt_tokens_details", details);
    if (j->ask.kind != ASK_CHAT) return u;
    uint64_t reasoning = 0;
    for (uint32_t i = 0; i < j->n_choices; i++) reasoning += j->choices[i].n_reasoning;
    details = json_new_object();
    json_put_u64(details, "reasoning_tokens", reasoning);
    json_put(u, "completion_tokens_details", details);
    return u;
}

/* What a whole reply and a chunk begin with. */
static struct json *head_of(const struct job *j, bool chunk)
{
    const char *model = model_of(j);
    const char *object = j->ask.kind == ASK_COMPLETION ? "text_completion"
                         : chunk                       ? "chat.completion.chunk"
                                                       : "chat.completion";
    struct json *o = json_new_object();
    json_put_string(o, "id", j->id, strlen(j->id));
    json_put_string(o, "object", object, strlen(object));
    json_put_u64(o, "created", j->created_s);
    json_put_string(o, "model", model, model ? strlen(model) : 0);
    return o;
}

static int by_likelihood(const void *a, const void *b)
{
    const struct choice *const *x = a, *const *y = b;
    double p = (*x)->sum / ((*x)->n_tokens + 1), q = (*y)->sum / ((*y)->n_tokens + 1);
    return p > q ? -1 : p < q ? 1 : *x < *y ? -1 : 1;
}

static struct json *completions_whole(struct job *j)
{
    uint32_t n = j->ask.n, best_of = j->ask.best_of;
    struct json *o = head_of(j, false), *choices = json_new_array();
    for (uint32_t p = 0; p < j->ask.n_prompts; p++) {
        struct choice *order[ASK_CHOICES_MAX];
        for (uint32_t i = 0; i < best_of; i++) order[i] = &j->choices[j->parts[p].first + i];
        if (best_of > n) qsort(order, best_of, sizeof(struct choice *), by_likelihood);
        for (uint32_t i = 0; i < n; i++)
            json_add(choices, choice_whole(order[i], j->ask.kind, p * n + i, j->ask.logprobs));
    }
    json_put(o, "choices", choices);
    json_put(o, "usage", usage_of(j));
    return o;
}

static void reply_whole(struct job *j)
{
    struct choice *c = &j->choices[0];
    const struct message_head m = message_head_of(j);
    const struct response_head r = response_head_of(j);
    struct json *o = j->form == JOB_MESSAGES    ? message_whole(&m, c)
                     : j->form == JOB_RESPONSES ? response_whole(&r, c)
                                                : completions_whole(j);
    j->replied = true;
    gateway__reply(j->e.g, j->e.http, 200, o);
}

static void put_chunk(struct job *j, struct json *choice, struct json *usage)
{
    struct json *o = head_of(j, true), *choices = json_new_array();
    if (choice) json_add(choices, choice);
    json_put(o, "choices", choices);
    if (usage)
        json_put(o, "usage", usage);
    else if (j->ask.include_usage)
        json_put_null(o, "usage");
    sse_event(&j->out, NULL, o);
}

static void put_error(struct job *j)
{
    struct buf text = {0};
    struct json *o = NULL;
    (j->form == JOB_MESSAGES ? message_fault : fault_write)(&j->fault, &text);
    if (json_read(text.data, text.len, &o, NULL) == 0) sse_event(&j->out, "error", o);
    buf_close(&text);
}

static void fill_message(struct job *j)
{
    const struct message_head h = message_head_of(j);
    bool ends = !j->n_live && !j->told_end;
    message_events(&j->message, &h, &j->choices[0], ends && !j->fault.http, &j->out);
    if (ends && j->fault.http) put_error(j);
    j->told_end |= ends;
}

static void fill_response(struct job *j)
{
    const struct response_head h = response_head_of(j);
    bool ends = !j->n_live && !j->told_end;
    response_events(&j->response, &h, &j->choices[0], ends, j->fault.http ? &j->fault : NULL,
                    &j->out);
    j->told_end |= ends;
}

static void fill_completions(struct job *j)
{
    for (uint32_t i = 0; i < j->n_choices; i++)
        while (choice_has_news(&j->choices[i], j->ask.kind))
            put_chunk(j, choice_chunk(&j->choices[i], j->ask.kind, i, j->ask.logprobs), NULL);
    if (j->n_live || j->told_end) return;
    j->told_end = true;
    if (j->fault.http) {
        put_error(j);
        return;
    }
    if (j->ask.include_usage) put_chunk(j, NULL, usage_of(j));
    sse_done(&j->out);
}

/* Makes the next events of all that is new. */
static void fill(struct job *j)
{
    switch (j->form) {
    case JOB_COMPLETIONS: fill_completions(j); break;
    case JOB_MESSAGES: fill_message(j); break;
    case JOB_RESPONSES: fill_response(j); break;
    }
    if (j->beat && !j->out.len) sse_comment(&j->out);
    j->beat = false;
}

static long pull(void *context, char *to, size_t room)
{
    struct job *j = context;
    if (!j->out.len) fill(j);
    size_t n = buf_take(&j->out, &j->n_taken, to, room);
    if (n == 0) return j->told_end ? HTTPD_DONE : HTTPD_WAIT;
    j->told_ns = clock_ns();
    return (long)n;
}

static void begin_stream(struct job *j)
{
    static const struct httpd_field fields[] = {{"Content-Type", "text/event-stream"},
                                                {"Cache-Control", "no-cache"},
                                                {"X-Accel-Buffering", "no"}};
    j->replied = true;
    j->told_ns = clock_ns();
    j->e.g->count.replies[200]++;
    httpd_stream(j->e.http, 200, fields, sizeof fields / sizeof fields[0], pull);
}

/* What there is to tell goes on its way. */
static void tell(struct job *j)
{
    if (!j->e.http) return;
    bool begun = false;
    for (uint32_t i = 0; i < j->n_choices; i++) begun |= j->choices[i].begun;
    if (j->fault.http && !j->replied) {
        j->replied = true;
        gateway__refuse(j->e.g, j->e.http, &j->fault);
    } else if (j->ask.stream && j->replied) {
        httpd_wake(j->e.http);
    } else if (j->ask.stream && begun) {
        begin_stream(j);
    } else if (!j->n_live && !j->replied) {
        reply_whole(j);
    }
}

/* ---- the calls ---- */

static void check_pending(struct job *j)
{
    size_t bytes = j->out.len - j->n_taken, logprobs = 0;
    for (uint32_t i = 0; i < j->n_choices; i++) {
        bytes += choice_bytes(&j->choices[i]);
        logprobs += choice_logprob_bytes(&j->choices[i]);
    }
    if (j->fault.http || (j->ask.stream ? bytes : logprobs) <= PENDING_BYTES) return;
    if (!j->ask.stream) {
        (void)fault_set(&j->fault, 400, "logprobs",
                        "the log-probabilities of the whole answer take more than %zu bytes, the "
                        "limit: ask for fewer, or for a stream",
                        PENDING_BYTES);
        cancel_all(j);
        return;
    }
    j->e.g->count.slow++;
    (void)fault_set(&j->fault, 503, NULL, "%zu bytes wait to be read, the limit is %zu", bytes,
                    PENDING_BYTES);
    cancel_all(j);
}

static void on_reply(void *arg, struct client_call *call, const struct client_reply *reply)
{
    struct part *p = arg;
    struct job *j = p->job;
    (void)call;
    if (reply->sample >= j->ask.best_of) return;
    struct choice *c = &j->choices[p->first + reply->sample];
    if (reply->has_usage) {
        p->n_prompt = reply->n_prompt_tokens;
        for (uint32_t i = 0; i < j->ask.best_of && reply->open_thought; i++)
            choice_open_thought(&j->choices[p->first + i]);
    }
    if (!reply->n_tokens && !reply->text[0] && !reply->finish_reason) return; /* it lives */
    if (reply->n_tokens && reply->sample == 0 && reply->first_index == 0) p->cached = reply->cached;
    if (reply->n_tokens && !c->begun) stats_record(&j->e.g->count.first, clock_ns() - j->begun_ns);
    j->e.g->count.tokens += reply->n_tokens;
    choice_take(c, reply, j->ask.logprobs);
    check_pending(j);
    tell(j);
}

static void on_end(void *arg, struct client_call *call, const struct client_end *end)
{
    struct part *p = arg;
    struct job *j = p->job;
    (void)call;
    p->call = NULL;
    j->n_live--;
    bool well = !end->lost && end->status == STATUS_OK;
    if (!well && !j->fault.http) {
        fault_of_end(&j->fault, end);
        if (j->ask.format_param) fault_rename(&j->fault, "format_json", j->ask.format_param);
        if (j->form == JOB_RESPONSES) response_rename(&j->fault);
        cancel_all(j);
    }
    tell(j);
    free_job(j);
}

static int start_part(struct job *j, uint32_t i)
{
    struct errmsg em = {0};
    struct part *p = &j->parts[i];
    const struct ask_prompt *prompt = &j->ask.prompts[i];
    struct client_request q = j->ask.request;
    q.prompt = prompt->text;
    q.prompt_tokens = prompt->tokens;
    q.n_prompt_tokens = prompt->n_tokens;
    if (!j->ask.cache_prompt) q.tenant = j->alone;
    int rc = client_start(j->e.g->client, &q, &p->call, on_reply, on_end, p, &em);
    if (rc == 0) j->n_live++;
    if (rc < 0) {
        (void)fault_set(&j->fault, rc == ERR_LIMIT ? 413 : 503, NULL, "%s", em.text);
        cancel_all(j);
    }
    return rc;
}

int job__deadline(const struct httpd_request *r, uint64_t *ret_ms, struct fault *f)
{
    const char *text = httpd_header(r, "X-Deadline-Ms");
    char *end;
    *ret_ms = 0;
    if (!text) return 0;
    unsigned long long ms = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || ms == 0)
        return fault_set(f, 400, NULL,
                         "header 'X-Deadline-Ms': '%.40s' is no number of "
                         "milliseconds above 0",
                         text);
    *ret_ms = ms;
    return 0;
}

static struct job *new_job(struct gateway *g, struct httpd_request *r, const struct ask *a,
                           enum job_form form, struct json *moved_echo)
{
    static const char *const chats[] = {"chatcmpl", "msg", "resp"};
    uint32_t n = a->n_prompts * a->best_of;
    struct job *j = mem_zalloc(sizeof *j);
    *j = (struct job){.e = {g, r, on_http_end},
                      .ask = *a,
                      .form = form,
                      .echo = moved_echo,
                      .begun_ns = clock_ns(),
                      .created_s = (uint64_t)time(NULL),
                      .n_choices = n,
                      .choices = mem_zalloc(n * sizeof *j->choices),
                      .parts = mem_zalloc(a->n_prompts * sizeof *j->parts),
                      .next = g->jobs,
                      .at = &g->jobs};
    j->ask.request.stops = j->ask.stops;
    if (j->ask.user[0]) j->ask.request.user = j->ask.user;
    (void)snprintf(j->id, sizeof j->id, "%s-%016" PRIx64,
                   a->kind == ASK_CHAT ? chats[form] : "cmpl", g->ids++);
    (void)snprintf(j->alone, sizeof j->alone, "uncached %.40s", j->id);
    for (uint32_t i = 0; i < n && a->kind == ASK_CHAT; i++)
        choice_split(&j->choices[i], &j->ask, g->ids * ASK_CHOICES_MAX + i);
    for (uint32_t i = 0; i < a->n_prompts; i++)
        j->parts[i] = (struct part){.job = j, .first = i * a->best_of};
    if (g->jobs) g->jobs->at = &j->next;
    g->jobs = j;
    g->n_jobs++;
    return j;
}

/* A body of another API: translated, then read as a chat's. echo: NULL, or what is repeated. */
static int read_translated(struct httpd_request *r, bool counts, struct json **ret_echo,
                           struct ask *ret, struct fault *f)
{
    struct errmsg em = {0};
    struct json *doc, *chat;
    struct buf text = {0};
    size_t n;
    const char *body = httpd_body(r, &n);
    if (json_read(body, n, &doc, &em) < 0)
        return fault_set(f, 400, NULL, "the body: %.400s", em.text);
    chat = ret_echo ? response_translate(doc, ret_echo, f) : message_translate(doc, counts, f);
    json_free(doc);
    if (!chat) return -1;
    json_write(chat, &text);
    json_free(chat);
    int rc = ask_read(ASK_CHAT, text.data, text.len, ret, f);
    buf_close(&text);
    if (rc < 0 && ret_echo) {
        json_free(*ret_echo);
        response_rename(f);
    }
    return rc;
}

int job__read_anthropic(struct httpd_request *r, bool counts, struct ask *ret, struct fault *f)
{
    return read_translated(r, counts, NULL, ret, f);
}

static int read_ask(struct httpd_request *r, enum ask_kind kind, enum job_form form,
                    struct json **ret_echo, struct ask *ret, struct fault *f)
{
    size_t n;
    const char *body = httpd_body(r, &n);
    if (form == JOB_COMPLETIONS) return ask_read(kind, body, n, ret, f);
    return read_translated(r, false, form == JOB_RESPONSES ? ret_echo : NULL, ret, f);
}

void job__begin(struct gateway *g, struct httpd_request *r, enum ask_kind kind, enum job_form form)
{
    struct fault f = {0};
    struct ask a;
    struct json *echo = NULL;
    uint64_t deadline_ms = 0;
    if (job__deadline(r, &deadline_ms, &f) < 0 || read_ask(r, kind, form, &echo, &a, &f) < 0) {
        gateway__refuse(g, r, &f);
        return;
    }
    a.request.deadline_ms = deadline_ms;
    httpd_drop_body(r);
    struct job *j = new_job(g, r, &a, form, echo);
    httpd_set_context(r, &j->e);
    for (uint32_t i = 0; i < a.n_prompts && !j->fault.http; i++) (void)start_part(j, i);
    ask_drop_body(&j->ask);
    tell(j);
}

void job__beat(struct gateway *g, uint64_t now)
{
    if (now < g->beat_ns + NS_PER_S) return;
    g->beat_ns = now;
    for (struct job *j = g->jobs; j; j = j->next) {
        if (!j->e.http || !j->replied || !j->ask.stream || now < j->told_ns + BEAT_NS) continue;
        j->beat = true;
        httpd_wake(j->e.http);
    }
}
