/* The client API's messages: one put and one get each. */
#include "proto/wire_pb.h"

#include "common/base/cursor.h"
#include "common/base/mem.h"
#include "proto/client.pb-c.h"

#include <string.h>

typedef Flotilla__Client__GenerateRequest PbGenerate;
typedef Flotilla__Client__GenerateReply PbGenerateReply;
typedef Flotilla__Client__WorkerStatus PbWorker;
typedef Flotilla__Client__ReplicaStatus PbReplica;

static void set_draft(Flotilla__Client__Speculation *p, const struct msg_draft_status *m)
{
    flotilla__client__speculation__init(p);
    SET(p, runs, m->runs);
    SET(p, drafted, m->drafted);
    SET(p, accepted, m->accepted);
    SET(p, early, m->early);
    SET(p, wasted, m->wasted);
    SET(p, on_ns, m->on_ns);
    SET(p, on_tokens, m->on_tokens);
    SET(p, off_ns, m->off_ns);
    SET(p, off_tokens, m->off_tokens);
}

static struct msg_draft_status get_draft(const Flotilla__Client__Speculation *p)
{
    if (!p) return (struct msg_draft_status){0};
    return (struct msg_draft_status){p->runs,  p->drafted,   p->accepted, p->early,     p->wasted,
                                     p->on_ns, p->on_tokens, p->off_ns,   p->off_tokens};
}

static const char *text_or_empty(const char *s)
{
    return s ? s : "";
}

void wire_put_call(const struct msg_call *m, struct buf *to)
{
    Flotilla__Client__CallHeader h = FLOTILLA__CLIENT__CALL_HEADER__INIT;
    SET(&h, version, m->version);
    h.method = (char *)(uintptr_t)m->method;
    SET(&h, client_hi, m->client.hi);
    SET(&h, client_lo, m->client.lo);
    SET(&h, call, m->call);
    SET(&h, deadline_ms, m->deadline_ms);
    wire__pack(&h.base, to);
}

int wire_get_call(const void *data, size_t n, struct arena *a, struct msg_call *ret,
                  struct errmsg *em)
{
    const Flotilla__Client__CallHeader *h =
        wire__unpack(&flotilla__client__call_header__descriptor, data, n, a, em);
    if (!h) return ERR_PROTO;
    *ret = (struct msg_call){.version = h->version,
                             .client = {h->client_hi, h->client_lo},
                             .call = h->call,
                             .deadline_ms = h->deadline_ms};
    if (!h->has_call) return wire__bad(em, "call");
    if (!h->has_client_hi || !h->has_client_lo) return wire__bad(em, "client");
    return wire__copy_text(h->method, ret->method, sizeof ret->method, "method", em);
}

void wire_put_reply(const struct msg_reply *m, struct buf *to)
{
    Flotilla__Client__ReplyHeader h = FLOTILLA__CLIENT__REPLY_HEADER__INIT;
    SET(&h, version, PROTO_VERSION);
    SET(&h, call, m->call);
    SET(&h, end, m->end);
    SET(&h, status, (uint32_t)m->status);
    if (m->message[0]) h.message = (char *)(uintptr_t)m->message;
    if (m->retry_ms) SET(&h, retry_ms, m->retry_ms);
    if (m->restarting) SET(&h, restarting, true);
    wire__pack(&h.base, to);
}

int wire_get_reply(const void *data, size_t n, struct arena *a, struct msg_reply *ret,
                   struct errmsg *em)
{
    const Flotilla__Client__ReplyHeader *h =
        wire__unpack(&flotilla__client__reply_header__descriptor, data, n, a, em);
    if (!h) return ERR_PROTO;
    *ret = (struct msg_reply){.version = h->version,
                              .call = h->call,
                              .end = h->end,
                              .status = (enum status)h->status,
                              .retry_ms = h->retry_ms,
                              .restarting = h->restarting};
    return wire__copy_text(h->message, ret->message, sizeof ret->message, "message", em);
}

