/* Why an HTTP request is refused or breaks off, and how it is told. */
#ifndef FLOTILLA_GATEWAY_FAULT_H
#define FLOTILLA_GATEWAY_FAULT_H

#include "common/base/buf.h"
#include "common/client/client.h"

#include <stdint.h>

struct fault {
    unsigned http;    /* the status */
    const char *code; /* a word for programs, or NULL; static */
    char param[64];   /* the parameter at fault, or "" */
    char text[512];
    uint32_t retry_s;  /* Retry-After; 0: none */
    const char *allow; /* of 405: the methods that there are; static, or NULL */
};

/* Returns -1, so that `return fault_set(...)` reads well. `param` may be NULL. */
int fault_set(struct fault *f, unsigned http, const char *param, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* How a call ended that did not end well, as HTTP tells it. */
void fault_of_end(struct fault *f, const struct client_end *end);
/* A fault that the client API finds with its field `from` is one of the parameter `to`. */
void fault_rename(struct fault *f, const char *from, const char *to);
/* The word for a status. */
const char *fault_type(unsigned http);
/* Appends OpenAI's form: {"error":{"message","type","param","code"}}. */
void fault_write(const struct fault *f, struct buf *to);

#endif
