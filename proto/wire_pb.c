#include "proto/wire_pb.h"

#include "common/base/mem.h"

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

void *wire__unpack_elements(const ProtobufCMessageDescriptor *type, const void *data, size_t n,
                            size_t elements_bytes, struct arena *a, struct errmsg *em)
{
    arena_reset(a);
    a->budget = n * LIMIT_UNPACK_FACTOR + 65536 + elements_bytes;
    ProtobufCAllocator alloc = {pb_alloc, pb_free, a};
    void *m = protobuf_c_message_unpack(type, &alloc, n, data);
    if (!m && a->starved)
        (void)err_set(em, ERR_NOMEM, "no memory to read a %s", type->short_name);
    else if (!m)
        (void)err_set(em, ERR_PROTO, "%s: malformed", type->short_name);
    return m;
}

void *wire__unpack(const ProtobufCMessageDescriptor *type, const void *data, size_t n,
                   struct arena *a, struct errmsg *em)
{
    return wire__unpack_elements(type, data, n, 0, a, em);
}

int wire__bad(struct errmsg *em, const char *field)
{
    return err_set(em, ERR_PROTO, "field '%s' is missing or out of range", field);
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
    if (rc == 0) err_clean(to); /* it ends up in logs and on terminals */
    return rc;
}

void wire__set_sampling(Flotilla__Sampling *p, const struct sampling *s, bool has_seed)
{
    flotilla__sampling__init(p);
    SET(p, temp, s->temp);
    SET(p, top_k, s->top_k);
    SET(p, top_p, s->top_p);
    SET(p, min_p, s->min_p);
    if (has_seed) SET(p, seed, s->seed);
    SET(p, repetition_penalty, s->repetition);
    SET(p, presence_penalty, s->presence);
    SET(p, frequency_penalty, s->frequency);
    SET(p, logprobs, s->logprobs);
    SET(p, top_logprobs, s->top_logprobs);
    p->n_bias_ids = p->n_logit_bias = s->n_bias;
    p->bias_ids = (int32_t *)(uintptr_t)s->bias_ids;
    p->logit_bias = (float *)(uintptr_t)s->bias;
}

int wire__get_sampling(const Flotilla__Sampling *p, struct sampling *ret, struct errmsg *em)
{
    static const Flotilla__Sampling absent = FLOTILLA__SAMPLING__INIT;
    if (!p) p = &absent;
    if (p->n_bias_ids != p->n_logit_bias || p->n_logit_bias > UINT32_MAX)
        return wire__bad(em, "logit_bias");
    *ret = (struct sampling){.temp = p->temp,
                             .top_k = p->top_k,
                             .top_p = p->top_p,
                             .min_p = p->min_p,
                             .seed = p->seed,
                             .repetition = p->repetition_penalty,
                             .presence = p->presence_penalty,
                             .frequency = p->frequency_penalty,
                             .logprobs = p->logprobs,
                             .top_logprobs = p->top_logprobs,
                             .n_bias = (uint32_t)p->n_logit_bias,
                             .bias_ids = p->bias_ids,
                             .bias = p->logit_bias};
    return sampling_check(ret, em) < 0 ? ERR_PROTO : 0;
}

/* False: the counts do not fit n tokens. */
bool wire__get_logprobs(size_t n, size_t n_chosen, const float *chosen, size_t n_ids,
                        const int32_t *ids, size_t n_top, const float *top,
                        struct msg_logprobs *ret)
{
    *ret = (struct msg_logprobs){0};
    if (n_chosen == 0 && n_ids == 0 && n_top == 0) return true;
    if (n == 0 || n_chosen != n || n_ids != n_top || n_top % n || n_top / n > SAMPLING_TOP_MAX)
        return false;
    *ret = (struct msg_logprobs){chosen, (uint32_t)(n_top / n), ids, top};
    return true;
}
