/* A request for embeddings: one call for each text, some of them at once, and its reply.
 *
 *   whole body -> calls run -> all have ended -> reply whole, or the peer is gone -> freed
 *
 * The reply begins when all is known, so that whatever goes wrong has a status. It is made one text
 * after the other as the peer takes it: as JSON it is several times as large as its numbers. */
#include "coordinator/gateway/gateway_state.h"

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "proto/limits.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define AT_ONCE 16u                   /* calls of one request */
#define NUMBERS_MAX ((size_t)4 << 20) /* of one reply */

/* One call. */
struct part {
    struct embed *owner;
    struct client_call *call; /* NULL: it has ended, or did not begin */
    uint32_t n_prompt;
    bool known; /* its embedding has come */
};

struct embed {
    struct exchange e;
    struct ask ask;
    uint64_t deadline_ns; /* 0: as the coordinator has it */
    struct part *parts;   /* ask.n_prompts, of which: */
    uint32_t n_begun, n_live, n_told;
    uint32_t width;     /* numbers of an embedding; 0: none has come */
    float *values;      /* [ask.n_prompts][width] */
    bool replied;       /* the reply has begun */
    struct fault fault; /* http is 0 as long as all is well */
    struct buf out;     /* of the reply: bytes on their way to the peer, */
    size_t n_taken;     /* and how many of them it has taken */
};

static void free_embed(struct embed *x)
{
    if (x->e.http || x->n_live) return;
    x->e.g->n_queries--;
    buf_close(&x->out);
    mem_free(x->values);
    mem_free(x->parts);
    ask_close(&x->ask);
    mem_free(x);
}

static void cancel_all(struct embed *x)
{
    for (uint32_t i = 0; i < x->n_begun; i++)
        if (x->parts[i].call) client_cancel(x->parts[i].call);
}

static void on_http_end(struct exchange *e, bool gone)
{
    struct embed *x = (struct embed *)e;
    x->e.http = NULL;
    e->g->count.gone += gone;
    cancel_all(x);
    free_embed(x);
}

/* ---- the reply ---- */

/* Numbers of 32 bits, little-endian, as the official client reads them. */
static void put_base64(struct json *o, const float *values, uint32_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const uint8_t *bytes = (const uint8_t *)(const void *)values;
    struct buf text = {0};
    size_t left = n * sizeof *values;
    for (; left; bytes += 3, left -= left < 3 ? left : 3) {
        uint32_t b = (uint32_t)bytes[0] << 16 | (left > 1 ? (uint32_t)bytes[1] << 8 : 0) |
                     (left > 2 ? bytes[2] : 0);
        const char four[] = {digits[b >> 18], digits[b >> 12 & 63],
                             left > 1 ? digits[b >> 6 & 63] : '=', left > 2 ? digits[b & 63] : '='};
        (void)buf_append(&text, four, sizeof four);
    }
    json_put_string(o, "embedding", text.data, text.len);
    buf_close(&text);
}

static void put_numbers(struct json *o, const float *values, uint32_t n)
{
    struct json *list = json_new_array();
    for (uint32_t i = 0; i < n; i++) json_add_real(list, (double)values[i]);
    json_put(o, "embedding", list);
}

static void put_item(struct embed *x, uint32_t idx)
{
    struct json *o = json_new_object();
    const float *values = x->values + (size_t)idx * x->width;
    json_put_string(o, "object", "embedding", 9);
    json_put_u64(o, "index", idx);
    (x->ask.base64 ? put_base64 : put_numbers)(o, values, x->width);
    json_write(o, &x->out);
    json_free(o);
}

static void put(struct embed *x, const char *text)
{
    (void)buf_append(&x->out, text, strlen(text));
}

/* What follows the list. */
static void put_rest(struct embed *x)
{
    const char *model = x->ask.request.model ? x->ask.request.model : x->e.g->model;
    struct json *o = json_new_object(), *usage = json_new_object();
    struct buf text = {0};
    uint64_t n = 0;
    for (uint32_t i = 0; i < x->ask.n_prompts; i++) n += x->parts[i].n_prompt;
    json_put_u64(usage, "prompt_tokens", n);
    json_put_u64(usage, "total_tokens", n);
    json_put_string(o, "model", model, model ? strlen(model) : 0);
    json_put(o, "usage", usage);
    json_write(o, &text);
    json_free(o);
    put(x, "],");
    (void)buf_append(&x->out, text.data + 1, text.len - 1); /* the object is open already */
    buf_close(&text);
}

static long pull(void *context, char *to, size_t room)
{
    struct embed *x = context;
    if (!x->out.len && x->n_told < x->ask.n_prompts) {
        put(x, x->n_told ? "," : "{\"object\":\"list\",\"data\":[");
        put_item(x, x->n_told++);
        if (x->n_told == x->ask.n_prompts) put_rest(x);
    }
    size_t n = buf_take(&x->out, &x->n_taken, to, room);
    return n ? (long)n : HTTPD_DONE;
}

/* What there is to tell goes on its way. */
static void tell(struct embed *x)
{
    static const struct httpd_field type = {"Content-Type", "application/json"};
    if (!x->e.http || x->replied) return;
    if (x->fault.http) {
        x->replied = true;
        gateway__refuse(x->e.g, x->e.http, &x->fault);
    } else if (x->n_begun == x->ask.n_prompts && !x->n_live) {
        x->replied = true;
        x->e.g->count.replies[200]++;
        httpd_stream(x->e.http, 200, &type, 1, pull);
    }
}

