/* `chat`: a conversation with a cluster, or with a model in this process, at a terminal or from a
 * pipe. */
#include "coordinator/cli/cmd.h"
#include "coordinator/cli/gen.h"
#include "coordinator/cli/line.h"

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/text/json.h"
#include "coordinator/gateway/split.h"
#include "proto/limits.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

/* Without --ctx: keys and values of a longer one may take more memory than the model. */
#define LOCAL_CTX 4096u

struct session {
    const struct gen_options *o;
    int interrupts; /* a signalfd for SIGINT */
    struct line_reader *lines;
    struct client *client; /* one of these two answers */
    struct gen_local *local;
    struct buf system;     /* its message; empty: none */
    struct json *messages; /* what was said, without the system's */
    bool failed;           /* an answer did */
};

struct answer {
    struct gen_result r;
    uint64_t start_ns, first_ns, last_ns; /* of a cluster's, like what follows */
    bool ended;
    struct client_end end;
};

/* ---- an answer ---- */

static void print_text(void *arg, const char *text, size_t n)
{
    (void)arg;
    (void)fwrite(text, 1, n, stdout);
    (void)fflush(stdout);
}

static void on_reply(void *arg, struct client_call *call, const struct client_reply *reply)
{
    struct answer *a = arg;
    size_t len = strlen(reply->text);
    (void)call;
    if (reply->has_usage) { /* again, from a coordinator that took the answer over */
        a->r.prompt.n = 0;
        for (uint32_t i = 0; i < reply->n_prompt_tokens; i++)
            tokens_push(&a->r.prompt, reply->prompt_tokens[i]);
        a->r.open_thought = reply->open_thought;
    }
    if (reply->n_tokens) {
        a->last_ns = clock_ns();
        if (!a->first_ns) a->first_ns = a->last_ns;
        if (reply->first_index == 0) a->r.cached = reply->cached;
    }
    for (uint32_t i = 0; i < reply->n_tokens; i++) tokens_push(&a->r.tokens, reply->tokens[i]);
    (void)buf_append(&a->r.text, reply->text, len);
    print_text(NULL, reply->text, len);
    if (reply->finish_reason) a->r.finish_reason = reply->finish_reason;
}

static void on_end(void *arg, struct client_call *call, const struct client_end *end)
{
    struct answer *a = arg;
    (void)call;
    a->ended = true;
    a->end = *end;
}

/* Whether ^C was pressed since this was asked last. */
static bool take_interrupts(const struct session *s)
{
    struct signalfd_siginfo info;
    bool any = false;
    while (read(s->interrupts, &info, sizeof info) == (ssize_t)sizeof info) any = true;
    return any;
}

/* Until the answer's end, or the call's after ^C. */
static void wait_answer(const struct session *s, struct client_call *call, struct answer *a)
{
    while (!a->ended) {
        struct pollfd fds[] = {{.fd = client_fd(s->client), .events = POLLIN},
                               {.fd = s->interrupts, .events = POLLIN}};
        (void)poll(fds, 2, client_wait_ms(s->client));
        if (take_interrupts(s) && !a->r.interrupted) {
            a->r.interrupted = true;
            client_cancel(call);
        }
        (void)client_turn(s->client, 0);
    }
}

static int ask_cluster(struct session *s, const char *conversation, struct answer *a,
                       struct errmsg *em)
{
    struct client_call *call;
    struct client_request q;
    client_request_init(&q);
    q.chat = conversation;
    q.max_tokens = s->o->tokens;
    q.sampling = s->o->sampling;
    q.has_seed = s->o->seed_given;
    a->start_ns = clock_ns();
    int rc = client_start(s->client, &q, &call, on_reply, on_end, a, em);
    if (rc < 0) return rc;
    wait_answer(s, call, a);
    if (a->first_ns) gen_result_times(&a->r, a->start_ns, a->first_ns, a->last_ns);
    if (a->r.interrupted || (!a->end.lost && a->end.status == STATUS_OK)) return 0;
    return err_set(em, a->end.lost ? a->end.lost : ERR_CLOSED, "%s%s%s",
                   a->end.lost ? "" : client_status_name(a->end.status), a->end.lost ? "" : ": ",
                   a->end.text);
}

static bool is_interrupted(void *arg)
{
    return take_interrupts(arg);
}