void wire_put_generate(const struct msg_generate *m, struct buf *to)
{
    PbGenerate g = FLOTILLA__CLIENT__GENERATE_REQUEST__INIT;
    Flotilla__Sampling sampling;
    if (m->model) g.model = (char *)(uintptr_t)m->model;
    g.prompt = (char *)(uintptr_t)m->prompt;
    g.chat_json = (char *)(uintptr_t)m->chat;
    g.format_json = (char *)(uintptr_t)m->format;
    g.n_prompt_tokens = m->n_prompt_tokens;
    g.prompt_tokens = (int32_t *)(uintptr_t)m->prompt_tokens;
    SET(&g, special, m->special);
    SET(&g, max_tokens, m->max_tokens);
    wire__set_sampling(&sampling, &m->sampling, m->has_seed);
    g.sampling = &sampling;
    SET(&g, ignore_eos, m->ignore_eos);
    g.n_stop = m->n_stops;
    g.stop = (char **)(uintptr_t)m->stops;
    g.n_received = m->n_received;
    g.received = (int32_t *)(uintptr_t)m->received;
    if (m->from_index) SET(&g, from_index, m->from_index);
    if (m->tenant && m->tenant[0]) g.tenant = (char *)(uintptr_t)m->tenant;
    if (m->has_priority) SET(&g, priority, (uint32_t)m->priority);
    if (m->user && m->user[0]) g.user = (char *)(uintptr_t)m->user;
    if (m->pieces) SET(&g, pieces, true);
    if (m->samples) SET(&g, samples, m->samples);
    if (m->draft && m->draft[0]) g.draft = (char *)(uintptr_t)m->draft;
    if (m->has_draft_length) SET(&g, draft_length, m->draft_length);
    if (m->embed) SET(&g, embed, true);
    wire__pack(&g.base, to);
}

/* Protobuf's wire types. */
enum { WIRE_VARINT, WIRE_FIXED64, WIRE_BYTES, WIRE_FIXED32 = 5 };

/* Field numbers of GenerateRequest in client.proto. */
enum {
    GENERATE_PROMPT = 2,
    GENERATE_PROMPT_TOKENS = 3,
    GENERATE_SAMPLING = 9,
    GENERATE_RECEIVED = 18
};

static uint64_t varint(struct cursor *c)
{
    uint64_t v = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        uint8_t b = cursor_u8(c);
        v |= (uint64_t)(b & 0x7f) << shift;
        if (b < 0x80) return v;
    }
    c->bad = true;
    return 0;
}

/* Each varint ends with its only byte below 0x80. A block of at most 240 has a count that fits a
 * byte, so that compilers look at sixteen and more bytes at once: 2 ms for 20 MiB instead of 8. */
static size_t count_varints(const uint8_t *data, size_t n)
{
    size_t count = 0;
    for (size_t block; n; data += block, n -= block) {
        uint8_t ends = 0;
        block = n < 240 ? n : 240;
        for (size_t i = 0; i < block; i++) ends = (uint8_t)(ends + (data[i] < 0x80));
        count += ends;
    }
    return count;
}

struct field {
    uint64_t number;
    const uint8_t *data; /* of WIRE_BYTES, else NULL */
    size_t bytes;
};

/* The next field of a message. False: there is no more, or (c->bad) it is malformed. */
static bool next_field(struct cursor *c, struct field *ret)
{
    if (!cursor_left(c)) return false;
    uint64_t key = varint(c);
    *ret = (struct field){.number = key >> 3};
    switch (key & 7) {
    case WIRE_VARINT: (void)varint(c); break;
    case WIRE_FIXED64: (void)cursor_take(c, 8); break;
    case WIRE_FIXED32: (void)cursor_take(c, 4); break;
    case WIRE_BYTES: {
        uint64_t bytes = varint(c);
        ret->data = cursor_take(c, bytes);
        ret->bytes = (size_t)bytes;
        break;
    }
    default: c->bad = true;
    }
    return !c->bad;
}

static int fields_error(const struct cursor *c, uint32_t n, const char *message, struct errmsg *em)
{
    if (c->bad) return err_set(em, ERR_PROTO, "%s: malformed", message);
    if (n > LIMIT_FIELDS)
        return err_set(em, ERR_PROTO, "%s: more than %u fields", message, LIMIT_FIELDS);
    return 0;
}

/* Fields of a message inside another one, at most LIMIT_FIELDS + 1. */
static uint32_t count_fields(const struct field *outer, bool *ret_bad)
{
    struct cursor c = {.data = outer->data, .size = outer->bytes};
    struct field f;
    uint32_t n = 0;
    while (n <= LIMIT_FIELDS && next_field(&c, &f)) n++;
    *ret_bad |= c.bad;
    return n;
}

int wire_size_generate(const void *data, size_t n, struct msg_generate_size *ret, struct errmsg *em)
{
    struct cursor c = {.data = data, .size = n};
    struct msg_generate_size size = {0};
    struct field f;
    uint32_t fields = 0;
    while (fields <= LIMIT_FIELDS && next_field(&c, &f)) {
        size_t *tokens = f.number == GENERATE_PROMPT_TOKENS ? &size.n_prompt_tokens
                         : f.number == GENERATE_RECEIVED    ? &size.n_received
                                                            : NULL;
        fields += !tokens || f.data; /* a token id outside a packed list is counted as a token */
        if (tokens) *tokens += f.data ? count_varints(f.data, f.bytes) : 1;
        if (f.number == GENERATE_SAMPLING && f.data) fields += count_fields(&f, &c.bad);
        if (f.number == GENERATE_PROMPT) size.prompt_bytes = f.bytes; /* the last one counts */
    }
    int rc = fields_error(&c, fields, "GenerateRequest", em);
    if (rc == 0) *ret = size;
    return rc;
}

