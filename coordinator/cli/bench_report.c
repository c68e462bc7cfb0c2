#include "coordinator/cli/bench.h"

#include "coordinator/cli/plot.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const uint32_t bench_kernel_rows[BENCH_KERNEL_COUNTS] = {1, 2, 4, 8, 16, 32};

/* ---- figures ---- */

double bench_prompt_products(const struct bench *b)
{
    if (b->prompt == 0) return 0.0;
    double head = (double)b->products.head * b->prompt_heads / b->prompt; /* of each row's share */
    return b->prompt_rate * ((double)b->products.layers + head);
}

double bench_decode_bytes(const struct bench *b)
{
    return b->decode_rate * (double)b->bytes_per_token;
}

double bench_prompt_share(const struct bench *b)
{
    return b->peak_per_s > 0.0 ? bench_prompt_products(b) / b->peak_per_s : 0.0;
}

double bench_decode_share(const struct bench *b)
{
    return b->read_per_s > 0.0 ? bench_decode_bytes(b) / b->read_per_s : 0.0;
}

/* Tokens a second of all streams together, and of the one beside them. */
static double stream_rate(const struct bench_step *s)
{
    return s->mean_ns ? s->rows * 1e9 / (double)s->mean_ns : 0.0;
}

static double one_stream_rate(const struct bench_step *s)
{
    return s->one_mean_ns ? 1e9 / (double)s->one_mean_ns : 0.0;
}

/* Tokens a second of the streams as a multiple of one stream's. */
static double streams_times_one(const struct bench_step *s)
{
    return s->times_one > 0.0 ? s->rows / s->times_one : 0.0;
}

/* ---- text ---- */

static void print_speed(const struct bench *b)
{
    if (b->prompt) {
        (void)printf("prompt %7" PRIu32 " tokens  %9.1f tokens/s", b->prompt, b->prompt_rate);
        if (b->peak_per_s > 0.0 && bench_prompt_products(b) > 0.0)
            (void)printf("  %7.1f GMAC/s, %.0f %% of the peak of %.1f",
                         bench_prompt_products(b) / 1e9, 100.0 * bench_prompt_share(b),
                         b->peak_per_s / 1e9);
        (void)printf("\n");
    }
    if (b->tokens) {
        (void)printf("decode %7" PRIu32 " tokens  %9.1f tokens/s  %7.1f GB/s of weights", b->tokens,
                     b->decode_rate, bench_decode_bytes(b) / 1e9);
        if (b->read_per_s > 0.0)
            (void)printf(", %.0f %% of the memory's %.1f", 100.0 * bench_decode_share(b),
                         b->read_per_s / 1e9);
        (void)printf("\n");
    }
}

static void print_steps(const struct bench *b)
{
    if (b->rows.n) (void)printf("\nrows          step  x one row   tokens/s\n");
    for (uint32_t i = 0; i < b->rows.n; i++) {
        const struct bench_step *s = &b->rows.of[i];
        (void)printf("%4" PRIu32 "    %7.2f ms  %9.2f  %9.1f\n", s->rows, (double)s->step_ns / 1e6,
                     s->times_one, s->rows * 1e9 / (double)s->step_ns);
    }
    if (b->streams.n) (void)printf("\nstreams       step  x one stream   tokens/s\n");
    for (uint32_t i = 0; i < b->streams.n; i++) {
        const struct bench_step *s = &b->streams.of[i];
        (void)printf("%4" PRIu32 "    %7.2f ms  %12.2f  %9.1f\n", s->rows, (double)s->step_ns / 1e6,
                     streams_times_one(s), stream_rate(s));
    }
}

static void print_kernel(const struct kern_rate *r)
{
    char text[32];
    if (r->tiles > 0.0 && r->panels > 0.0)
        (void)snprintf(text, sizeof text, "%.1f/%.1f", r->tiles / 1e9, r->panels / 1e9);
    else
        (void)snprintf(text, sizeof text, "%.1f", (r->tiles + r->panels) / 1e9);
    (void)printf("  %11s", text);
}

