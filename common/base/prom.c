#include "common/base/prom.h"

#include "common/base/utf8.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static void put(struct buf *b, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void put(struct buf *b, const char *format, ...)
{
    char line[512];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (n > 0 && (size_t)n < sizeof line) (void)buf_append(b, line, (size_t)n);
}

void prom_head(struct buf *b, const char *name, const char *type, const char *help)
{
    put(b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

void prom_int(struct buf *b, const char *name, const char *labels, uint64_t value)
{
    put(b, labels[0] ? "%s{%s} %" PRIu64 "\n" : "%s%s %" PRIu64 "\n", name, labels, value);
}

void prom_real(struct buf *b, const char *name, const char *labels, double value)
{
    put(b, labels[0] ? "%s{%s} %.9g\n" : "%s%s %.9g\n", name, labels, value);
}

void prom_histogram(struct buf *b, const char *name, const char *labels, const struct stats_view *v)
{
    const char *comma = labels[0] ? "," : "";
    uint64_t count = 0;
    for (uint32_t i = 0; i + 1 < STATS_BUCKETS; i++) {
        uint64_t le = stats_le(i);
        count += v->buckets[i];
        if (le & (le - 1) || le < 1024) continue; /* powers of two, from a microsecond */
        if (le > (UINT64_C(1) << 38)) break;      /* to four minutes */
        put(b, "%s_bucket{%s%sle=\"%" PRIu64 ".%09" PRIu64 "\"} %" PRIu64 "\n", name, labels, comma,
            le / 1000000000, le % 1000000000, count); /* exactly the bound */
    }
    put(b, "%s_bucket{%s%sle=\"+Inf\"} %" PRIu64 "\n", name, labels, comma, v->count);
    char sum[128], total[128];
    (void)snprintf(sum, sizeof sum, "%s_sum", name);
    (void)snprintf(total, sizeof total, "%s_count", name);
    prom_real(b, sum, labels, (double)v->sum_ns / 1e9);
    prom_int(b, total, labels, v->count);
}

const char *prom_label(const char *value, char *ret, size_t size)
{
    size_t n = 0, left = strlen(value);
    while (left) {
        size_t used = utf8_char(value, left, NULL);
        char escaped[2] = {'\\', *value == '\n' ? 'n' : *value};
        bool escapes = *value == '\n' || *value == '"' || *value == '\\';
        const char *piece = used == 0 ? "?" : escapes ? escaped : value;
        size_t bytes = used == 0 ? 1 : escapes ? 2 : used;
        if (bytes >= size - n) break; /* one scrape with half a character is refused whole */
        memcpy(ret + n, piece, bytes);
        n += bytes;
        value += used ? used : 1;
        left -= used ? used : 1;
    }
    ret[n] = 0;
    return ret;
}
