/* Calls that a client library never makes, against a running cluster: api_probe ADDRESS prints one
 * line for each, "NAME STATUS TEXT". */
#include "common/base/buf.h"
#include "common/client/tools.h"
#include "proto/wire.h"

#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

static void call(struct client *c, const char *name, uint32_t version, const char *method,
                 const void *body, size_t n)
{
    struct client_end end;
    struct errmsg em = {0};
    int rc = client_raw(c, version, method, body, n, &end, &em);
    if (rc < 0)
        (void)printf("%s error %s\n", name, em.text);
    else
        (void)printf("%s %d %s\n", name, (int)end.status, end.text);
}

static void generate(struct client *c, const char *name, const struct msg_generate *g)
{
    struct buf b = {0};
    wire_put_generate(g, &b);
    call(c, name, PROTO_VERSION, "Generate", b.data, b.len);
    buf_close(&b);
}

/* Sampling parameters one at a time, those that are served and those that are not. */
static void sampling(struct client *c)
{
    static const int32_t beyond[] = {49152}, below[] = {-1}, three[] = {35};
    static const float five[] = {5}, infinite[] = {INFINITY}, never[] = {-100}, over[] = {101};
    const struct {
        const char *name;
        struct sampling s;
    } cases[] = {
        {"temp_negative", {.temp = -1, .top_p = 1, .repetition = 1}},
        {"temp_nan", {.temp = NAN, .top_p = 1, .repetition = 1}},
        {"temp_tiny", {.temp = 1e-30f, .top_p = 1, .repetition = 1}},
        {"temp_huge", {.temp = 1e30f, .top_p = 1, .repetition = 1}},
        {"top_p_zero", {.temp = 1, .top_p = 0, .repetition = 1}},
        {"top_p_negative", {.temp = 1, .top_p = -0.1f, .repetition = 1}},
        {"top_p_above", {.temp = 1, .top_p = 1.1f, .repetition = 1}},
        {"top_k_beyond", {.temp = 1, .top_p = 1, .top_k = 49153, .repetition = 1}},
        {"top_k_huge", {.temp = 1, .top_p = 1, .top_k = 9999999, .repetition = 1}},
        {"min_p_above", {.temp = 1, .top_p = 1, .min_p = 2, .repetition = 1}},
        {"repetition_zero", {.top_p = 1, .repetition = 0}},
        {"repetition_nan", {.top_p = 1, .repetition = NAN}},
        {"repetition_huge", {.top_p = 1, .repetition = 11}},
        {"presence_above", {.top_p = 1, .repetition = 1, .presence = 2.1f}},
        {"presence_nan", {.top_p = 1, .repetition = 1, .presence = NAN}},
        {"frequency_below", {.top_p = 1, .repetition = 1, .frequency = -2.1f}},
        {"bias_beyond",
         {.top_p = 1, .repetition = 1, .n_bias = 1, .bias_ids = beyond, .bias = five}},
        {"bias_below", {.top_p = 1, .repetition = 1, .n_bias = 1, .bias_ids = below, .bias = five}},
        {"bias_infinite",
         {.top_p = 1, .repetition = 1, .n_bias = 1, .bias_ids = three, .bias = infinite}},
        {"bias_over", {.top_p = 1, .repetition = 1, .n_bias = 1, .bias_ids = three, .bias = over}},
        {"bias_never",
         {.top_p = 1, .repetition = 1, .n_bias = 1, .bias_ids = three, .bias = never}},
        {"logprobs_none", {.top_p = 1, .repetition = 1, .logprobs = true}},
        {"logprobs_20", {.top_p = 1, .repetition = 1, .logprobs = true, .top_logprobs = 20}},
        {"logprobs_21", {.top_p = 1, .repetition = 1, .logprobs = true, .top_logprobs = 21}},
        {"logprobs_huge", {.top_p = 1, .repetition = 1, .logprobs = true, .top_logprobs = 100000}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        generate(
            c, cases[i].name,
            &(struct msg_generate){.prompt = "Hello", .max_tokens = 4, .sampling = cases[i].s});
}

/* A call of a poll loop; one is cancelled on the way. */
struct polled {
    struct client_call *call;
    uint32_t n_tokens, cancel_at; /* cancel_at 0: never */
    struct client_end end;
};

static void on_reply(void *arg, struct client_call *call, const struct client_reply *reply)
{
    struct polled *p = arg;
    p->n_tokens += reply->n_tokens;
    if (p->cancel_at && p->n_tokens >= p->cancel_at) client_cancel(call);
}

static void on_end(void *arg, struct client_call *call, const struct client_end *end)
{
    struct polled *p = arg;
    (void)call;
    p->end = *end;
}

/* Two calls at once, waited for by poll(2) alone. */
static void poll_loop(const char *address)
{
    struct client *c;
    struct errmsg em = {0};
    struct polled whole = {.n_tokens = 0}, cut = {.cancel_at = 4};
    struct client_request q;
    int waits = 0;
    if (client_open(address, &c, &em) < 0) return;
    client_request_init(&q);
    q.prompt = "Hello";
    q.ignore_eos = true;
    q.max_tokens = 24;
    int rc = client_start(c, &q, &whole.call, on_reply, on_end, &whole, &em);
    q.max_tokens = 900;
    if (rc == 0) rc = client_start(c, &q, &cut.call, on_reply, on_end, &cut, &em);
    do {
        struct pollfd p = {.fd = client_fd(c), .events = POLLIN};
        int ms = client_wait_ms(c);
        if (ms) (void)poll(&p, 1, ms);
        waits += ms != 0;
    } while (client_turn(c, 0) && rc == 0);
    client_close(c);
    (void)printf("poll_loop %d %u tokens%s\n", (int)whole.end.status, whole.n_tokens,
                 waits < 1000 ? "" : ", and it spins");
    (void)printf("poll_loop_cancelled %d %s\n", (int)cut.end.status,
                 cut.n_tokens < 900 ? "early" : "late");
}

int main(int argc, char **argv)
{
    struct client *c;
    struct errmsg em = {0};
    if (argc != 2 || client_open(argv[1], &c, &em) < 0) return 2;
    static const int32_t foreign[] = {5, 1 << 30};
    const struct sampling plain = {.top_p = 1, .repetition = 1};
    call(c, "unknown_method", PROTO_VERSION, "Summarise", "", 0);
    call(c, "unknown_version", 99, "Status", "", 0);
    call(c, "status", PROTO_VERSION, "Status", "", 0);
    call(c, "models", PROTO_VERSION, "Models", "", 0);
    call(c, "garbage", PROTO_VERSION, "Generate", "\xff\xff\xff", 3);
    call(c, "cancel_nothing", PROTO_VERSION, "Cancel", "\x09\1\0\0\0\0\0\0\0", 9);
    generate(c, "no_prompt", &(struct msg_generate){.max_tokens = 4, .sampling = plain});
    generate(c, "other_model",
             &(struct msg_generate){
                 .prompt = "a", .model = "other", .max_tokens = 4, .sampling = plain});
    generate(
        c, "resume",
        &(struct msg_generate){.prompt = "a", .from_index = 2, .max_tokens = 4, .sampling = plain});
    generate(c, "received",
             &(struct msg_generate){.prompt = "a",
                                    .received = foreign,
                                    .n_received = 1,
                                    .from_index = 1,
                                    .max_tokens = 4,
                                    .sampling = plain});
    generate(c, "received_foreign",
             &(struct msg_generate){
                 .prompt = "a", .received = foreign, .n_received = 2, .sampling = plain});
    generate(c, "samples_17",
             &(struct msg_generate){.prompt = "a", .samples = 17, .sampling = plain});
    generate(c, "priority_4",
             &(struct msg_generate){
                 .prompt = "a", .has_priority = true, .priority = 4, .sampling = plain});
    generate(
        c, "foreign_token",
        &(struct msg_generate){
            .prompt_tokens = foreign, .n_prompt_tokens = 2, .max_tokens = 4, .sampling = plain});
    const int32_t *ids;
    uint32_t n;
    if (client_tokenize(c, "Hello  world", false, &ids, &n, &em) == 0)
        (void)printf("tokenize 0 %u\n", n);
    sampling(c);
    client_close(c);
    poll_loop(argv[1]);
    return 0;
}