int wire_get_generate(const void *data, size_t n, struct arena *a, struct msg_generate *ret,
                      struct errmsg *em)
{
    if (n > LIMIT_CLIENT_BYTES) return wire__bad(em, "message");
    const PbGenerate *g =
        wire__unpack(&flotilla__client__generate_request__descriptor, data, n, a, em);
    if (!g) return ERR_PROTO;
    if (g->prompt && strlen(g->prompt) > LIMIT_PROMPT_BYTES) return wire__bad(em, "prompt");
    if (g->chat_json && strlen(g->chat_json) > LIMIT_CHAT_BYTES) return wire__bad(em, "chat_json");
    if (g->format_json && strlen(g->format_json) > LIMIT_FORMAT_BYTES)
        return wire__bad(em, "format_json");
    if (g->n_prompt_tokens > LIMIT_CONTEXT) return wire__bad(em, "prompt_tokens");
    if (g->has_max_tokens && g->max_tokens > LIMIT_MAX_TOKENS) return wire__bad(em, "max_tokens");
    if (g->n_stop > LIMIT_STOPS) return wire__bad(em, "stop");
    for (size_t i = 0; i < g->n_stop; i++)
        if (strlen(g->stop[i]) > LIMIT_STOP_BYTES) return wire__bad(em, "stop");
    if (g->n_received > LIMIT_MAX_TOKENS) return wire__bad(em, "received");
    if (g->tenant && strlen(g->tenant) >= LIMIT_NAME_BYTES) return wire__bad(em, "tenant");
    if (g->user && strlen(g->user) >= LIMIT_USER_BYTES) return wire__bad(em, "user");
    if (g->has_priority && g->priority > PRIORITY_LOW) return wire__bad(em, "priority");
    if (g->has_samples && (g->samples < 1 || g->samples > LIMIT_SAMPLES))
        return wire__bad(em, "samples");
    *ret = (struct msg_generate){
        .prompt = text_or_empty(g->prompt),
        .prompt_len = g->prompt ? strlen(g->prompt) : 0,
        .prompt_tokens = g->prompt_tokens,
        .n_prompt_tokens = (uint32_t)g->n_prompt_tokens,
        .chat = g->chat_json,
        .format = g->format_json,
        .model = text_or_empty(g->model),
        .special = g->special,
        .ignore_eos = g->ignore_eos,
        .has_seed = g->sampling && g->sampling->has_seed,
        .max_tokens = g->has_max_tokens ? g->max_tokens : LIMIT_MAX_TOKENS,
        .n_stops = (uint32_t)g->n_stop,
        .n_received = (uint32_t)g->n_received,
        .received = g->received,
        .from_index = g->from_index,
        .tenant = text_or_empty(g->tenant),
        .user = text_or_empty(g->user),
        .pieces = g->pieces,
        .has_priority = g->has_priority,
        .priority = g->has_priority ? (enum priority)g->priority : PRIORITY_NORMAL,
        .samples = g->has_samples ? g->samples : 1,
        .draft = text_or_empty(g->draft),
        .has_draft_length = g->has_draft_length,
        .draft_length = g->draft_length,
        .embed = g->embed,
    };
    for (size_t i = 0; i < g->n_stop; i++) ret->stops[i] = g->stop[i];
    return wire__get_sampling(g->sampling, &ret->sampling, em);
}

static size_t pieces_length(const struct msg_generate_reply *m)
{
    size_t n = 0;
    for (uint32_t i = 0; i < m->n_pieces; i++) n += m->piece_bytes[i];
    return n;
}

