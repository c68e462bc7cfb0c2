#include "proto/wire_pb.h"

#include "common/base/mem.h"
#include "common/base/utf8.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

void wire__pack(const ProtobufCMessage *m, struct buf *to)
{
    size_t n = protobuf_c_message_get_packed_size(m);
    buf_drop(to, to->len);
    if (n + 1 > to->cap) {
        to->data = mem_realloc(to->data, n + 1);
        to->cap = n + 1;
    }
    to->len = protobuf_c_message_pack(m, (uint8_t *)to->data);
}

static void *pb_alloc(void *arena, size_t n)
{
    return arena_alloc(arena, n);
}

static void pb_free(void *arena, void *p)
{
    (void)arena;
    (void)p;
}

/* NULL: malformed, or more memory than the budget. */
void *wire__unpack(const ProtobufCMessageDescriptor *type, const void *data, size_t n,
                   struct arena *a, struct errmsg *em)
{
    arena_reset(a);
    a->budget = n * LIMIT_UNPACK_FACTOR + 65536;
    ProtobufCAllocator alloc = {pb_alloc, pb_free, a};
    void *m = protobuf_c_message_unpack(type, &alloc, n, data);
    if (!m && a->starved)
        (void)err_set(em, ERR_NOMEM, "no memory to read a %s", type->short_name);
    else if (!m)
        (void)err_set(em, ERR_PROTO, "%s: malformed", type->short_name);
    return m;
}

int wire__bad(struct errmsg *em, const char *field)
{
    return err_set(em, ERR_PROTO, "field '%s' is missing or out of range", field);
}

/* Names and messages of others end up in logs and on terminals. */
static void clean(char *s)
{
    size_t left = strlen(s);
    while (left) {
        size_t n = utf8_bytes(s, left);
        bool control = (uint8_t)*s < 0x20 || *s == 0x7f;
        if (n == 0 || control) *s = '?';
        s += n ? n : 1;
        left -= n ? n : 1;
    }
}

int wire__copy_path(const char *from, char *to, size_t size, const char *field, struct errmsg *em)
{
    size_t n = from ? strlen(from) : 0;
    if (n >= size)
        return err_set(em, ERR_PROTO, "field '%s' has %zu bytes, the limit is %zu", field, n,
                       size - 1);
    if (n) memcpy(to, from, n);
    to[n] = 0;
    return 0;
}

int wire__copy_text(const char *from, char *to, size_t size, const char *field, struct errmsg *em)
{
    int rc = wire__copy_path(from, to, size, field, em);
    if (rc == 0) clean(to);
    return rc;
}

static bool within(float x, float low, float high)
{
    return x >= low && x <= high; /* false for NaN */
}

/* Also the check of what a client asked for; names are the client's. */
int wire__check_sampling(const struct msg_sampling *s, struct errmsg *em)
{
    if (!isfinite(s->temp) || s->temp < 0.0f)
        return err_set(em, ERR_PROTO, "field 'temp' is not a number of at least 0");
    if (!isfinite(s->top_p) || s->top_p < 0.0f || s->top_p > 1.0f)
        return err_set(em, ERR_PROTO, "field 'top_p' is not in 0..1");
    if (!isfinite(s->min_p) || s->min_p < 0.0f || s->min_p > 1.0f)
        return err_set(em, ERR_PROTO, "field 'min_p' is not in 0..1");
    /* Logits are divided by it: a value near 0 would make infinities of them. */
    if (!within(s->repetition, 0.01f, 10.0f))
        return err_set(em, ERR_PROTO, "field 'repetition_penalty' is not in 0.01..10");
    if (!within(s->presence, -2.0f, 2.0f))
        return err_set(em, ERR_PROTO, "field 'presence_penalty' is not in -2..2");
    if (!within(s->frequency, -2.0f, 2.0f))
        return err_set(em, ERR_PROTO, "field 'frequency_penalty' is not in -2..2");
    if (s->top_logprobs > LIMIT_TOP_LOGPROBS)
        return err_set(em, ERR_PROTO, "field 'top_logprobs' is %" PRIu32 ", the limit is %u",
                       s->top_logprobs, LIMIT_TOP_LOGPROBS);
    if (s->n_bias > LIMIT_BIAS)
        return err_set(em, ERR_PROTO, "field 'logit_bias' has %" PRIu32 " tokens, the limit is %u",
                       s->n_bias, LIMIT_BIAS);
    for (uint32_t i = 0; i < s->n_bias; i++)
        if (!within(s->bias[i], -100.0f, 100.0f) || s->bias_ids[i] < 0)
            return err_set(em, ERR_PROTO,
                           "field 'logit_bias': token %" PRId32 " or its value is not in -100..100",
                           s->bias_ids[i]);
    return 0;
}

/* False: the counts do not fit n tokens. */
bool wire__get_logprobs(size_t n, size_t n_chosen, const float *chosen, size_t n_ids,
                        const int32_t *ids, size_t n_top, const float *top,
                        struct msg_logprobs *ret)
{
    *ret = (struct msg_logprobs){0};
    if (n_chosen == 0 && n_ids == 0 && n_top == 0) return true;
    if (n == 0 || n_chosen != n || n_ids != n_top || n_top % n || n_top / n > LIMIT_TOP_LOGPROBS)
        return false;
    *ret = (struct msg_logprobs){chosen, (uint32_t)(n_top / n), ids, top};
    return true;
}
