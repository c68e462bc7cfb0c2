/* Plots as SVG files: two boxes side by side, and a line of text below them. */
#ifndef FLOTILLA_CLI_PLOT_H
#define FLOTILLA_CLI_PLOT_H

#include "common/base/err.h"
#include "common/base/samples.h"

#include <stdio.h>

/* Where a box begins, from the left. Boxes are 400 wide and 220 high, from y = 40 to 260; the text
 * below them is at y = 308. */
#define PLOT_LEFT 60.0
#define PLOT_RIGHT 530.0

/* ERR_IO. What is drawn goes to *ret, until plot_close. */
int plot_open(const char *path, FILE **ret, struct errmsg *em);
/* ERR_IO: not all of it could be written; the file is closed in any case. */
int plot_close(FILE *f, const char *path, struct errmsg *em);

/* The share of samples (ms) up to a time, with p50 and p99 in the title. */
void plot_curve(FILE *f, double x, const char *title, struct samples *s);
/* A bar for each value, from the left in the order of s->v, in parts of their mean. */
void plot_bars(FILE *f, double x, const char *title, struct samples *s);

struct plot_point {
    double x, y;
};

/* A line through points, which are sorted by x. Both axes begin at 0 and end at the largest value.
 */
void plot_line(FILE *f, double x, const char *title, struct plot_point *p, size_t n);

#endif
