/* A progress display on stderr: a bar on a terminal, a line at every tenth elsewhere. For programs,
 * not for libraries. */
#ifndef FLOTILLA_BASE_PROGRESS_H
#define FLOTILLA_BASE_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
    const char *what; /* public: borrowed, "loading layers 0-14" */
    uint32_t shown;   /* private: permille on a terminal, tenths elsewhere */
};

/* `arg` is a struct progress. Always true: go on. */
bool progress_update(void *arg, uint64_t done, uint64_t total);

#endif
