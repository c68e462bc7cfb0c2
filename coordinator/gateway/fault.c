#include "coordinator/gateway/fault.h"

#include "common/text/json.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int fault_set(struct fault *f, unsigned http, const char *param, const char *format, ...)
{
    va_list args;
    *f = (struct fault){.http = http};
    if (param) (void)snprintf(f->param, sizeof f->param, "%s", param);
    va_start(args, format);
    (void)vsnprintf(f->text, sizeof f->text, format, args);
    va_end(args);
    err_clean(f->param); /* what is not UTF-8 would be null in JSON */
    err_clean(f->text);
    return -1;
}

static unsigned http_of(enum status status)
{
    switch (status) {
    case STATUS_OK: return 200;
    case STATUS_INVALID_ARGUMENT:
    case STATUS_FAILED_PRECONDITION:
    case STATUS_UNIMPLEMENTED: return 400;
    case STATUS_PERMISSION_DENIED: return 403;
    case STATUS_NOT_FOUND: return 404;
    case STATUS_DEADLINE_EXCEEDED: return 408;
    case STATUS_RESOURCE_EXHAUSTED: return 429;
    case STATUS_CANCELLED: /* by this end: it stops */
    case STATUS_UNAVAILABLE: return 503;
    case STATUS_INTERNAL: return 500;
    }
    return 500;
}

/* The API's errors begin with the field that they are about: "field 'NAME': ...". */
static void find_param(struct fault *f)
{
    char name[sizeof f->param];
    if (sscanf(f->text, "field '%63[^']'", name) == 1)
        (void)snprintf(f->param, sizeof f->param, "%s", name);
    err_clean(f->param);
}

void fault_of_end(struct fault *f, const struct client_end *end)
{
    (void)fault_set(f, end->lost ? 503 : http_of(end->status), NULL, "%s", end->text);
    find_param(f);
    if (f->http == 404) f->code = "model_not_found";
    if (f->http == 400 && strstr(f->text, "fit the context of"))
        f->code = "context_length_exceeded";
    if (f->http == 429) f->code = "rate_limit_exceeded";
    if (f->http == 429 || f->http == 503) f->retry_s = (end->retry_ms + 999) / 1000;
    if (f->http == 503 && !f->retry_s) f->retry_s = 1;
}

void fault_rename(struct fault *f, const char *from, const char *to)
{
    char head[96], text[sizeof f->text];
    int n = snprintf(head, sizeof head, "field '%s'", from);
    if (n < 0 || strncmp(f->text, head, (size_t)n) != 0) return;
    (void)snprintf(text, sizeof text, "'%s'%.400s", to, f->text + n);
    (void)snprintf(f->text, sizeof f->text, "%s", text);
    (void)snprintf(f->param, sizeof f->param, "%s", to);
}

const char *fault_type(unsigned http)
{
    switch (http) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 408: return "timeout_error";
    case 429: return "rate_limit_error";
    case 503: return "service_unavailable_error";
    default: return http < 500 ? "invalid_request_error" : "server_error";
    }
}

static void put_text(struct json *o, const char *key, const char *text)
{
    if (text && text[0])
        json_put_string(o, key, text, strlen(text));
    else
        json_put_null(o, key);
}

void fault_write(const struct fault *f, struct buf *to)
{
    struct json *whole = json_new_object(), *error = json_new_object();
    json_put_string(error, "message", f->text, strlen(f->text));
    put_text(error, "type", fault_type(f->http));
    put_text(error, "param", f->param);
    put_text(error, "code", f->code);
    json_put(whole, "error", error);
    json_write(whole, to);
    json_free(whole);
}