static void print_kernels(const struct bench *b)
{
    const struct bench_kernels *k = &b->kernels;
    if (k->n == 0) return;
    (void)printf("\nGMAC/s of one thread, from tiles/from panels; the peak is %.1f\nrows    ",
                 k->peak_per_s / 1e9);
    for (uint32_t i = 0; i < BENCH_KERNEL_COUNTS; i++)
        (void)printf("  %11" PRIu32, bench_kernel_rows[i]);
    (void)printf("\n");
    for (uint32_t t = 0; t < k->n; t++) {
        (void)printf("%-8s", qtype_info((uint32_t)k->types[t])->name);
        for (uint32_t i = 0; i < BENCH_KERNEL_COUNTS; i++) print_kernel(&k->rates[t][i]);
        (void)printf("\n");
    }
}

void bench_print(const struct bench *b)
{
    (void)printf("%s, %" PRIu32 " threads", b->isa, b->threads);
    if (b->with_model) {
        (void)printf("; rows straight from tiles, at most:");
        for (uint32_t type = 0; type < BENCH_TYPE_NUMBERS; type++)
            if (b->few[type]) (void)printf(" %s %" PRIu32, qtype_info(type)->name, b->few[type]);
    }
    (void)printf("\n");
    print_speed(b);
    print_steps(b);
    print_kernels(b);
}

/* ---- JSON ---- */

/* {"isa": {"linear": {"count", "mean_us", "sd_us", "min_us", "max_us", "p50_us", "p99_us"}, ...}}
 */
static struct json *json_dispatch(const struct bench *b)
{
    struct json *all = json_new_object(), *level = json_new_object();
    for (int op = 0; op < ENG_N_OPS; op++) {
        const struct stats_view *v = &b->dispatch[op];
        struct json *o = json_new_object();
        double n = v->count ? (double)v->count : 1.0;
        json_put_int(o, "count", (int64_t)v->count);
        json_put_real(o, "mean_us", (double)v->sum_ns / n / 1e3);
        json_put_real(o, "sd_us", v->sd_ns / 1e3);
        json_put_real(o, "min_us", (double)v->min_ns / 1e3);
        json_put_real(o, "max_us", (double)v->max_ns / 1e3);
        json_put_real(o, "p50_us", (double)stats_quantile(v, 0.5) / 1e3);
        json_put_real(o, "p99_us", (double)stats_quantile(v, 0.99) / 1e3);
        json_put(level, eng_op_name((enum eng_op)op), o);
    }
    json_put(all, b->isa, level);
    return all;
}

/* {"Q4_K": most rows whose products read its tiles, ...} */
static struct json *json_few(const struct bench *b)
{
    struct json *o = json_new_object();
    for (uint32_t type = 0; type < BENCH_TYPE_NUMBERS; type++)
        if (b->few[type]) json_put_int(o, qtype_info(type)->name, b->few[type]);
    return o;
}

static struct json *json_rows(const struct bench_steps *b)
{
    struct json *all = json_new_array();
    for (uint32_t i = 0; i < b->n; i++) {
        struct json *o = json_new_object();
        json_put_int(o, "rows", b->of[i].rows);
        json_put_real(o, "step_ms", (double)b->of[i].step_ns / 1e6);
        json_put_real(o, "one_ms", (double)b->of[i].one_ns / 1e6);
        json_put_real(o, "times_one", b->of[i].times_one);
        json_add(all, o);
    }
    return all;
}

static struct json *json_streams(const struct bench_steps *b)
{
    struct json *all = json_new_array();
    for (uint32_t i = 0; i < b->n; i++) {
        struct json *o = json_new_object();
        json_put_int(o, "streams", b->of[i].rows);
        json_put_real(o, "tokens_per_s", stream_rate(&b->of[i]));
        json_put_real(o, "one_tokens_per_s", one_stream_rate(&b->of[i]));
        json_put_real(o, "times_one", streams_times_one(&b->of[i]));
        json_put_real(o, "step_ms", (double)b->of[i].step_ns / 1e6);
        json_add(all, o);
    }
    return all;
}

