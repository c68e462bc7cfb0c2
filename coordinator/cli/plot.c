#include "coordinator/cli/plot.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define TOP 40.0
#define WIDTH 400.0
#define HEIGHT 220.0

int plot_open(const char *path, FILE **ret, struct errmsg *em)
{
    *ret = fopen(path, "w");
    if (!*ret) return err_set(em, ERR_IO, "%s: %s", path, strerror(errno));
    (void)fprintf(*ret, "<svg xmlns='http://www.w3.org/2000/svg' width='960' height='320' "
                        "font-family='sans-serif' font-size='12'>\n"
                        "<rect width='960' height='320' fill='#fff'/>\n");
    return 0;
}

int plot_close(FILE *f, const char *path, struct errmsg *em)
{
    (void)fprintf(f, "</svg>\n");
    bool bad = ferror(f) != 0;
    if (fclose(f) != 0 || bad) return err_set(em, ERR_IO, "%s: %s", path, strerror(errno));
    return 0;
}

static void draw_box(FILE *f, double x)
{
    (void)fprintf(f,
                  "<rect x='%.0f' y='%.0f' width='%.0f' height='%.0f' fill='none' stroke='#888'/>",
                  x, TOP, WIDTH, HEIGHT);
}

void plot_curve(FILE *f, double x, const char *title, struct samples *s)
{
    double most = samples_percentile(s, 99.5);
    draw_box(f, x);
    (void)fprintf(f, "<text x='%.0f' y='30'>%s: p50 %.2f, p99 %.2f ms, %zu samples</text>\n", x,
                  title, samples_percentile(s, 50), samples_percentile(s, 99), s->n);
    for (int i = 0; i <= 4; i++)
        (void)fprintf(f,
                      "<text x='%.0f' y='278' text-anchor='middle'>%.3g</text>"
                      "<text x='%.0f' y='%d' text-anchor='end'>%d %%</text>\n",
                      x + 100.0 * i, most * i / 4.0, x - 6, 264 - 55 * i, 25 * i);
    (void)fprintf(f, "<polyline fill='none' stroke='#06c' stroke-width='2' points='");
    for (int i = 0; i <= 200 && s->n && most > 0.0; i++) {
        double p = i / 2.0, ms = samples_percentile(s, p);
        if (ms <= most)
            (void)fprintf(f, "%.1f,%.1f ", x + WIDTH * ms / most, TOP + HEIGHT - 2.2 * p);
    }
    (void)fprintf(f, "'/>\n");
}

void plot_bars(FILE *f, double x, const char *title, struct samples *s)
{
    double mean = samples_mean(s), most = samples_max(s);
    draw_box(f, x);
    (void)fprintf(f, "<text x='%.0f' y='30'>%s</text>\n", x, title);
    if (most <= 0.0) return;
    double wide = WIDTH / (double)s->n;
    for (size_t i = 0; i < s->n; i++) {
        double high = HEIGHT * s->v[i] / most;
        (void)fprintf(f, "<rect x='%.2f' y='%.2f' width='%.2f' height='%.2f' fill='#06c'/>\n",
                      x + wide * (double)i, TOP + HEIGHT - high, wide * 0.8, high);
    }
    (void)fprintf(f, "<text x='%.0f' y='44' text-anchor='end'>%.2f</text>\n", x - 6, most / mean);
}

static int by_x(const void *a, const void *b)
{
    double x = ((const struct plot_point *)a)->x, y = ((const struct plot_point *)b)->x;
    return (x > y) - (x < y);
}

/* Where a point lies whose box begins at x and ends at `most`. */
static struct plot_point place(double x, struct plot_point most, struct plot_point p)
{
    return (struct plot_point){x + WIDTH * p.x / most.x, TOP + HEIGHT * (1.0 - p.y / most.y)};
}

void plot_line(FILE *f, double x, const char *title, struct plot_point *p, size_t n)
{
    struct plot_point most = {0.0, 0.0};
    draw_box(f, x);
    (void)fprintf(f, "<text x='%.0f' y='30'>%s</text>\n", x, title);
    for (size_t i = 0; i < n; i++) {
        if (p[i].x > most.x) most.x = p[i].x;
        if (p[i].y > most.y) most.y = p[i].y;
    }
    if (most.x <= 0.0 || most.y <= 0.0) return;
    qsort(p, n, sizeof *p, by_x);
    for (int i = 0; i <= 4; i++)
        (void)fprintf(f,
                      "<text x='%.0f' y='278' text-anchor='middle'>%.3g</text>"
                      "<text x='%.0f' y='%d' text-anchor='end'>%.4g</text>\n",
                      x + 100.0 * i, most.x * i / 4.0, x - 6, 264 - 55 * i, most.y * i / 4.0);
    for (size_t i = 0; i < n; i++) {
        struct plot_point at = place(x, most, p[i]);
        (void)fprintf(f, "<circle cx='%.1f' cy='%.1f' r='3' fill='#06c'/>\n", at.x, at.y);
    }
    (void)fprintf(f, "<polyline fill='none' stroke='#06c' stroke-width='2' points='");
    for (size_t i = 0; i < n; i++) {
        struct plot_point at = place(x, most, p[i]);
        (void)fprintf(f, "%.1f,%.1f ", at.x, at.y);
    }
    (void)fprintf(f, "'/>\n");
}
