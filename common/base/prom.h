/* Prometheus's text format, built line by line. */
#ifndef FLOTILLA_BASE_PROM_H
#define FLOTILLA_BASE_PROM_H

#include "common/base/buf.h"
#include "common/base/stats.h"

#include <stdint.h>

#define PROM_CONTENT_TYPE "text/plain; version=0.0.4"

/* "# HELP" and "# TYPE"; type: "counter", "gauge" or "histogram". Before a name's first value. */
void prom_head(struct buf *b, const char *name, const char *type, const char *help);
/* labels: as between the braces, escaped already, or "". */
void prom_int(struct buf *b, const char *name, const char *labels, uint64_t value);
void prom_real(struct buf *b, const char *name, const char *labels, double value);
/* Seconds, in buckets of powers of two of a nanosecond: exactly those that were counted in. */
void prom_histogram(struct buf *b, const char *name, const char *labels,
                    const struct stats_view *v);
/* A label's value, with what must be escaped; at most size - 1 bytes (size > 0), cut between
 * characters. A byte that is no UTF-8 becomes a '?': Prometheus refuses a whole scrape for one. */
const char *prom_label(const char *value, char *ret, size_t size);

#endif