/* {"k", "peak_gmac_per_s", "types": {"Q4_0": [{"rows", "tiles_gmac_per_s", "panels_gmac_per_s"},
 * ...], ...}}; a form that a number of rows does not have is left out. */
static struct json *json_kernels(const struct bench_kernels *k)
{
    struct json *all = json_new_object(), *types = json_new_object();
    for (uint32_t t = 0; t < k->n; t++) {
        struct json *rows = json_new_array();
        for (uint32_t i = 0; i < BENCH_KERNEL_COUNTS; i++) {
            const struct kern_rate *r = &k->rates[t][i];
            struct json *o = json_new_object();
            json_put_int(o, "rows", bench_kernel_rows[i]);
            if (r->tiles > 0.0) json_put_real(o, "tiles_gmac_per_s", r->tiles / 1e9);
            if (r->panels > 0.0) json_put_real(o, "panels_gmac_per_s", r->panels / 1e9);
            json_add(rows, o);
        }
        json_put(types, qtype_info((uint32_t)k->types[t])->name, rows);
    }
    json_put_int(all, "k", KERN_RATE_K);
    json_put_real(all, "peak_gmac_per_s", k->peak_per_s / 1e9);
    json_put(all, "types", types);
    return all;
}

static void json_model(const struct bench *b, struct json *j)
{
    json_put_real(j, "prompt_tokens_per_s", b->prompt_rate);
    json_put_real(j, "decode_tokens_per_s", b->decode_rate);
    json_put_int(j, "depth", b->depth);
    json_put_real(j, "prompt_gmac_per_s", bench_prompt_products(b) / 1e9);
    if (b->peak_per_s > 0.0) {
        json_put_real(j, "peak_gmac_per_s", b->peak_per_s / 1e9);
        json_put_real(j, "prompt_share_of_peak", bench_prompt_share(b));
    }
    json_put_real(j, "decode_gb_per_s", bench_decode_bytes(b) / 1e9);
    if (b->read_per_s > 0.0) {
        json_put_real(j, "read_gb_per_s", b->read_per_s / 1e9);
        json_put_real(j, "decode_share_of_read", bench_decode_share(b));
    }
    json_put(j, "dispatch", json_dispatch(b));
    json_put(j, "rows_from_tiles", json_few(b));
    if (b->rows.n) json_put(j, "rows", json_rows(&b->rows));
    if (b->streams.n) json_put(j, "streams", json_streams(&b->streams));
}

struct json *bench_json(const struct bench *b)
{
    struct json *j = json_new_object();
    json_put_string(j, "isa", b->isa, strlen(b->isa));
    json_put_int(j, "threads", b->threads);
    if (b->with_model) json_model(b, j);
    if (b->kernels.n) json_put(j, "kernels", json_kernels(&b->kernels));
    return j;
}

/* ---- a plot ---- */

int bench_plot(const struct bench *b, const char *path, struct errmsg *em)
{
    struct plot_point rows[BENCH_COUNTS_MAX], streams[BENCH_COUNTS_MAX];
    FILE *f;
    int rc = plot_open(path, &f, em);
    if (rc < 0) return rc;
    for (uint32_t i = 0; i < b->rows.n; i++)
        rows[i] = (struct plot_point){b->rows.of[i].rows, (double)b->rows.of[i].step_ns / 1e6};
    for (uint32_t i = 0; i < b->streams.n; i++)
        streams[i] = (struct plot_point){b->streams.of[i].rows, stream_rate(&b->streams.of[i])};
    if (b->rows.n) plot_line(f, PLOT_LEFT, "time of a step (ms), by its rows", rows, b->rows.n);
    if (b->streams.n)
        plot_line(f, PLOT_RIGHT, "tokens/s of all streams, by their number", streams, b->streams.n);
    (void)fprintf(
        f, "<text x='60' y='308'>%s, %" PRIu32 " threads, %" PRIu32 " positions before</text>\n",
        b->isa, b->threads, b->depth);
    return plot_close(f, path, em);
}
