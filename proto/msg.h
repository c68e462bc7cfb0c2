/* Plain structures of every message: what cores and shells see. cluster.proto and client.proto say
 * what fields mean; here is what they do not say. Pointers inside a decoded message point into the
 * arena it was decoded with; pointers inside one to be encoded are borrowed. */
#ifndef FLOTILLA_PROTO_MSG_H
#define FLOTILLA_PROTO_MSG_H

#include "common/base/key.h"
#include "common/base/sampling.h"
#include "proto/api.h"
#include "proto/limits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct instance {
    uint64_t hi, lo;
};

static inline bool instance_eq(struct instance a, struct instance b)
{
    return a.hi == b.hi && a.lo == b.lo;
}

struct epoch {
    uint64_t incarnation;
    uint32_t replica, generation;
};

static inline bool epoch_eq(struct epoch a, struct epoch b)
{
    return a.incarnation == b.incarnation && a.replica == b.replica && a.generation == b.generation;
}

/* Guesses at tokens, and what became of them. */
struct msg_draft_status {
    uint64_t runs;              /* of guesses, that came back, */
    uint64_t drafted, accepted; /* the guesses in them; those that were right */
    uint64_t early;             /* runs that were sent before the answer to the last had come */
    uint64_t wasted;            /* rows that yielded no token */
    /* Of a replica: time between tokens of an answer while its next ones were guessed, and while
     * none were, and how many tokens that was. */
    uint64_t on_ns, on_tokens, off_ns, off_tokens;
};

/* ---- data plane ---- */

/* What the last stage is told of a request before it first chooses a token for it. */
struct msg_open {
    struct sampling sampling;
    uint32_t boundary;    /* the first position that is not the prompt's */
    const void *grammar;  /* of the answer: grammar_bytes, at most LIMIT_GRAMMAR_BYTES */
    size_t grammar_bytes; /* 0: it is free */
};

/* Log-probabilities beside n tokens. */
struct msg_logprobs {
    const float *chosen; /* n, or NULL: they were not asked for */
    uint32_t n_top;      /* alternatives of each token */
    const int32_t *top_ids;
    const float *top; /* n x n_top */
};

enum run_kind { RUN_PREFILL, RUN_DECODE, RUN_VERIFY, RUN_PROBE };

struct msg_run {
    uint64_t request;
    uint32_t attempt, sample;
    enum run_kind kind;
    uint32_t first_pos, n_rows, n_logits, n_pages;
    uint32_t n_guesses;    /* of the rows, the last: their tokens are guesses */
    uint32_t embed;        /* positions of the prompt whose embedding is wanted; 0: none is */
    const int32_t *tokens; /* n_rows */
    const uint32_t *pages; /* n_pages */
    /* Of layers with a window, from page window_first of the table on: up to its end, or none. */
    uint32_t window_first, n_window_pages;
    const uint32_t *window_pages;
    bool has_open;
    struct msg_open open;
};

/* Whether the result has an embedding for it: it is the last run of its prompt. */
static inline bool msg_run_embeds(const struct msg_run *r)
{
    return r->embed && r->first_pos + r->n_rows == r->embed;
}

struct msg_timing {
    uint32_t stage;
    uint64_t compute_ns, idle_ns;
};

struct msg_step {
    struct epoch epoch;
    uint64_t number;
    uint32_t rows, width;
    uint64_t frame_bytes;
    uint32_t n_runs, n_closed, n_timings;
    const struct msg_run *runs;
    const uint64_t *closed;
    struct msg_timing timings[LIMIT_STAGES];
};

struct msg_run_result {
    uint64_t request;
    uint32_t attempt, sample, first_pos, n_tokens;
    const int32_t *tokens;
    bool dead;
    const char *error; /* "" or NULL: none */
    struct msg_logprobs logprobs;
    const float *embedding; /* n_embedding, with the last run of a prompt that wants one */
    uint32_t n_embedding;
};

struct msg_result {
    struct epoch epoch;
    uint64_t number, digest;
    uint32_t n_runs, n_timings;
    const struct msg_run_result *runs;
    struct msg_timing timings[LIMIT_STAGES];
};

/* ---- control plane ---- */

enum from_worker {
    FROM_HELLO,
    FROM_LOAD_PROGRESS,
    FROM_READY,
    FROM_LINKED,
    FROM_HEARTBEAT,
    FROM_FAULT,
    FROM_GOODBYE,
    FROM_SPEED
};

struct msg_holding {
    uint64_t model_digest;
    uint32_t layer_first, layer_last;
};

/* Bytes. machine and group: 0 where unknown, or without limit. */
struct msg_memory {
    uint64_t machine, machine_free, group, group_free, held;
    uint32_t held_pages;
};