void wire_put_generate_reply(const struct msg_generate_reply *m, struct buf *to)
{
    PbGenerateReply r = FLOTILLA__CLIENT__GENERATE_REPLY__INIT;
    Flotilla__Client__Usage u = FLOTILLA__CLIENT__USAGE__INIT;
    Flotilla__Client__Speculation draft;
    SET(&r, first_index, m->first_index);
    if (m->sample) SET(&r, sample, m->sample);
    if (m->queued_us) SET(&r, queued_us, m->queued_us);
    if (m->cached) SET(&r, cached, m->cached);
    if (m->n_pieces) {
        SET(&r, pieces, ((ProtobufCBinaryData){pieces_length(m), (uint8_t *)(uintptr_t)m->pieces}));
        r.n_piece_bytes = m->n_pieces;
        r.piece_bytes = (uint32_t *)(uintptr_t)m->piece_bytes;
    }
    r.n_tokens = m->n_tokens;
    r.tokens = (int32_t *)(uintptr_t)m->tokens;
    r.text = (char *)(uintptr_t)m->text;
    if (m->logprobs.chosen) {
        r.n_logprobs = m->n_tokens;
        r.logprobs = (float *)(uintptr_t)m->logprobs.chosen;
        r.n_top_ids = r.n_top_logprobs = (size_t)m->n_tokens * m->logprobs.n_top;
        r.top_ids = (int32_t *)(uintptr_t)m->logprobs.top_ids;
        r.top_logprobs = (float *)(uintptr_t)m->logprobs.top;
    }
    if (m->finish_reason) r.finish_reason = (char *)(uintptr_t)finish_text(m->finish_reason);
    if (m->has_stop) SET(&r, stop, m->stop);
    if (m->has_usage) {
        u.n_prompt_tokens = m->n_prompt_tokens;
        u.prompt_tokens = (int32_t *)(uintptr_t)m->prompt_tokens;
        SET(&u, seed, m->seed);
        if (m->open_thought) SET(&u, open_thought, true);
        r.usage = &u;
    }
    if (m->has_draft) {
        set_draft(&draft, &m->draft);
        r.speculation = &draft;
    }
    r.n_embedding = m->n_embedding;
    r.embedding = (float *)(uintptr_t)m->embedding;
    wire__pack(&r.base, to);
}

/* A reason that this version does not know counts as none. */
static enum finish_reason parse_finish(const char *text)
{
    for (int i = FINISH_STOP; text && i <= FINISH_LENGTH; i++)
        if (strcmp(text, finish_text((enum finish_reason)i)) == 0) return (enum finish_reason)i;
    return FINISH_NONE;
}

int wire_get_generate_reply(const void *data, size_t n, struct arena *a,
                            struct msg_generate_reply *ret, struct errmsg *em)
{
    const PbGenerateReply *r =
        wire__unpack(&flotilla__client__generate_reply__descriptor, data, n, a, em);
    if (!r) return ERR_PROTO;
    struct msg_logprobs logprobs;
    if (!wire__get_logprobs(r->n_tokens, r->n_logprobs, r->logprobs, r->n_top_ids, r->top_ids,
                            r->n_top_logprobs, r->top_logprobs, &logprobs))
        return wire__bad(em, "logprobs");
    if (r->n_embedding > LIMIT_EMBEDDED) return wire__bad(em, "embedding");
    if (r->has_stop && (r->stop >= LIMIT_STOPS || parse_finish(r->finish_reason) != FINISH_STOP))
        return wire__bad(em, "stop");
    *ret = (struct msg_generate_reply){.logprobs = logprobs,
                                       .sample = r->sample,
                                       .first_index = r->first_index,
                                       .queued_us = r->queued_us,
                                       .cached = r->cached,
                                       .n_tokens = (uint32_t)r->n_tokens,
                                       .tokens = r->tokens,
                                       .text = text_or_empty(r->text),
                                       .finish_reason = parse_finish(r->finish_reason),
                                       .has_stop = r->has_stop,
                                       .stop = r->stop,
                                       .has_usage = r->usage != NULL,
                                       .has_draft = r->speculation != NULL,
                                       .draft = get_draft(r->speculation),
                                       .embedding = r->embedding,
                                       .n_embedding = (uint32_t)r->n_embedding};
    if (r->n_piece_bytes) {
        if (r->n_piece_bytes != r->n_tokens + r->n_top_ids) return wire__bad(em, "piece_bytes");
        ret->pieces = (const char *)r->pieces.data;
        ret->n_pieces = (uint32_t)r->n_piece_bytes;
        ret->piece_bytes = r->piece_bytes;
        if (pieces_length(ret) != r->pieces.len) return wire__bad(em, "pieces");
    }
    if (r->usage) {
        ret->prompt_tokens = r->usage->prompt_tokens;
        ret->n_prompt_tokens = (uint32_t)r->usage->n_prompt_tokens;
        ret->seed = r->usage->seed;
        ret->open_thought = r->usage->open_thought;
    }
    return 0;
}

void wire_put_cancel(uint64_t call, struct buf *to)
{
    Flotilla__Client__CancelRequest c = FLOTILLA__CLIENT__CANCEL_REQUEST__INIT;
    SET(&c, call, call);
    wire__pack(&c.base, to);
}

int wire_get_cancel(const void *data, size_t n, struct arena *a, uint64_t *ret_call,
                    struct errmsg *em)
{
    const Flotilla__Client__CancelRequest *c =
        wire__unpack(&flotilla__client__cancel_request__descriptor, data, n, a, em);
    if (!c) return ERR_PROTO;
    if (!c->has_call) return wire__bad(em, "call");
    *ret_call = c->call;
    return 0;
}

void wire_put_models(const char *name, struct buf *to)
{
    Flotilla__Client__ModelsReply m = FLOTILLA__CLIENT__MODELS_REPLY__INIT;
    char *names[] = {(char *)(uintptr_t)name};
    m.n_names = 1;
    m.names = names;
    wire__pack(&m.base, to);
}

