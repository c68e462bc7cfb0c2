/* Calls that a client library never makes, against a running cluster: api_probe ADDRESS prints one
 * line for each, "NAME STATUS TEXT". */
#include "common/base/buf.h"
#include "common/client/client.h"
#include "proto/wire.h"

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

int main(int argc, char **argv)
{
    struct client *c;
    struct errmsg em = {0};
    if (argc != 2 || client_open(argv[1], &c, &em) < 0) return 2;
    static const int32_t foreign[] = {5, 1 << 30};
    const struct msg_sampling plain = {.top_p = 1};
    struct msg_sampling cold = plain, wide = plain;
    cold.temp = -1;
    wide.top_p = 1.5f;
    call(c, "unknown_method", PROTO_VERSION, "Summarise", "", 0);
    call(c, "unknown_version", 99, "Status", "", 0);
    call(c, "status", PROTO_VERSION, "Status", "", 0);
    call(c, "models", PROTO_VERSION, "Models", "", 0);
    call(c, "garbage", PROTO_VERSION, "Generate", "\xff\xff\xff", 3);
    call(c, "cancel_nothing", PROTO_VERSION, "Cancel", "\x09\1\0\0\0\0\0\0\0", 9);
    generate(c, "no_prompt", &(struct msg_generate){.max_tokens = 4, .sampling = plain});
    generate(c, "temp", &(struct msg_generate){.prompt = "a", .max_tokens = 4, .sampling = cold});
    generate(c, "top_p", &(struct msg_generate){.prompt = "a", .max_tokens = 4, .sampling = wide});
    generate(c, "other_model",
             &(struct msg_generate){
                 .prompt = "a", .model = "other", .max_tokens = 4, .sampling = plain});
    generate(
        c, "resume",
        &(struct msg_generate){.prompt = "a", .from_index = 2, .max_tokens = 4, .sampling = plain});
    generate(
        c, "foreign_token",
        &(struct msg_generate){
            .prompt_tokens = foreign, .n_prompt_tokens = 2, .max_tokens = 4, .sampling = plain});
    const int32_t *ids;
    uint32_t n;
    if (client_tokenize(c, "Hello  world", false, &ids, &n, &em) == 0)
        (void)printf("tokenize 0 %u\n", n);
    client_close(c);
    return 0;
}