struct msg_hello {
    char name[LIMIT_NAME_BYTES], isa[16];
    uint32_t threads, pid;
    bool holds, verifies, embeds;
    struct msg_holding holding;
};

struct msg_heartbeat {
    uint64_t step_received, step_done;
    uint64_t read_bytes, resident_bytes, weights_bytes, kv_bytes;
    uint64_t rows, activation_bytes_in, activation_bytes_out, messages_dropped;
    uint64_t moves;       /* counts what the compute thread does: layers, loads, idle turns */
    uint64_t cpu_wait_ns; /* for how long its threads were ready to run without a CPU, summed up */
};

/* What so many rows take a worker. */
struct msg_speed_point {
    uint32_t rows;
    uint64_t ns;
};

/* By ascending rows: one layer of layer_bytes, for rows of a Step; the output head and the choice
 * of a token, for rows of logits. */
struct msg_speed {
    uint64_t header_digest; /* of the model; with the next two what was measured */
    uint32_t kv_type, threads;
    uint32_t n_layer, n_head; /* both 0: nothing was measured, and msg_from_worker.text says why */
    struct msg_speed_point layer[LIMIT_SPEED_POINTS], head[LIMIT_SPEED_POINTS];
    uint64_t layer_bytes;
    uint32_t depth;       /* positions that each row of the points attends to */
    uint64_t position_ps; /* a layer and row take longer for each position more */
};

struct msg_from_worker {
    uint32_t version; /* any: the receiver refuses a foreign one by name */
    struct instance instance;
    enum from_worker type;
    bool has_epoch;
    struct epoch epoch; /* load progress, ready, linked, heartbeat, fault */
    struct msg_hello hello;
    struct msg_memory memory;         /* hello, heartbeat */
    uint64_t bytes_done, bytes_total; /* load progress */
    char endpoint[LIMIT_TEXT_BYTES];  /* ready */
    struct msg_heartbeat heartbeat;
    bool downstream;             /* fault */
    char text[LIMIT_TEXT_BYTES]; /* fault, speed */
    struct msg_speed speed;
};

enum to_worker { TO_ASSIGN, TO_CONNECT, TO_REFUSE, TO_WHO, TO_ALIVE, TO_CALIBRATE, TO_LEAVE };

struct msg_assign {
    char model_path[LIMIT_PATH_BYTES];
    uint64_t model_digest;         /* of header and tensors */
    uint64_t header_digest;        /* of the header alone */
    const uint64_t *tensor_hashes; /* n_tensors of the slice, in the order of eng_slice_tensors */
    uint32_t n_tensors;            /* at most LIMIT_SLICE_TENSORS */
    uint32_t ctx;                  /* positions of a sequence */
    uint32_t layer_first, layer_last, kv_type, n_pages, rows_max, logits_max, window;
    uint32_t n_window_pages; /* of layers with a window, at most n_pages; 0: n_pages */
    uint32_t threads;        /* at most so many; 0: as many as the worker has */
    bool plaintext;
    struct key upstream; /* of the stage before, or of the coordinator; not set: no keys */
};

struct msg_calibrate {
    char model_path[LIMIT_PATH_BYTES];
    uint64_t header_digest;
    uint32_t kv_type, threads; /* threads: as in an assignment */
};

struct msg_to_worker {
    uint32_t version;
    enum to_worker type;
    struct epoch epoch; /* assign, connect */
    struct msg_assign assign;
    struct msg_calibrate calibrate;
    char text[LIMIT_TEXT_BYTES]; /* connect: endpoint; refuse, leave: why */
    struct key key;              /* connect: of that endpoint; not set: no keys */
};

/* ---- clients ---- */

struct msg_call {
    uint32_t version;
    char method[32];
    struct instance client;
    uint64_t call, deadline_ms;
};

struct msg_reply {
    uint32_t version; /* the sender's; encoding writes PROTO_VERSION whatever is here */
    uint64_t call;
    bool end;
    bool restarting; /* ended because this coordinator stops: the next one goes on with it */
    enum status status;
    char message[LIMIT_TEXT_BYTES];
    uint32_t retry_ms;
};

struct msg_generate {
    const char *prompt; /* NUL-terminated; prompt_len bytes */
    size_t prompt_len;
    const int32_t *prompt_tokens;
    uint32_t n_prompt_tokens;
    const char *chat;   /* a conversation in JSON, or NULL */
    const char *format; /* of the answer, in JSON, or NULL */
    const char *model;  /* "" or a name */
    bool special, ignore_eos, has_seed, pieces;
    bool embed; /* no answer, but the prompt's embedding */
    uint32_t max_tokens;
    struct sampling sampling;
    const char *stops[LIMIT_STOPS];
    uint32_t n_stops;
    uint32_t n_received, from_index;
    const int32_t *received;
    const char *tenant; /* "" or a name */
    const char *user;   /* "" or a name */
    bool has_priority;
    enum priority priority; /* normal without */
    uint32_t samples;       /* 1 to LIMIT_SAMPLES; when encoded, 0 means 1 */
    const char *draft;      /* "" or the kind of its drafts, any text */
    bool has_draft_length;
    uint32_t draft_length; /* any number */
};