int wire_get_models(const void *data, size_t n, struct arena *a, const char **ret_name,
                    struct errmsg *em)
{
    const Flotilla__Client__ModelsReply *m =
        wire__unpack(&flotilla__client__models_reply__descriptor, data, n, a, em);
    if (!m) return ERR_PROTO;
    *ret_name = m->n_names ? m->names[0] : "";
    return 0;
}

void wire_put_tokenize(const struct msg_tokenize *m, struct buf *to)
{
    Flotilla__Client__TokenizeRequest t = FLOTILLA__CLIENT__TOKENIZE_REQUEST__INIT;
    if (m->chat)
        t.chat_json = (char *)(uintptr_t)m->chat;
    else
        t.text = (char *)(uintptr_t)m->text;
    SET(&t, special, m->special);
    wire__pack(&t.base, to);
}

/* Before it is unpacked: a message with more fields than any has takes far more memory than bytes.
 */
static int check_fields(const void *data, size_t n, const char *message, struct errmsg *em)
{
    struct cursor c = {.data = data, .size = n};
    struct field f;
    uint32_t fields = 0;
    while (fields <= LIMIT_FIELDS && next_field(&c, &f)) fields++;
    return fields_error(&c, fields, message, em);
}

int wire_get_tokenize(const void *data, size_t n, struct arena *a, struct msg_tokenize *ret,
                      struct errmsg *em)
{
    int rc = check_fields(data, n, "TokenizeRequest", em);
    if (rc < 0) return rc;
    const Flotilla__Client__TokenizeRequest *t =
        wire__unpack(&flotilla__client__tokenize_request__descriptor, data, n, a, em);
    if (!t) return ERR_PROTO;
    if (t->chat_json && strlen(t->chat_json) > LIMIT_CHAT_BYTES) return wire__bad(em, "chat_json");
    *ret = (struct msg_tokenize){
        .text = text_or_empty(t->text), .special = t->special, .chat = t->chat_json};
    return 0;
}

void wire_put_tokens(const struct msg_tokens *m, struct buf *to)
{
    Flotilla__Client__TokenizeReply t = FLOTILLA__CLIENT__TOKENIZE_REPLY__INIT;
    t.n_tokens = m->n;
    t.tokens = (int32_t *)(uintptr_t)m->tokens;
    t.prompt = (char *)(uintptr_t)m->prompt;
    wire__pack(&t.base, to);
}

int wire_get_tokens(const void *data, size_t n, struct arena *a, struct msg_tokens *ret,
                    struct errmsg *em)
{
    const Flotilla__Client__TokenizeReply *t =
        wire__unpack(&flotilla__client__tokenize_reply__descriptor, data, n, a, em);
    if (!t) return ERR_PROTO;
    *ret = (struct msg_tokens){t->tokens, (uint32_t)t->n_tokens, t->prompt};
    return 0;
}

void wire_put_detokenize(const int32_t *tokens, uint32_t n, struct buf *to)
{
    Flotilla__Client__DetokenizeRequest t = FLOTILLA__CLIENT__DETOKENIZE_REQUEST__INIT;
    t.n_tokens = n;
    t.tokens = (int32_t *)(uintptr_t)tokens;
    wire__pack(&t.base, to);
}

int wire_get_detokenize(const void *data, size_t n, struct arena *a, const int32_t **ret_tokens,
                        uint32_t *ret_n, struct errmsg *em)
{
    const Flotilla__Client__DetokenizeRequest *t =
        wire__unpack(&flotilla__client__detokenize_request__descriptor, data, n, a, em);
    if (!t) return ERR_PROTO;
    if (t->n_tokens > LIMIT_CONTEXT) return wire__bad(em, "tokens");
    *ret_tokens = t->tokens;
    *ret_n = (uint32_t)t->n_tokens;
    return 0;
}

void wire_put_bytes(const void *text, size_t n, struct buf *to)
{
    Flotilla__Client__DetokenizeReply t = FLOTILLA__CLIENT__DETOKENIZE_REPLY__INIT;
    SET(&t, text, ((ProtobufCBinaryData){n, (uint8_t *)(uintptr_t)text}));
    wire__pack(&t.base, to);
}

int wire_get_bytes(const void *data, size_t n, struct arena *a, const char **ret_text,
                   size_t *ret_bytes, struct errmsg *em)
{
    const Flotilla__Client__DetokenizeReply *t =
        wire__unpack(&flotilla__client__detokenize_reply__descriptor, data, n, a, em);
    if (!t) return ERR_PROTO;
    *ret_text = t->text.len ? (const char *)t->text.data : "";
    *ret_bytes = t->text.len;
    return 0;
}

