/* What a program that uses the client library and the coordinator both know beside the wire itself.
 * Installed as flotilla/api.h. */
#ifndef FLOTILLA_PROTO_API_H
#define FLOTILLA_PROTO_API_H

/* gRPC's status codes, those in use. */
enum status {
    STATUS_OK = 0,
    STATUS_CANCELLED = 1,
    STATUS_INVALID_ARGUMENT = 3,
    STATUS_DEADLINE_EXCEEDED = 4,
    STATUS_NOT_FOUND = 5,
    STATUS_RESOURCE_EXHAUSTED = 8,
    STATUS_FAILED_PRECONDITION = 9,
    STATUS_UNIMPLEMENTED = 12,
    STATUS_INTERNAL = 13,
    STATUS_UNAVAILABLE = 14
};

/* Of requests, the most urgent first. */
enum priority { PRIORITY_CRITICAL, PRIORITY_HIGH, PRIORITY_NORMAL, PRIORITY_LOW };

/* Why an answer ends. It is a text (finish_text) only on the wire to clients and in JSON. */
enum finish_reason {
    FINISH_NONE,  /* it has not ended, or not with an answer */
    FINISH_STOP,  /* an end-of-generation token, or a stop string */
    FINISH_LENGTH /* as many tokens as were asked for, or as the context holds */
};

static inline const char *finish_text(enum finish_reason r)
{
    return r == FINISH_STOP ? "stop" : r == FINISH_LENGTH ? "length" : "";
}

#endif