static int ask_local(struct session *s, const char *conversation, struct answer *a,
                     struct errmsg *em)
{
    struct gen_options o = *s->o;
    o.conversation = conversation;
    o.interrupted = is_interrupted;
    o.interrupted_arg = s;
    return gen_local_next(s->local, &o, print_text, NULL, &a->r, em);
}

static int ask(struct session *s, const char *conversation, struct answer *a, struct errmsg *em)
{
    (void)take_interrupts(s); /* those of before have nothing to interrupt */
    return (s->local ? ask_local : ask_cluster)(s, conversation, a, em);
}

static void print_figures(const struct answer *a)
{
    const struct gen_result *r = &a->r;
    (void)printf("\n");
    (void)fflush(stdout);
    (void)fprintf(stderr,
                  "[%zu tokens, first after %.0f ms, %.1f tokens/s; %" PRIu32
                  " of %zu prompt tokens were cached%s]\n",
                  r->tokens.n, r->ttft_ms, r->tokens_per_s, r->cached, r->prompt.n,
                  r->interrupted                      ? "; interrupted"
                  : r->finish_reason == FINISH_LENGTH ? "; cut at the limit"
                                                      : "");
}

/* ---- the conversation ---- */

static struct json *new_message(const char *role, const char *text, size_t n)
{
    struct json *o = json_new_object();
    json_put_string(o, "role", role, strlen(role));
    json_put_string(o, "content", text ? text : "", n);
    return o;
}

static void write_conversation(const struct session *s, const struct json *next, struct buf *to)
{
    struct json *o = json_new_object(), *list = json_new_array();
    size_t n = 0;
    if (s->system.len) json_add(list, new_message("system", s->system.data, s->system.len));
    (void)json_count(s->messages, &n);
    for (size_t i = 0; i < n; i++) json_add(list, json_share(json_at(s->messages, i)));
    json_add(list, json_share(next));
    json_put(o, "messages", list);
    json_write(o, to);
    json_free(o);
}

/* An answer as the template is to see it: reasoning apart, as over HTTP. */
static struct json *answer_message(const struct answer *a)
{
    struct split split;
    struct json *o;
    split_init(&split, true, a->r.open_thought, NULL);
    split_push(&split, a->r.text.data ? a->r.text.data : "", a->r.text.len);
    split_finish(&split);
    if (split.n_calls) { /* of tools that there are not */
        o = new_message("assistant", a->r.text.data, a->r.text.len);
    } else {
        o = new_message("assistant", split.content.data, split.content.len);
        if (split.reasoning.len)
            json_put_string(o, "reasoning_content", split.reasoning.data, split.reasoning.len);
    }
    split_close(&split);
    return o;
}

/* A message without an answer is not part of the conversation. */
static void say(struct session *s, const char *text, size_t n)
{
    struct errmsg em = {0};
    struct answer a = {.start_ns = 0};
    struct buf conversation = {0};
    struct json *message = new_message("user", text, n);
    write_conversation(s, message, &conversation);
    int rc = ask(s, conversation.data, &a, &em);
    if (rc == 0) print_figures(&a);
    if (rc < 0) {
        s->failed = true;
        (void)printf("%s", a.r.text.len ? "\n" : "");
        (void)fflush(stdout);
        (void)cmd_fail("chat", rc, &em);
    }
    if (rc == 0 && (a.r.text.len || !a.r.interrupted)) {
        json_add(s->messages, json_share(message));
        json_add(s->messages, answer_message(&a));
    }
    json_free(message);
    buf_close(&conversation);
    gen_result_close(&a.r);
}

/* ---- commands ---- */

static void print_help(void)
{
    (void)fprintf(stderr, "/reset          forget the conversation\n"
                          "/system [TEXT]  what the system says first; nothing without TEXT\n"
                          "/help           this\n"
                          "A line that ends in \\ goes on in the next. A space before / makes it "
                          "text.\n"
                          "^C interrupts the answer, ^D ends.\n");
}

static void reset(struct session *s)
{
    json_free(s->messages);
    s->messages = json_new_array();
}

static void set_system(struct session *s, const char *text)
{
    buf_close(&s->system);
    (void)buf_append(&s->system, text, strlen(text));
}

/* What follows a command's word, or NULL: it is another. */
static const char *after(const char *text, const char *word)
{
    size_t n = strlen(word);
    if (strncmp(text, word, n) != 0 || (text[n] && text[n] != ' ')) return NULL;
    text += n;
    while (*text == ' ') text++;
    return text;
}