void wire_put_ping(const uint64_t *calls, uint32_t n, struct buf *to)
{
    Flotilla__Client__PingRequest p = FLOTILLA__CLIENT__PING_REQUEST__INIT;
    p.n_calls = n;
    p.calls = (uint64_t *)(uintptr_t)calls;
    wire__pack(&p.base, to);
}

int wire_get_ping(const void *data, size_t n, struct arena *a, const uint64_t **ret_calls,
                  uint32_t *ret_n, struct errmsg *em)
{
    const Flotilla__Client__PingRequest *p =
        wire__unpack(&flotilla__client__ping_request__descriptor, data, n, a, em);
    if (!p) return ERR_PROTO;
    if (p->n_calls > LIMIT_PING_CALLS) return wire__bad(em, "calls");
    *ret_calls = p->calls;
    *ret_n = (uint32_t)p->n_calls;
    return 0;
}

void wire_put_pong(const uint64_t *unknown, uint32_t n, uint32_t message_bytes, struct buf *to)
{
    Flotilla__Client__PingReply p = FLOTILLA__CLIENT__PING_REPLY__INIT;
    SET(&p, message_bytes, message_bytes);
    p.n_unknown = n;
    p.unknown = (uint64_t *)(uintptr_t)unknown;
    wire__pack(&p.base, to);
}

int wire_get_pong(const void *data, size_t n, struct arena *a, const uint64_t **ret_unknown,
                  uint32_t *ret_n, uint32_t *ret_message_bytes, struct errmsg *em)
{
    const Flotilla__Client__PingReply *p =
        wire__unpack(&flotilla__client__ping_reply__descriptor, data, n, a, em);
    if (!p) return ERR_PROTO;
    *ret_unknown = p->unknown;
    *ret_n = (uint32_t)p->n_unknown;
    *ret_message_bytes = p->message_bytes;
    return 0;
}

static void set_worker(PbWorker *p, const struct msg_worker_status *w)
{
    flotilla__client__worker_status__init(p);
    p->name = (char *)(uintptr_t)w->name;
    p->state = (char *)(uintptr_t)w->state;
    p->isa = (char *)(uintptr_t)w->isa;
    SET(p, pid, w->pid);
    SET(p, threads, w->threads);
    SET(p, layer_first, w->layer_first);
    SET(p, layer_last, w->layer_last);
    SET(p, resident_bytes, w->heartbeat.resident_bytes);
    SET(p, read_bytes, w->heartbeat.read_bytes);
    SET(p, weights_bytes, w->heartbeat.weights_bytes);
    SET(p, kv_bytes, w->heartbeat.kv_bytes);
    SET(p, rows, w->heartbeat.rows);
    SET(p, activation_bytes_in, w->heartbeat.activation_bytes_in);
    SET(p, activation_bytes_out, w->heartbeat.activation_bytes_out);
    SET(p, compute_ns, w->compute_ns);
    SET(p, idle_ns, w->idle_ns);
    SET(p, messages_dropped, w->heartbeat.messages_dropped);
    SET(p, load_done, w->load_done);
    SET(p, load_total, w->load_total);
    SET(p, cpu_waiting, w->cpu_waiting);
    SET(p, faults, w->faults);
    SET(p, predicted_ns, w->predicted_ns);
    SET(p, timed_steps, w->timed_steps);
    SET(p, row_ns, w->row_ns);
    SET(p, streams_ns, w->streams_ns);
    SET(p, chunk_ns, w->chunk_ns);
}

/* A replica's status as protobuf-c wants it; its arrays are on the heap. */
struct replica_out {
    PbReplica r;
    Flotilla__Client__Speculation draft;
    PbWorker *workers, **pointers;
};

