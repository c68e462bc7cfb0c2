/* Messages to bytes and back: the only module that knows protobuf-c. Decoding validates: what comes
 * out of here is within limits.h and consistent in itself, or it is ERR_PROTO with a text that
 * names the field. What takes the receiver's state to check (epochs, page counts) the receiver
 * checks. */
#ifndef FLOTILLA_PROTO_WIRE_H
#define FLOTILLA_PROTO_WIRE_H

#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/base/err.h"
#include "proto/msg.h"

/* Encoders replace the contents of `to`; they abort without memory. */
void wire_put_step(const struct msg_step *m, struct buf *to);
void wire_put_result(const struct msg_result *m, struct buf *to);
void wire_put_from_worker(const struct msg_from_worker *m, struct buf *to);
void wire_put_to_worker(const struct msg_to_worker *m, struct buf *to);
void wire_put_call(const struct msg_call *m, struct buf *to);
void wire_put_reply(const struct msg_reply *m, struct buf *to);
void wire_put_generate(const struct msg_generate *m, struct buf *to);
void wire_put_generate_reply(const struct msg_generate_reply *m, struct buf *to);
void wire_put_cancel(uint64_t call, struct buf *to);
void wire_put_models(const char *name, struct buf *to); /* ModelsReply */
void wire_put_tokenize(const struct msg_tokenize *m, struct buf *to);
void wire_put_tokens(const struct msg_tokens *m, struct buf *to); /* TokenizeReply */
void wire_put_detokenize(const int32_t *tokens, uint32_t n, struct buf *to);
void wire_put_bytes(const void *text, size_t n, struct buf *to); /* DetokenizeReply */
void wire_put_ping(const uint64_t *calls, uint32_t n, struct buf *to);
void wire_put_pong(const uint64_t *unknown, uint32_t n, uint32_t message_bytes,
                   struct buf *to); /* PingReply */
void wire_put_status(const struct msg_status *m, struct buf *to);
void wire_put_order(const struct msg_order *m, struct buf *to);
void wire_put_order_reply(const char *text, struct buf *to);

/* Decoders reset the arena first; the message lives until its next reset. They set the arena's
 * budget from the size of the bytes and the limits on the message's lists. */
int wire_get_step(const void *data, size_t n, struct arena *a, struct msg_step *ret,
                  struct errmsg *em);
int wire_get_result(const void *data, size_t n, struct arena *a, struct msg_result *ret,
                    struct errmsg *em);
int wire_get_from_worker(const void *data, size_t n, struct arena *a, struct msg_from_worker *ret,
                         struct errmsg *em);
int wire_get_to_worker(const void *data, size_t n, struct arena *a, struct msg_to_worker *ret,
                       struct errmsg *em);
int wire_get_call(const void *data, size_t n, struct arena *a, struct msg_call *ret,
                  struct errmsg *em);
int wire_get_reply(const void *data, size_t n, struct arena *a, struct msg_reply *ret,
                   struct errmsg *em);
/* How much text and how many tokens a Generate carries, counted in its bytes without unpacking
 * them, so that one too large to be served costs neither memory nor time. ERR_PROTO: it is
 * malformed, or has more than LIMIT_FIELDS fields: those of `sampling` count, token ids outside a
 * packed list do not. */
int wire_size_generate(const void *data, size_t n, struct msg_generate_size *ret,
                       struct errmsg *em);
int wire_get_generate(const void *data, size_t n, struct arena *a, struct msg_generate *ret,
                      struct errmsg *em);
int wire_get_generate_reply(const void *data, size_t n, struct arena *a,
                            struct msg_generate_reply *ret, struct errmsg *em);
int wire_get_cancel(const void *data, size_t n, struct arena *a, uint64_t *ret_call,
                    struct errmsg *em);
int wire_get_models(const void *data, size_t n, struct arena *a, const char **ret_name,
                    struct errmsg *em);
int wire_get_tokenize(const void *data, size_t n, struct arena *a, struct msg_tokenize *ret,
                      struct errmsg *em);
int wire_get_tokens(const void *data, size_t n, struct arena *a, struct msg_tokens *ret,
                    struct errmsg *em);
int wire_get_detokenize(const void *data, size_t n, struct arena *a, const int32_t **ret_tokens,
                        uint32_t *ret_n, struct errmsg *em);
int wire_get_bytes(const void *data, size_t n, struct arena *a, const char **ret_text,
                   size_t *ret_bytes, struct errmsg *em);
int wire_get_ping(const void *data, size_t n, struct arena *a, const uint64_t **ret_calls,
                  uint32_t *ret_n, struct errmsg *em);
/* *ret_message_bytes: 0 if the server does not say what it takes. */
int wire_get_pong(const void *data, size_t n, struct arena *a, const uint64_t **ret_unknown,
                  uint32_t *ret_n, uint32_t *ret_message_bytes, struct errmsg *em);
int wire_get_status(const void *data, size_t n, struct arena *a, struct msg_status *ret,
                    struct errmsg *em);
int wire_get_order(const void *data, size_t n, struct arena *a, struct msg_order *ret,
                   struct errmsg *em);
int wire_get_order_reply(const void *data, size_t n, struct arena *a, const char **ret_text,
                         struct errmsg *em);

#endif
