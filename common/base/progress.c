#include "common/base/progress.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define BAR_WIDTH 32

bool progress_update(void *arg, uint64_t done, uint64_t total)
{
    struct progress *p = arg;
    if (total == 0) return true;
    double mib = (double)total / (1 << 20);
    if (!isatty(STDERR_FILENO)) {
        uint32_t tenth = (uint32_t)(done * 10 / total);
        if (tenth <= p->shown) return true;
        p->shown = tenth;
        (void)fprintf(stderr, "%s: %u%% of %.1f MiB\n", p->what, tenth * 10, mib);
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