static void set_replica(struct replica_out *out, const struct msg_replica_status *x)
{
    uint32_t n = x->n_workers;
    PbReplica r = FLOTILLA__CLIENT__REPLICA_STATUS__INIT;
    out->workers = mem_alloc((n + 1) * sizeof *out->workers);
    out->pointers = mem_alloc((n + 1) * sizeof *out->pointers);
    r.name = (char *)(uintptr_t)x->name;
    r.state = (char *)(uintptr_t)x->state;
    r.why = (char *)(uintptr_t)x->why;
    SET(&r, generation, x->generation);
    SET(&r, pages_total, x->pages_total);
    SET(&r, ctx, x->ctx);
    SET(&r, pages_free, x->pages_free);
    SET(&r, steps, x->steps);
    SET(&r, steps_mixed, x->steps_mixed);
    SET(&r, wire_ns, x->wire_ns);
    SET(&r, queue_ns, x->queue_ns);
    SET(&r, sequences_max, x->sequences_max);
    SET(&r, running, x->running);
    SET(&r, queued, x->queued);
    SET(&r, pages_cached, x->cache.pages_cached);
    SET(&r, pages_held, x->cache.pages_held);
    SET(&r, positions_unused, x->cache.positions_unused);
    if (x->windowed_total) {
        SET(&r, windowed_total, x->windowed_total);
        SET(&r, windowed_cached, x->cache.windowed_cached);
        SET(&r, windowed_held, x->cache.windowed_held);
    }
    SET(&r, prefix_lookups, x->cache.lookups);
    SET(&r, prefix_hits, x->cache.hits);
    SET(&r, tokens_saved, x->cache.tokens_saved);
    SET(&r, tokens_computed, x->cache.tokens_computed);
    SET(&r, pages_evicted, x->cache.evicted);
    SET(&r, preemptions, x->cache.preemptions);
    SET(&r, rebalancing, x->rebalancing);
    set_draft(&out->draft, &x->draft);
    if (x->draft.runs || x->draft.early) r.speculation = &out->draft;
    for (uint32_t i = 0; i < n; i++) set_worker(&out->workers[i], &x->workers[i]);
    POINTERS(out->pointers, out->workers, n);
    r.n_workers = n;
    r.workers = out->pointers;
    out->r = r;
}

void wire_put_status(const struct msg_status *m, struct buf *to)
{
    Flotilla__Client__StatusReply s = FLOTILLA__CLIENT__STATUS_REPLY__INIT;
    uint32_t n = m->n_replicas;
    struct replica_out *out = mem_alloc((n + 1) * sizeof *out);
    PbReplica **replicas = mem_alloc((n + 1) * sizeof *replicas);
    SET(&s, ready, m->ready);
    s.model = (char *)(uintptr_t)m->model;
    SET(&s, running, m->running);
    SET(&s, queued, m->queued);
    SET(&s, messages_dropped, m->messages_dropped);
    for (uint32_t i = 0; i < n; i++) {
        set_replica(&out[i], &m->replicas[i]);
        replicas[i] = &out[i].r;
    }
    s.n_replicas = n;
    s.replicas = replicas;
    PbWorker *spares = mem_alloc((m->n_spares + 1) * sizeof *spares);
    PbWorker **pointers = mem_alloc((m->n_spares + 1) * sizeof *pointers);
    for (uint32_t i = 0; i < m->n_spares; i++) set_worker(&spares[i], &m->spares[i]);
    POINTERS(pointers, spares, m->n_spares);
    s.n_spares = m->n_spares;
    s.spares = pointers;
    wire__pack(&s.base, to);
    mem_free(spares);
    mem_free(pointers);
    for (uint32_t i = 0; i < n; i++) {
        mem_free(out[i].workers);
        mem_free(out[i].pointers);
    }
    mem_free(out);
    mem_free(replicas);
}

static void get_worker(const PbWorker *p, struct msg_worker_status *w)
{
    *w = (struct msg_worker_status){
        .name = text_or_empty(p->name),
        .state = text_or_empty(p->state),
        .isa = text_or_empty(p->isa),
        .pid = p->pid,
        .threads = p->threads,
        .layer_first = p->layer_first,
        .layer_last = p->layer_last,
        .heartbeat = {.resident_bytes = p->resident_bytes,
                      .read_bytes = p->read_bytes,
                      .weights_bytes = p->weights_bytes,
                      .kv_bytes = p->kv_bytes,
                      .rows = p->rows,
                      .activation_bytes_in = p->activation_bytes_in,
                      .activation_bytes_out = p->activation_bytes_out,
                      .messages_dropped = p->messages_dropped},
        .load_done = p->load_done,
        .load_total = p->load_total,
        .compute_ns = p->compute_ns,
        .idle_ns = p->idle_ns,
        .cpu_waiting = p->cpu_waiting,
        .faults = p->faults,
        .predicted_ns = p->predicted_ns,
        .timed_steps = p->timed_steps,
        .row_ns = p->row_ns,
        .streams_ns = p->streams_ns,
        .chunk_ns = p->chunk_ns,
    };
}

/* NULL: there is no memory for them. */
static struct msg_worker_status *get_workers(PbWorker *const *list, size_t n, struct arena *a)
{
    struct msg_worker_status *workers = arena_alloc(a, (n + 1) * sizeof *workers);
    for (size_t i = 0; workers && i < n; i++) get_worker(list[i], &workers[i]);
    return workers;
}

