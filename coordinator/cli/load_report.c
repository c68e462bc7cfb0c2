/* `bench --cluster`: what the requests of a load saw, summed up, written down and drawn. */
#include "coordinator/cli/load.h"

#include "common/base/mem.h"
#include "common/text/json.h"
#include "coordinator/cli/plot.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const kinds[] = {"plain", "baseline", "short", "long"};

const char *load_scenario_name(enum load_scenario s)
{
    static const char *const names[LOAD_SCENARIOS] = {"closed", "poisson", "shared-prefix",
                                                      "convoy"};
    return names[s];
}

/* What all requests together saw; a convoy's are those of its short requests beside long ones. */
struct summary {
    struct samples ttft, itl, queue;
    struct samples baseline, convoy; /* ITL of the short requests, alone and beside long ones */
    struct samples waits;            /* the longest of each, for its first row or its next token */
    uint32_t n_failed, n_checked, n_mismatched;
    uint64_t n_tokens;
    struct convoy_verdict verdict;
};

void load_compare(struct load_record *r, const struct tokens *alone)
{
    r->match = r->tokens.n == alone->n;
    for (size_t i = 0; i < r->tokens.n && r->match; i++)
        r->match = r->tokens.ids[i] == alone->ids[i];
}

static void add_itl(struct samples *to, const struct samples *from)
{
    for (size_t i = 0; i < from->n; i++) samples_add(to, from->v[i]);
}

static void sum_up(const struct load_options *o, const struct load_run *run, struct summary *s)
{
    for (uint32_t i = 0; i < run->n_records; i++) {
        const struct load_record *r = &run->records[i];
        s->n_failed += r->failed;
        s->n_checked += r->match >= 0;
        s->n_mismatched += r->match == 0;
        s->n_tokens += r->tokens.n;
        if (r->kind == LOAD_BASELINE) add_itl(&s->baseline, &r->itl);
        if (r->kind == LOAD_SHORT) add_itl(&s->convoy, &r->itl);
        if (r->first < 0.0 || r->kind == LOAD_BASELINE || r->kind == LOAD_LONG) continue;
        samples_add(&s->ttft, r->first - r->sent);
        samples_add(&s->queue, r->queued);
        double longest = samples_max(&r->itl);
        samples_add(&s->waits, r->queued > longest ? r->queued : longest);
        add_itl(&s->itl, &r->itl);
    }
    if (o->scenario != LOAD_CONVOY) return;
    struct convoy_limits limits = CONVOY_LIMITS;
    convoy_judge(&s->baseline, &s->convoy, &s->waits, run->waste_percent, &limits, &s->verdict);
}

static void close_summary(struct summary *s)
{
    struct samples *all[] = {&s->ttft, &s->itl, &s->queue, &s->baseline, &s->convoy, &s->waits};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) samples_close(all[i]);
}

/* ---- the document ---- */

static void put(struct json *j, const char *key, const char *s)
{
    json_put_string(j, key, s, strlen(s));
}

static struct json *json_samples(struct samples *s)
{
    struct json *j = json_new_object();
    static const struct {
        const char *name;
        double p;
    } percentiles[] = {{"p50", 50}, {"p95", 95}, {"p99", 99}};
    for (int i = 0; i < 3; i++)
        if (s->n)
            json_put_real(j, percentiles[i].name, samples_percentile(s, percentiles[i].p));
        else
            json_put_null(j, percentiles[i].name);
    json_put_int(j, "samples", (int64_t)s->n);
    return j;
}

static struct json *json_verdict(const struct convoy_verdict *v)
{
    struct json *j = json_new_object(), *reasons = json_new_array();
    json_put_bool(j, "pass", v->pass);
    json_put_real(j, "baseline_p99_ms", v->baseline_p99);
    json_put_real(j, "convoy_p99_ms", v->convoy_p99);
    json_put_real(j, "increase_percent", v->increase_percent);
    json_put_real(j, "wait_max_ms", v->wait_max);
    json_put_real(j, "wait_mean_ms", v->wait_mean);
    for (int i = 0; i < v->n_reasons; i++)
        json_add_string(reasons, v->reasons[i], strlen(v->reasons[i]));
    json_put(j, "reasons", reasons);
    return j;
}

static void print_json(const struct load_options *o, const struct load_run *run, struct summary *s)
{
    struct json *j = json_new_object();
    put(j, "scenario", load_scenario_name(o->scenario));
    json_put_int(j, "clients", o->clients);
    json_put_u64(j, "seed", o->seed);
    json_put_int(j, "requests", run->n_records);
    json_put_int(j, "failed", s->n_failed);
    json_put_int(j, "checked", s->n_checked);
    if (s->n_checked)
        json_put_int(j, "mismatched", s->n_mismatched);
    else
        json_put_null(j, "mismatched");
    json_put_real(j, "wall_ms", run->wall_ms);
    json_put_int(j, "tokens", (int64_t)s->n_tokens);
    json_put_real(j, "tokens_per_s", (double)s->n_tokens * 1000.0 / run->wall_ms);
    json_put(j, "ttft_ms", json_samples(&s->ttft));
    json_put(j, "itl_ms", json_samples(&s->itl));
    json_put(j, "queue_ms", json_samples(&s->queue));
    if (run->lookups)
        json_put_real(j, "prefix_hit_rate", (double)run->hits / (double)run->lookups);
    else
        json_put_null(j, "prefix_hit_rate");
    json_put_real(j, "kv_waste_percent", run->waste_percent);
    if (o->scenario == LOAD_CONVOY) json_put(j, "convoy", json_verdict(&s->verdict));
    json_print(j, stdout);
    json_free(j);
}

