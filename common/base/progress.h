/* A progress display on stderr: a bar on a terminal; elsewhere a line each PROGRESS_LINE_NS, and
 * none for what is done sooner. For programs, not for libraries. */
#ifndef FLOTILLA_BASE_PROGRESS_H
#define FLOTILLA_BASE_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PROGRESS_LINE_NS UINT64_C(10000000000)
#define PROGRESS_LINE_BYTES 160

struct progress {
    const char *what; /* public: borrowed, "loading layers 0-14" */
    uint32_t shown;   /* private, like the next: permille, on a terminal */
    uint64_t line_ns; /* when the last line was due, or the first call came */
};

/* `arg` is a struct progress. Always true: go on. It waits for the reader of stderr. */
bool progress_update(void *arg, uint64_t done, uint64_t total);
/* The line that is due at now_ns where stderr is no terminal, or "": for a program with a log. */
void progress_line(struct progress *p, uint64_t now_ns, uint64_t done, uint64_t total,
                   char ret[static PROGRESS_LINE_BYTES]);

#endif
