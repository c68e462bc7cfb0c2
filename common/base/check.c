#include "common/base/check.h"

#include <execinfo.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define FRAMES_MAX 64

_Noreturn void check_failed(const char *file, int line, const char *function,
                            const char *expression)
{
    char text[1024];
    void *frames[FRAMES_MAX];
    int n = snprintf(text, sizeof text, "%s:%d: %s: CHECK(%s) failed\n", file, line, function,
                     expression);
    if (n > (int)sizeof text - 1) n = (int)sizeof text - 1;
    ssize_t written = n > 0 ? write(STDERR_FILENO, text, (size_t)n) : 0;
    (void)written; /* the process ends, said or not */
    backtrace_symbols_fd(frames, backtrace(frames, FRAMES_MAX), STDERR_FILENO);
    abort();
}