/* ---- the calls ---- */

/* Room for all embeddings, once it is known how long they are. */
static int make_room(struct embed *x, uint32_t width)
{
    size_t n = (size_t)x->ask.n_prompts * width;
    if (n > NUMBERS_MAX)
        return fault_set(&x->fault, 400, "input",
                         "'input': %" PRIu32 " embeddings of %" PRIu32
                         " numbers, the limit of a request is %zu numbers",
                         x->ask.n_prompts, width, NUMBERS_MAX);
    x->values = mem_try_zeroed(n, sizeof *x->values);
    if (!x->values) {
        (void)fault_set(&x->fault, 503, NULL, "no memory for %zu numbers", n);
        x->fault.retry_s = 1;
        return -1;
    }
    x->width = width;
    return 0;
}

static void on_reply(void *arg, struct client_call *call, const struct client_reply *reply)
{
    struct part *p = arg;
    struct embed *x = p->owner;
    (void)call;
    if (reply->has_usage) p->n_prompt = reply->n_prompt_tokens;
    if (!reply->n_embedding || x->fault.http) return;
    if (!x->width && make_room(x, reply->n_embedding) < 0) {
        cancel_all(x);
        return;
    }
    if (reply->n_embedding != x->width) {
        (void)fault_set(&x->fault, 503, NULL, "the model has become another one meanwhile");
        x->fault.retry_s = 1;
        cancel_all(x);
        return;
    }
    memcpy(x->values + (size_t)(p - x->parts) * x->width, reply->embedding,
           x->width * sizeof *x->values);
    p->known = true;
}

/* A text that cannot be embedded is named by its number. */
static void set_fault(struct embed *x, const struct part *p, const struct client_end *end)
{
    struct fault f;
    fault_of_end(&f, end);
    fault_rename(&f, "prompt", "input");
    fault_rename(&f, "prompt_tokens", "input");
    x->fault = f;
    if (f.http != 400) return;
    (void)snprintf(x->fault.param, sizeof x->fault.param, "input");
    if (x->ask.n_prompts > 1)
        (void)snprintf(x->fault.text, sizeof x->fault.text, "item %td of 'input': %.400s",
                       p - x->parts, f.text);
}

static void begin_more(struct embed *x);

static void on_end(void *arg, struct client_call *call, const struct client_end *end)
{
    struct part *p = arg;
    struct embed *x = p->owner;
    bool well = !end->lost && end->status == STATUS_OK;
    (void)call;
    p->call = NULL;
    x->n_live--;
    if (!x->fault.http && !well) set_fault(x, p, end);
    if (!x->fault.http && !p->known)
        (void)fault_set(&x->fault, 500, NULL, "the coordinator is of a version without embeddings");
    if (x->fault.http) cancel_all(x);
    begin_more(x);
    tell(x);
    free_embed(x);
}

static int begin_one(struct embed *x)
{
    struct errmsg em = {0};
    struct part *p = &x->parts[x->n_begun];
    const struct ask_prompt *prompt = &x->ask.prompts[x->n_begun++];
    struct client_request q = x->ask.request;
    uint64_t now = clock_ns();
    p->owner = x;
    q.prompt = prompt->text;
    q.prompt_tokens = prompt->tokens;
    q.n_prompt_tokens = prompt->n_tokens;
    if (x->deadline_ns)
        q.deadline_ms = now < x->deadline_ns ? (x->deadline_ns - now) / NS_PER_MS + 1 : 1;
    int rc = client_start(x->e.g->client, &q, &p->call, on_reply, on_end, p, &em);
    if (rc < 0) {
        (void)fault_set(&x->fault, rc == ERR_LIMIT ? 413 : 503, NULL, "%s", em.text);
        cancel_all(x);
        return rc;
    }
    x->n_live++;
    return 0;
}

static void begin_more(struct embed *x)
{
    while (x->e.http && !x->fault.http && x->n_begun < x->ask.n_prompts && x->n_live < AT_ONCE) {
        if (begin_one(x) < 0) return;
        if (x->n_begun == x->ask.n_prompts) ask_drop_body(&x->ask);
    }
}

void embed__begin(struct gateway *g, struct httpd_request *r)
{
    struct fault f = {0};
    struct ask a;
    uint64_t deadline_ms;
    size_t n;
    const char *body = httpd_body(r, &n);
    if (job__deadline(r, &deadline_ms, &f) < 0 || ask_read(ASK_EMBEDDING, body, n, &a, &f) < 0) {
        gateway__refuse(g, r, &f);
        return;
    }
    httpd_drop_body(r);
    if (deadline_ms > LIMIT_DEADLINE_MS) deadline_ms = LIMIT_DEADLINE_MS;
    struct embed *x = mem_zalloc(sizeof *x);
    *x = (struct embed){.e = {g, r, on_http_end},
                        .ask = a,
                        .deadline_ns = deadline_ms ? clock_ns() + deadline_ms * NS_PER_MS : 0,
                        .parts = mem_zalloc(a.n_prompts * sizeof *x->parts)};
    if (x->ask.user[0]) x->ask.request.user = x->ask.user;
    g->n_queries++;
    httpd_set_context(r, &x->e);
    begin_more(x);
    tell(x);
}