static void run_command(struct session *s, const char *text)
{
    const char *rest;
    if ((rest = after(text, "/system"))) {
        set_system(s, rest);
    } else if ((rest = after(text, "/reset")) && !*rest) {
        reset(s);
    } else if ((rest = after(text, "/help")) && !*rest) {
        print_help();
    } else {
        (void)fprintf(stderr, "flotilla chat: '%.40s' is no command; /help lists them\n", text);
        s->failed |= !line_is_edited(s->lines);
    }
}

/* ---- messages ---- */

/* Reads lines up to one that does not end in a backslash. */
static int read_message(const struct session *s, struct buf *to, enum line_kind *ret,
                        struct errmsg *em)
{
    for (const char *prompt = "> ";; prompt = ". ") {
        struct buf line = {0};
        int rc = line_read(s->lines, prompt, &line, ret, em);
        bool goes_on = rc == 0 && line.len && line.data[line.len - 1] == '\\';
        if (rc == 0 && buf_append(to, line.data, line.len - goes_on) < 0)
            rc = err_set(em, ERR_LIMIT, "a message has more than %zu bytes", to->max);
        if (rc == 0 && goes_on) rc = buf_append(to, "\n", 1);
        buf_close(&line);
        if (*ret == LINE_END && to->len) *ret = LINE_TEXT; /* the end is found again */
        if (rc < 0 || !goes_on) return rc;
    }
}

static bool is_blank(const char *text)
{
    return text[strspn(text, " \t\n")] == 0;
}

static int converse(struct session *s, struct errmsg *em)
{
    enum line_kind kind = LINE_TEXT;
    while (kind != LINE_END) {
        struct buf text = {.max = LIMIT_CHAT_BYTES / 2};
        int rc = read_message(s, &text, &kind, em);
        bool command = text.len && text.data[0] == '/' && !strchr(text.data, '\n');
        bool told = rc == 0 && kind == LINE_TEXT && text.len && !is_blank(text.data);
        if (told) line_remember(s->lines, text.data);
        if (told && command)
            run_command(s, text.data);
        else if (told)
            say(s, text.data, text.len);
        buf_close(&text);
        if (rc == ERR_IO) return rc;
        if (rc < 0) s->failed = cmd_fail("chat", rc, em) != CMD_OK;
        if (kind == LINE_INTERRUPTED && !line_is_edited(s->lines)) return 0;
    }
    return 0;
}

/* Before any thread: theirs is this mask. */
static int open_interrupts(int *ret, struct errmsg *em)
{
    sigset_t set;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGINT);
    (void)pthread_sigmask(SIG_BLOCK, &set, NULL);
    *ret = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return *ret < 0 ? err_set(em, ERR_IO, "signalfd: %s", strerror(errno)) : 0;
}

struct opening {
    struct session *s;
    const char *name; /* of the model */
    int rc;
    struct errmsg *em;
};

static void *open_model(void *arg)
{
    struct opening *o = arg;
    struct session *s = o->s;
    o->name = s->o->model;
    if (s->o->model) {
        o->rc = gen_local_open(s->o, &s->local, o->em);
    } else {
        o->rc = client_open_keys(s->o->cluster, &s->o->keys, &s->client, o->em);
        if (o->rc == 0) o->rc = client_models(s->client, &o->name, o->em);
    }
    return NULL;
}

/* Loading may take long, and ^C ends it: SIGINT is blocked in the thread that loads, and in all
 * that it starts, but meanwhile not in this one. */
static int wait_model(struct session *s, const char **ret_name, struct errmsg *em)
{
    struct opening o = {.s = s, .em = em};
    pthread_t thread;
    sigset_t set;
    if (pthread_create(&thread, NULL, open_model, &o) != 0)
        return err_set(em, ERR_IO, "no thread to load in");
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGINT);
    (void)pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    (void)pthread_join(thread, NULL);
    (void)pthread_sigmask(SIG_BLOCK, &set, NULL);
    *ret_name = o.name;
    return o.rc;
}