static void print_row(const char *name, struct samples *s)
{
    if (s->n == 0)
        (void)printf("%-8s  no data\n", name);
    else
        (void)printf("%-8s  p50 %9.2f  p95 %9.2f  p99 %9.2f ms  (%zu samples%s)\n", name,
                     samples_percentile(s, 50), samples_percentile(s, 95),
                     samples_percentile(s, 99), s->n, s->n < 100 ? ": too few for a p99" : "");
}

static void print_text(const struct load_options *o, const struct load_run *run, struct summary *s)
{
    (void)printf("%s: %" PRIu32 " requests in %.1f s, %" PRIu32 " failed, ",
                 load_scenario_name(o->scenario), run->n_records, run->wall_ms / 1000.0,
                 s->n_failed);
    if (s->n_checked)
        (void)printf("%" PRIu32 " of %" PRIu32 " checked answers differ\n", s->n_mismatched,
                     s->n_checked);
    else
        (void)printf("answers not checked (--model)\n");
    (void)printf("%.1f tokens/s", (double)s->n_tokens * 1000.0 / run->wall_ms);
    if (run->lookups)
        (void)printf(", %.0f %% of the requests found a prefix",
                     100.0 * (double)run->hits / (double)run->lookups);
    (void)printf("\n");
    print_row("TTFT", &s->ttft);
    print_row("ITL", &s->itl);
    print_row("queue", &s->queue);
    if (o->scenario != LOAD_CONVOY) return;
    (void)printf("convoy    p99 ITL of short requests %.2f ms, beside long prompts %.2f ms "
                 "(%+.1f %%): %s\n",
                 s->verdict.baseline_p99, s->verdict.convoy_p99, s->verdict.increase_percent,
                 s->verdict.pass ? "pass" : "fail");
    for (int i = 0; i < s->verdict.n_reasons; i++)
        (void)printf("          %s\n", s->verdict.reasons[i]);
}

/* ---- files ---- */

static int open_file(const char *path, FILE **ret, struct errmsg *em)
{
    *ret = fopen(path, "w");
    return *ret ? 0 : err_set(em, ERR_IO, "%s: %s", path, strerror(errno));
}

static int close_file(FILE *f, const char *path, struct errmsg *em)
{
    bool bad = ferror(f) != 0;
    if (fclose(f) != 0 || bad) return err_set(em, ERR_IO, "%s: %s", path, strerror(errno));
    return 0;
}

static int write_records(const char *path, const struct load_run *run, struct errmsg *em)
{
    FILE *f;
    int rc = open_file(path, &f, em);
    if (rc < 0) return rc;
    for (uint32_t i = 0; i < run->n_records; i++) {
        const struct load_record *r = &run->records[i];
        struct json *j = json_new_object(), *itl = json_new_array();
        put(j, "kind", kinds[r->kind]);
        json_put_int(j, "prompt_tokens", r->n_prompt);
        json_put_int(j, "tokens", (int64_t)r->tokens.n);
        json_put_real(j, "sent_ms", r->sent);
        json_put_real(j, "queue_ms", r->queued);
        if (r->first < 0.0)
            json_put_null(j, "ttft_ms");
        else
            json_put_real(j, "ttft_ms", r->first - r->sent);
        json_put_real(j, "total_ms", r->ended - r->sent);
        json_put_bool(j, "failed", r->failed);
        put(j, "status", r->status);
        json_put_int(j, "retry_ms", r->retry_ms);
        if (r->match < 0)
            json_put_null(j, "match");
        else
            json_put_bool(j, "match", r->match == 1);
        for (size_t k = 0; k < r->itl.n; k++) json_add_real(itl, r->itl.v[k]);
        json_put(j, "itl_ms", itl);
        json_print(j, f);
        json_free(j);
    }
    return close_file(f, path, em);
}

static int write_plot(const char *path, const struct load_options *o, const struct load_run *run,
                      struct summary *s, struct errmsg *em)
{
    FILE *f;
    int rc = plot_open(path, &f, em);
    if (rc < 0) return rc;
    plot_curve(f, PLOT_LEFT, "TTFT", &s->ttft);
    plot_curve(f, PLOT_RIGHT, o->scenario == LOAD_CONVOY ? "ITL beside long prompts" : "ITL",
               &s->itl);
    (void)fprintf(f,
                  "<text x='60' y='308'>%s, %" PRIu32 " requests, %.1f tokens/s; share of samples "
                  "up to so many ms</text>\n",
                  load_scenario_name(o->scenario), run->n_records,
                  (double)s->n_tokens * 1000.0 / run->wall_ms);
    return plot_close(f, path, em);
}

int load_report(const struct load_options *o, struct load_run *r, bool json, bool *ret_pass,
                struct errmsg *em)
{
    struct summary s = {.n_failed = 0};
    int rc = 0;
    sum_up(o, r, &s);
    (json ? print_json : print_text)(o, r, &s);
    *ret_pass =
        s.n_failed == 0 && s.n_mismatched == 0 && (o->scenario != LOAD_CONVOY || s.verdict.pass);
    if (o->out) rc = write_records(o->out, r, em);
    if (rc == 0 && o->plot) rc = write_plot(o->plot, o, r, &s, em);
    close_summary(&s);
    return rc;
}

void load_run_close(struct load_run *r)
{
    for (uint32_t i = 0; i < r->n_records; i++) {
        mem_free(r->records[i].prompt);
        mem_free(r->records[i].tokens.ids);
        samples_close(&r->records[i].itl);
    }
    mem_free(r->records);
    *r = (struct load_run){0};
}
