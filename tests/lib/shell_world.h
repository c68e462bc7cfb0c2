/* The coordinator's shell in one process: its real turns, calls, core and text threads. Queues
 * stand for the sockets to clients and workers, one stage answers the Steps, and the time is the
 * test's.
 *
 * The linker leads the shell's calls of net_* and clock_gettime to shell_world.c (the list is in
 * tests/CMakeLists.txt). A program has one world at a time.
 *
 * What a reply holds is known by its call's number: a Generate has one below WORLD_OTHERS, a
 * Tokenize one from WORLD_TOKENIZES on, a Ping, Status or Cancel one between the two. */
#ifndef FLOTILLA_TESTS_SHELL_WORLD_H
#define FLOTILLA_TESTS_SHELL_WORLD_H

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "coordinator/shell.h"

#define WORLD_ROUTES 8u /* connections of clients: "A", "B", ... */
#define WORLD_CLIENT 11u
#define WORLD_VOCAB 30u
#define WORLD_EOS 29
#define WORLD_WIDTH 8u
#define WORLD_LONGEST 16u /* bytes of the longest token */
#define WORLD_OTHERS 900000u
#define WORLD_TOKENIZES 1000000u

/* What a connection does with replies; GONE: the client is no more. */
enum taking { TAKES, TAKES_CREDIT, REFUSES, GONE };

/* What a client has read of one call. */
struct seen {
    uint64_t call;
    uint32_t n_replies, n_tokens, n_usage, n_prompt;
    int32_t tokens[512];
    char text[1024];
    uint32_t n_chosen, n_top; /* log-probabilities, and alternatives to all tokens */
    float chosen[512], top[2048];
    int32_t top_ids[2048];
    uint32_t n_ids;    /* of a TokenizeReply */
    char pieces[1024]; /* bytes of tokens and alternatives, each in brackets */
    uint32_t cached;   /* told with the first token */
    bool open_thought;
    float embedding[WORLD_WIDTH];
    uint32_t n_embedding; /* of all replies */
    bool ended;
    enum status status;
    char message[LIMIT_TEXT_BYTES], finish[16];
    bool has_stop;
    uint32_t stop; /* the stop text that ended the answer */
    uint32_t retry_ms;
    bool restarting;
    uint64_t seed;
};

struct world {
    struct shell *s;
    struct config config;
    struct core_config core; /* as the shell made it of the cluster file */
    struct model_file model;
    uint32_t message_bytes; /* the largest frame of a client */
    uint64_t now_ns, next_tick_ns;
    enum taking taking[WORLD_ROUTES];
    uint32_t credit[WORLD_ROUTES]; /* replies that one with TAKES_CREDIT takes, then it refuses */
    uint32_t n_tried;              /* replies offered to clients' connections */
    uint32_t fail_at;              /* this reply from now on is refused, once; 0: none */
    uint32_t roles;                /* of the clients' keys */
    size_t n_waiting;              /* messages that the shell has not taken yet */
    bool paused;                   /* the stage keeps its results */
    bool silent;                   /* the worker sends nothing */
    int32_t always;  /* the token that the stage chooses, or -1: letters in their order */
    uint32_t n_open; /* sampler slots of the stage that are taken */
    uint32_t n_opened_grammars; /* requests that came to it with a grammar */
    const char *run_error;      /* the error of the next run, or NULL */
    struct seen *seen;
    size_t n_seen;
};

/* yaml: keys of the cluster file beside `model` and `workers: 1`. The replica is ready when it
 * returns. world_close frees it. */
struct world *world_open(const char *yaml);
void world_close(struct world *w);

/* One turn of the loop at the present time. */
void world_turn(struct world *w);
/* Lets the time pass, with a turn each 10 ms and a heartbeat of the worker each 200 ms. */
void world_run(struct world *w, uint64_t ms);
/* Waits (in real time) for a text to be tokenised, and takes it in a turn. */
void world_wait_text(struct world *w);

/* A message from the client of a route, 0 to WORLD_ROUTES - 1, whose instance is {client, 1}. */
void world_send(struct world *w, uint32_t route, uint64_t client, uint64_t call, const char *method,
                const void *body, size_t bytes);
void world_generate(struct world *w, uint32_t route, uint64_t client, uint64_t call,
                    uint64_t deadline_ms, const struct msg_generate *g);
void world_ping(struct world *w, uint32_t route, uint64_t client, const uint64_t *calls,
                uint32_t n);
void world_cancel(struct world *w, uint32_t route, uint64_t client, uint64_t call, uint64_t what);
void world_tokenize(struct world *w, uint32_t route, uint64_t client, uint64_t call,
                    const char *text);

/* A request for max_tokens after a prompt of n tokens, the first of them "bcd". */
struct msg_generate world_ask(uint32_t n_prompt, uint32_t max_tokens);
/* One such of WORLD_CLIENT on route 0. */
void world_ask_tokens(struct world *w, uint64_t call, uint32_t n_prompt, uint32_t max_tokens);
/* The same while a client of route 0 pings its call twice a second. */
void world_run_pinging(struct world *w, uint64_t ms, uint64_t client, uint64_t call);

/* Fails unless the call has ended with this status and a message that has these words. */
void world_expect_end(struct world *w, uint64_t call, enum status status, const char *words);
/* Fails if anything of a call is left: a slot, a request in the core, a page. */
void world_expect_idle(struct world *w);

/* What the client has read of a call so far; never NULL, valid until the next turn. */
const struct seen *world_seen(struct world *w, uint64_t call);
/* The core's status. Valid until the next call. */
const struct msg_status *world_status(struct world *w);

#endif