static int run(const struct gen_options *o, bool *ret_failed, struct errmsg *em)
{
    struct session s = {.o = o, .interrupts = -1, .messages = json_new_array()};
    const char *name = "";
    int rc = open_interrupts(&s.interrupts, em);
    if (rc == 0) rc = line_open(s.interrupts, LIMIT_CHAT_BYTES / 2, &s.lines, em);
    if (rc == 0) rc = wait_model(&s, &name, em);
    if (rc == 0) {
        if (o->system) set_system(&s, o->system);
        if (line_is_edited(s.lines)) (void)fprintf(stderr, "%s; /help helps, ^D ends\n", name);
        rc = converse(&s, em);
    }
    *ret_failed = s.failed && s.lines && !line_is_edited(s.lines);
    client_close(s.client);
    gen_local_close(s.local);
    line_close(s.lines);
    if (s.interrupts >= 0) (void)close(s.interrupts);
    buf_close(&s.system);
    json_free(s.messages);
    return rc;
}

/* An option that the chosen form would not look at is refused. */
static int check(const struct gen_options *o, struct errmsg *em)
{
    if (!o->model == !o->cluster) return err_set(em, ERR_CONF, "needs --cluster or --model");
    if (o->cluster && (o->threads || o->ctx || o->isa || o->kv || o->pre))
        return err_set(em, ERR_CONF,
                       "--threads, --ctx, --isa, --kv and --pre are the cluster's own: they go "
                       "with --model");
    if (o->model && (o->keys.file || o->keys.coordinator))
        return err_set(em, ERR_CONF, "--key and --coordinator-key go with --cluster");
    return sampling_check(&o->sampling, em) < 0 ? ERR_CONF : 0;
}

int cmd_chat(int argc, char **argv)
{
    struct gen_options o = {.tokens = LIMIT_MAX_TOKENS, .sampling = SAMPLING_PLAIN, .chunk = 512};
    struct sampling *s = &o.sampling;
    s->temp = 1; /* as over HTTP */
    const struct opt table[] = {
        {"--cluster", 0, OPT_STRING, &o.cluster, 0, 0, NULL,
         "ADDR  a running cluster, e.g. tcp://127.0.0.1:7070"},
        CMD_OPT_KEYS(&o.keys),
        {"--model", 'm', OPT_STRING, &o.model, 0, 0, NULL,
         "FILE  a GGUF file instead: the engine alone, in this process"},
        {"--system", 0, OPT_STRING, &o.system, 0, 0, NULL,
         "TEXT  what the system says before the conversation"},
        {"--tokens", 'n', OPT_U32, &o.tokens, 1, LIMIT_MAX_TOKENS, NULL,
         "N  most tokens of an answer (all that the context holds)"},
        {"--temp", 0, OPT_F32, &s->temp, 0, 1e6, NULL,
         "T  temperature (1); 0: the likeliest token"},
        {"--top-k", 0, OPT_U32, &s->top_k, 0, UINT32_MAX, NULL,
         "K  choose among the K likeliest (0: all)"},
        {"--top-p", 0, OPT_F32, &s->top_p, 0, 1, NULL,
         "P  choose among the likeliest tokens that have probability P together (1)"},
        {"--min-p", 0, OPT_F32, &s->min_p, 0, 1, NULL,
         "P  drop tokens less probable than P x the likeliest (0)"},
        {"--seed", 0, OPT_U64, &s->seed, 0, 0, &o.seed_given,
         "S  same seed, same answers; up to 2^64-1"},
        {"--ctx", 0, OPT_U32, &o.ctx, 1, 1 << 30, NULL,
         "N  most tokens of the conversation (4096, or the model's limit; --model)"},
        CMD_OPT_THREADS(&o.threads),
        CMD_OPT_ISA(&o.isa),
        CMD_OPT_KV(&o.kv),
        CMD_OPT_PRE(&o.pre),
        {0},
    };
    size_t n_rest;
    int status;
    if (!cmd_options("flotilla chat (--cluster ADDR | --model FILE) [options]",
                     "  flotilla chat --cluster tcp://127.0.0.1:7070 --system 'Be brief.'\n"
                     "  echo 'Hello' | flotilla chat --cluster tcp://127.0.0.1:7070 --temp 0\n",
                     table, argc, argv, NULL, 0, &n_rest, &status))
        return status;
    struct errmsg em = {0};
    bool failed = false;
    int rc = check(&o, &em);
    if (o.model && !o.ctx) o.ctx = LOCAL_CTX;
    if (rc == 0) rc = run(&o, &failed, &em);
    if (rc < 0) return cmd_fail("chat", rc, &em);
    return failed ? CMD_FAILED : CMD_OK;
}
