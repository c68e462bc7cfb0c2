/* Token bytes to text for a reader: whole UTF-8 characters only, stop strings found across token
 * borders and never shown, not even in part.
 *
 *   token bytes -> [pending: an unfinished character] -> [held: may become a stop string] -> out */
#ifndef FLOTILLA_TEXT_DETOK_H
#define FLOTILLA_TEXT_DETOK_H

#include "common/base/buf.h"

#include <stdbool.h>
#include <stddef.h>

#define DETOK_STOPS_MAX 16u

struct detok {
    struct buf pending; /* private: up to 3 bytes of an unfinished character */
    struct buf text;    /* public: characters that may be shown; take them with buf_drop */
    struct buf held;    /* private: a suffix that a stop string may begin with */
    char *stops[DETOK_STOPS_MAX];  /* private, like the next two */
    size_t given[DETOK_STOPS_MAX]; /* place of each among those that detok_init was given */
    size_t n_stops;
    bool stopped; /* public: a stop string was found; nothing comes after it */
    size_t stop;  /* public: then its place among those that detok_init was given */
};

/* Stops are copied; empty ones and those beyond DETOK_STOPS_MAX are ignored. */
void detok_init(struct detok *d, const char *const *stops, size_t n_stops);
void detok_close(struct detok *d);

/* Adds a token's bytes to `text`, as far as they can be shown. What is not UTF-8 becomes U+FFFD. */
void detok_push(struct detok *d, const char *bytes, size_t n);
/* The end of generation: an unfinished character becomes one U+FFFD, held text is shown. */
void detok_finish(struct detok *d);

#endif
