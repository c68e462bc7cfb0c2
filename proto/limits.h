/* Bounds of every message, table and queue that more than one program knows. Reaching one has a
 * result that a test shows; none is a crash. */
#ifndef FLOTILLA_PROTO_LIMITS_H
#define FLOTILLA_PROTO_LIMITS_H

#define PROTO_VERSION 2u /* README.md says when it is raised */

#define LIMIT_STAGES 32u      /* workers of a replica */
#define LIMIT_WORKERS 64u     /* known at once, or twice those that serve, if that is more */
#define LIMIT_REPLICAS 1024u  /* that a status tells of */
#define LIMIT_SPARES 1024u    /* likewise; there may be more */
#define LIMIT_WINDOW 64u      /* Steps of a replica in flight */
#define LIMIT_SPEED_POINTS 8u /* numbers of rows for which a worker says what they take it */
#define LIMIT_SPEED_NS (3600u * 1000000000ull) /* that such a figure may be */
#define LIMIT_POSITION_PS 1000000000000ull     /* and that of a position */
#define LIMIT_STEP_ROWS 4096u
#define LIMIT_STEP_RUNS 256u
#define LIMIT_STEP_LOGITS 256u
#define LIMIT_STEP_PAGES (1u << 19) /* in the page tables of all its runs */
#define LIMIT_CONTEXT (1u << 20)    /* positions of a sequence */
#define LIMIT_PAGE 16u              /* positions of a KV page in service */
#define LIMIT_SEQ_PAGES (LIMIT_CONTEXT / LIMIT_PAGE)
#define LIMIT_WIDTH (1u << 20)      /* of the residual stream */
#define LIMIT_LIVE 4096u            /* requests that a coordinator has at once */
#define LIMIT_PING_CALLS 256u       /* calls that one ping may list */
#define LIMIT_DEADLINE_MS 86400000u /* a longer deadline is cut to this */
#define LIMIT_STOPS 16u
#define LIMIT_SAMPLES 16u
#define LIMIT_DRAFT 32u /* tokens of a draft */
#define LIMIT_STOP_BYTES 1024u
#define LIMIT_FIELDS 1024u /* of a Generate or Tokenize */
#define LIMIT_NAME_BYTES 64u
#define LIMIT_USER_BYTES 256u
#define LIMIT_TEXT_BYTES 512u /* of an error's text, of an endpoint */
#define LIMIT_PATH_BYTES 1024u
#define LIMIT_SLICE_TENSORS 4096u /* whose hashes an Assign carries: 32 KiB */
#define LIMIT_PROMPT_BYTES (16u << 20)
#define LIMIT_FORMAT_BYTES (1u << 20) /* of what an answer's form is to be, in JSON */
#define LIMIT_GRAMMAR_BYTES 32768u    /* of that as a grammar, on the way to the last stage */
#define LIMIT_CONSTRAINED 1024u       /* live requests that have one */
#define LIMIT_CHAT_BYTES (8u << 20)   /* of a conversation in JSON */
#define LIMIT_EMBEDS 256u             /* live requests that want an embedding */
#define LIMIT_EMBEDDED (1u << 18)     /* numbers of all embeddings of a result */
#define LIMIT_MAX_TOKENS LIMIT_CONTEXT

#define LIMIT_CONTROL_BYTES (64u << 10) /* a control message */
#define LIMIT_STEP_BYTES (16u << 20)    /* a Step's header frame */
/* A result: LIMIT_STEP_RUNS of the longest runs, and the embeddings, at 4 bytes a number. */
#define LIMIT_RESULT_BYTES ((512u << 10) + 4u * LIMIT_EMBEDDED)
#define LIMIT_CLIENT_BYTES (17u << 20) /* a client's message */
#define LIMIT_CLIENT_LEAST (4u << 20)  /* of it, what every server takes */
#define LIMIT_UNPACK_FACTOR 8u         /* memory that unpacking may take, per byte received */

#endif
