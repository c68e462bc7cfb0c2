/* Many streams over one client, each token's time told:
 *
 *   stream_probe [--tenant NAME] ADDRESS [KEY COORDINATOR-KEY]
 *
 * begins a Generate for each line of stdin, "ID TOKENS TEMP SEED PROMPT", and prints one JSON
 * object a line for each reply, {"id", "at_ns", "first", "tokens", "text"}, in an answer's last one
 * also "drafted" and "accepted" if its tokens were guessed; and for each end, {"id", "at_ns",
 * "status", "why"}. Ends when stdin has ended and all calls have. */
#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/client/client.h"
#include "common/text/json.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE_BYTES 65536u

struct input {
    char bytes[LINE_BYTES];
    size_t n;
    bool ended;
    const char *tenant; /* of all calls, or NULL */
};

static struct json *begin_line(const uint64_t *id)
{
    struct json *j = json_new_object();
    json_put_u64(j, "id", *id);
    json_put_u64(j, "at_ns", clock_ns());
    return j;
}

static void print_line(struct json *j)
{
    json_print(j, stdout);
    (void)fflush(stdout);
    json_free(j);
}

static void on_reply(void *arg, struct client_call *call, const struct client_reply *reply)
{
    struct json *j = begin_line(arg);
    (void)call;
    json_put_int(j, "first", reply->first_index);
    json_put(j, "tokens", json_tokens(reply->tokens, reply->n_tokens));
    json_put_string(j, "text", reply->text, strlen(reply->text));
    if (reply->has_drafts) {
        json_put_u64(j, "drafted", reply->drafted);
        json_put_u64(j, "accepted", reply->accepted);
    }
    print_line(j);
}

static void on_end(void *arg, struct client_call *call, const struct client_end *end)
{
    struct json *j = begin_line(arg);
    const char *status = end->lost ? "LOST" : client_status_name(end->status);
    (void)call;
    json_put_string(j, "status", status, strlen(status));
    json_put_string(j, "why", end->text, strlen(end->text));
    print_line(j);
    mem_free(arg);
}

/* False: the line is not what the first comment says, or the call cannot begin. */
static bool start(struct client *c, const char *line, const char *tenant)
{
    struct client_request q;
    struct errmsg em = {0};
    unsigned long long id, seed;
    int prompt = 0;
    client_request_init(&q);
    if (sscanf(line, "%llu %" SCNu32 " %f %llu %n", &id, &q.max_tokens, &q.sampling.temp, &seed,
               &prompt) != 4)
        return false;
    q.sampling.seed = seed;
    q.has_seed = q.ignore_eos = true;
    q.prompt = line + prompt;
    q.tenant = tenant;
    uint64_t *own = mem_alloc(sizeof *own);
    *own = id;
    if (client_start(c, &q, NULL, on_reply, on_end, own, &em) == 0) return true;
    (void)fprintf(stderr, "%s\n", em.text);
    mem_free(own);
    return false;
}

/* Begins a call for each whole line that has come. */
static bool take_lines(struct client *c, struct input *in)
{
    ssize_t n = read(STDIN_FILENO, in->bytes + in->n, LINE_BYTES - in->n);
    in->ended = n <= 0;
    if (n > 0) in->n += (size_t)n;
    for (char *end; (end = memchr(in->bytes, '\n', in->n));) {
        size_t used = (size_t)(end - in->bytes) + 1;
        *end = 0;
        if (!start(c, in->bytes, in->tenant)) return false;
        in->n -= used;
        memmove(in->bytes, in->bytes + used, in->n);
    }
    return in->n < LINE_BYTES;
}

int main(int argc, char **argv)
{
    static struct input in;
    struct client *c;
    struct errmsg em = {0};
    if (argc > 2 && strcmp(argv[1], "--tenant") == 0) {
        in.tenant = argv[2];
        argv += 2;
        argc -= 2;
    }
    struct client_keys keys = {.file = argc == 4 ? argv[2] : NULL,
                               .coordinator = argc == 4 ? argv[3] : NULL};
    if ((argc != 2 && argc != 4) || client_open_keys(argv[1], &keys, &c, &em) < 0) {
        (void)fprintf(stderr, "stream_probe [--tenant NAME] ADDRESS [KEY COORDINATOR-KEY]: %s\n",
                      em.text);
        return 2;
    }
    bool right = true;
    size_t n_live = 0;
    while (right && (!in.ended || n_live)) {
        struct pollfd items[] = {{.fd = client_fd(c), .events = POLLIN},
                                 {.fd = in.ended ? -1 : STDIN_FILENO, .events = POLLIN}};
        int ms = client_wait_ms(c);
        (void)poll(items, 2, ms);
        if (items[1].revents) right = take_lines(c, &in);
        n_live = client_turn(c, 0);
    }
    client_close(c);
    return right ? 0 : 2;
}