/* What a Generate carries, counted without unpacking it (wire_size_generate). */
struct msg_generate_size {
    size_t prompt_bytes;
    size_t n_prompt_tokens, n_received;
};

struct msg_tokenize {
    const char *text; /* "" where there is a chat */
    bool special;
    const char *chat; /* a conversation in JSON, or NULL */
};

struct msg_tokens {
    const int32_t *tokens;
    uint32_t n;
    const char *prompt; /* the conversation, rendered; or NULL */
};

struct msg_generate_reply {
    uint32_t sample, first_index, n_tokens;
    const int32_t *tokens;
    const char *text;                 /* NUL-terminated */
    enum finish_reason finish_reason; /* in the last reply; */
    bool has_stop;                    /* with FINISH_STOP: a stop text ended the answer, */
    uint32_t stop;                    /* which has this place among the request's */
    struct msg_logprobs logprobs;
    uint64_t queued_us; /* from submission to the first row; with the first token, like the next */
    uint32_t cached;    /* positions of the prompt that were found computed */
    const char *pieces; /* bytes of the tokens, then of logprobs.top_ids, one behind the other; */
    uint32_t n_pieces;  /* all of those, or 0: they were not asked for */
    const uint32_t *piece_bytes; /* n_pieces */
    bool has_usage;
    const int32_t *prompt_tokens;
    uint32_t n_prompt_tokens;
    uint64_t seed;
    bool open_thought; /* the conversation's prompt ends within <think> */
    bool has_draft;    /* in the last reply: its tokens were guessed, and this became of it */
    struct msg_draft_status draft;
    const float *embedding; /* n_embedding; in the last reply, where it was asked for */
    uint32_t n_embedding;
};

/* An admin's. */
struct msg_order {
    char name[LIMIT_NAME_BYTES]; /* of a worker or a replica; "" */
    bool has_limit;
    uint32_t limit_ms; /* that running answers have to end, at most LIMIT_DEADLINE_MS */
};

struct msg_worker_status {
    const char *name, *state, *isa;
    uint32_t pid, threads;
    uint32_t layer_first, layer_last; /* first > last: a spare that holds none */
    struct msg_heartbeat heartbeat;
    uint64_t load_done, load_total;
    uint64_t compute_ns, idle_ns;          /* as its Steps told */
    uint64_t predicted_ns, timed_steps;    /* compute_ns as predicted; of how many Steps it is */
    uint64_t row_ns, streams_ns, chunk_ns; /* predicted of one Step: client.proto says of which */
    double cpu_waiting; /* share of the time that a thread of it waits for CPU, of late */
    uint32_t faults;    /* that the coordinator remembers of its name */
};

/* The index of cached prefixes, and what it saved. */
struct msg_cache_status {
    uint32_t pages_cached, pages_held;
    uint32_t windowed_cached, windowed_held; /* pages of layers with a window, likewise */
    uint64_t positions_unused;               /* of pages_held: for which no row was issued yet */
    uint64_t lookups, hits; /* requests that looked for their prompt; those that found some of it */
    uint64_t tokens_saved, tokens_computed; /* of prompts and replays: found; computed */
    uint64_t evicted, preemptions;
};

struct msg_replica_status {
    const char *name, *state, *why;
    bool ready;       /* it takes requests */
    bool rebalancing; /* it is to be planned anew, or is */
    uint32_t generation, n_workers, pages_total, pages_free, sequences_max, ctx;
    uint32_t windowed_total;  /* 0: layers with a window have no pages of their own */
    uint32_t running, queued; /* requests: that run here, that wait for it */
    uint64_t steps, steps_mixed;
    /* Of Steps' round trips, beside the stages' computing: on the way, and behind other Steps. */
    uint64_t wire_ns, queue_ns;
    struct msg_cache_status cache;
    struct msg_draft_status draft;
    const struct msg_worker_status *workers; /* n_workers, by stage */
};

struct msg_status {
    bool ready;
    const char *model;
    uint32_t running, queued;
    uint64_t messages_dropped;
    uint32_t n_replicas;
    const struct msg_replica_status *replicas;
    uint32_t n_spares; /* workers without a stage */
    const struct msg_worker_status *spares;
};

#endif
