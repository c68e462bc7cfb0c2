/* The wire decoders: the first byte chooses one, the rest is the message. What decodes is encoded
 * and decoded again: it must be accepted, and encode to the same bytes from then on. */
#include "proto/wire.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

static struct arena arena, again;
static struct buf out, twice;
static struct errmsg em;

/* Once over the wire: afterwards absent fields have their defaults. */
#define ENCODED_AGAIN(m, put, get, to)                                                             \
    do {                                                                                           \
        put(m, to);                                                                                \
        fuzz_check(get((to)->data, (to)->len, &again, m, &em) == 0);                               \
    } while (0)

#define ROUND_TRIP(type, get, put)                                                                 \
    do {                                                                                           \
        static type m;                                                                             \
        if (get(data, size, &arena, &m, &em) < 0) break;                                           \
        ENCODED_AGAIN(&m, put, get, &out);                                                         \
        put(&m, &out);                                                                             \
        fuzz_check(get(out.data, out.len, &arena, &m, &em) == 0);                                  \
        put(&m, &twice);                                                                           \
        fuzz_check(out.len == twice.len && memcmp(out.data, twice.data, out.len) == 0);            \
    } while (0)

/* Sizes that are read off a message's bytes are those that unpacking it gives. */
static void sizes(const uint8_t *data, size_t size)
{
    static struct msg_generate g;
    struct msg_generate_size z;
    if (wire_get_generate(data, size, &arena, &g, &em) < 0) return;
    if (wire_size_generate(data, size, &z, &em) < 0) return; /* it has too many fields */
    fuzz_check(z.n_prompt_tokens == g.n_prompt_tokens && z.n_received == g.n_received);
    fuzz_check(z.prompt_bytes >= g.prompt_len); /* a NUL ends the text */
}

static void lists(uint8_t which, const uint8_t *data, size_t size)
{
    const char *text;
    const int32_t *tokens;
    const uint64_t *ids;
    struct msg_order order;
    uint64_t call;
    uint32_t n = 0, bytes_most;
    size_t bytes;
    struct msg_tokenize text_of;
    struct msg_tokens tokens_of;
    switch (which) {
    case 0: (void)wire_get_cancel(data, size, &arena, &call, &em); break;
    case 1: (void)wire_get_models(data, size, &arena, &text, &em); break;
    case 2: (void)wire_get_tokenize(data, size, &arena, &text_of, &em); break;
    case 3: (void)wire_get_tokens(data, size, &arena, &tokens_of, &em); break;
    case 6: (void)wire_get_detokenize(data, size, &arena, &tokens, &n, &em); break;
    case 7: (void)wire_get_bytes(data, size, &arena, &text, &bytes, &em); break;
    case 4: (void)wire_get_ping(data, size, &arena, &ids, &n, &em); break;
    case 5: (void)wire_get_pong(data, size, &arena, &ids, &n, &bytes_most, &em); break;
    case 8: (void)wire_get_order(data, size, &arena, &order, &em); break;
    default: (void)wire_get_order_reply(data, size, &arena, &text, &em); break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    uint8_t kind = *data++;
    size--;
    switch (kind % 10) {
    case 0: ROUND_TRIP(struct msg_step, wire_get_step, wire_put_step); break;
    case 1: ROUND_TRIP(struct msg_result, wire_get_result, wire_put_result); break;
    case 2: ROUND_TRIP(struct msg_from_worker, wire_get_from_worker, wire_put_from_worker); break;
    case 3: ROUND_TRIP(struct msg_to_worker, wire_get_to_worker, wire_put_to_worker); break;
    case 4:
        sizes(data, size);
        ROUND_TRIP(struct msg_generate, wire_get_generate, wire_put_generate);
        break;
    case 5:
        ROUND_TRIP(struct msg_generate_reply, wire_get_generate_reply, wire_put_generate_reply);
        break;
    case 6: ROUND_TRIP(struct msg_call, wire_get_call, wire_put_call); break;
    case 7: ROUND_TRIP(struct msg_status, wire_get_status, wire_put_status); break;
    case 8: ROUND_TRIP(struct msg_reply, wire_get_reply, wire_put_reply); break;
    default: lists((uint8_t)(kind / 10 % 10), data, size); break;
    }
    return 0;
}
