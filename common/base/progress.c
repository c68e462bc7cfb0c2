#include "common/base/progress.h"

#include "common/base/clock.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define BAR_WIDTH 32

void progress_line(struct progress *p, uint64_t now_ns, uint64_t done, uint64_t total,
                   char ret[static PROGRESS_LINE_BYTES])
{
    ret[0] = 0;
    if (p->line_ns == 0) p->line_ns = now_ns;
    if (now_ns - p->line_ns < PROGRESS_LINE_NS) return;
    p->line_ns = now_ns;
    (void)snprintf(ret, PROGRESS_LINE_BYTES, "%s: %.0f%% of %.1f MiB", p->what,
                   (double)done * 100.0 / (double)total, (double)total / (1 << 20));
}

bool progress_update(void *arg, uint64_t done, uint64_t total)
{
    struct progress *p = arg;
    if (total == 0) return true;
    double mib = (double)total / (1 << 20);
    if (!isatty(STDERR_FILENO)) {
        char line[PROGRESS_LINE_BYTES];
        progress_line(p, clock_ns(), done, total, line);
        if (*line) (void)fprintf(stderr, "%s\n", line);
        return true;
    }
    uint32_t permille = (uint32_t)(done * 1000 / total);
    if (permille <= p->shown) return true;
    p->shown = permille;
    char bar[BAR_WIDTH + 1];
    size_t full = (size_t)permille * BAR_WIDTH / 1000;
    memset(bar, '.', BAR_WIDTH);
    memset(bar, '#', full);
    bar[BAR_WIDTH] = 0;
    (void)fprintf(stderr, "\r%s [%s] %3u%% of %.1f MiB%s", p->what, bar, permille / 10, mib,
                  done == total ? "\n" : "");
    return true;
}