static int get_replica(const PbReplica *r, struct arena *a, struct msg_replica_status *ret,
                       struct errmsg *em)
{
    if (r->n_workers > LIMIT_STAGES) return wire__bad(em, "workers");
    struct msg_worker_status *workers = get_workers(r->workers, r->n_workers, a);
    if (!workers) return wire__bad(em, "workers");
    *ret = (struct msg_replica_status){.name = text_or_empty(r->name),
                                       .state = text_or_empty(r->state),
                                       .why = text_or_empty(r->why),
                                       .ready = r->state && strcmp(r->state, "ready") == 0,
                                       .rebalancing = r->rebalancing,
                                       .generation = r->generation,
                                       .n_workers = (uint32_t)r->n_workers,
                                       .workers = workers,
                                       .pages_total = r->pages_total,
                                       .windowed_total = r->windowed_total,
                                       .ctx = r->ctx,
                                       .pages_free = r->pages_free,
                                       .steps = r->steps,
                                       .steps_mixed = r->steps_mixed,
                                       .wire_ns = r->wire_ns,
                                       .queue_ns = r->queue_ns,
                                       .sequences_max = r->sequences_max,
                                       .running = r->running,
                                       .queued = r->queued,
                                       .cache = {.pages_cached = r->pages_cached,
                                                 .pages_held = r->pages_held,
                                                 .positions_unused = r->positions_unused,
                                                 .windowed_cached = r->windowed_cached,
                                                 .windowed_held = r->windowed_held,
                                                 .lookups = r->prefix_lookups,
                                                 .hits = r->prefix_hits,
                                                 .tokens_saved = r->tokens_saved,
                                                 .tokens_computed = r->tokens_computed,
                                                 .evicted = r->pages_evicted,
                                                 .preemptions = r->preemptions},
                                       .draft = get_draft(r->speculation)};
    return 0;
}

int wire_get_status(const void *data, size_t n, struct arena *a, struct msg_status *ret,
                    struct errmsg *em)
{
    const size_t elements =
        WIRE__ELEMENTS(LIMIT_REPLICAS, Flotilla__Client__ReplicaStatus, struct msg_replica_status) +
        WIRE__ELEMENTS(LIMIT_REPLICAS * LIMIT_STAGES + LIMIT_SPARES, Flotilla__Client__WorkerStatus,
                       struct msg_worker_status);
    const Flotilla__Client__StatusReply *s = wire__unpack_elements(
        &flotilla__client__status_reply__descriptor, data, n, elements, a, em);
    if (!s) return ERR_PROTO;
    *ret = (struct msg_status){.ready = s->ready,
                               .model = text_or_empty(s->model),
                               .running = s->running,
                               .queued = s->queued,
                               .messages_dropped = s->messages_dropped};
    if (s->n_replicas > LIMIT_REPLICAS) return wire__bad(em, "replicas");
    struct msg_replica_status *replicas = arena_alloc(a, (s->n_replicas + 1) * sizeof *replicas);
    if (!replicas) return wire__bad(em, "replicas");
    for (size_t i = 0; i < s->n_replicas; i++) {
        int rc = get_replica(s->replicas[i], a, &replicas[i], em);
        if (rc < 0) return rc;
    }
    ret->n_replicas = (uint32_t)s->n_replicas;
    ret->replicas = replicas;
    if (s->n_spares > LIMIT_SPARES) return wire__bad(em, "spares");
    ret->n_spares = (uint32_t)s->n_spares;
    ret->spares = get_workers(s->spares, s->n_spares, a);
    return ret->spares ? 0 : wire__bad(em, "spares");
}

void wire_put_order(const struct msg_order *m, struct buf *to)
{
    Flotilla__Client__OrderRequest o = FLOTILLA__CLIENT__ORDER_REQUEST__INIT;
    o.name = (char *)(uintptr_t)m->name;
    if (m->has_limit) SET(&o, limit_ms, m->limit_ms);
    wire__pack(&o.base, to);
}

int wire_get_order(const void *data, size_t n, struct arena *a, struct msg_order *ret,
                   struct errmsg *em)
{
    const Flotilla__Client__OrderRequest *o =
        wire__unpack(&flotilla__client__order_request__descriptor, data, n, a, em);
    if (!o) return ERR_PROTO;
    *ret = (struct msg_order){.has_limit = o->has_limit_ms, .limit_ms = o->limit_ms};
    if (o->has_limit_ms && o->limit_ms > LIMIT_DEADLINE_MS) return wire__bad(em, "limit_ms");
    return wire__copy_text(o->name, ret->name, sizeof ret->name, "name", em);
}

void wire_put_order_reply(const char *text, struct buf *to)
{
    Flotilla__Client__OrderReply r = FLOTILLA__CLIENT__ORDER_REPLY__INIT;
    r.text = (char *)(uintptr_t)text;
    wire__pack(&r.base, to);
}

int wire_get_order_reply(const void *data, size_t n, struct arena *a, const char **ret_text,
                         struct errmsg *em)
{
    const Flotilla__Client__OrderReply *r =
        wire__unpack(&flotilla__client__order_reply__descriptor, data, n, a, em);
    if (!r) return ERR_PROTO;
    *ret_text = text_or_empty(r->text);
    return 0;
}
