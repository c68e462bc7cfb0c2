/* `flotilla simulate`: the coordinator's core on a trace of requests, in virtual time. The model of
 * a replica is in coordinator/sim/README.md, and in short in --help. */
#include "coordinator/cli/cmd.h"

#include "common/text/json.h"
#include "coordinator/cli/plot.h"
#include "coordinator/cli/whole.h"
#include "coordinator/sim/fifo.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SYNTHETIC "synthetic"
#define MEASURED_TOKENS 64u /* of an answer, behind one block */

static const char examples[] =
    "  flotilla simulate --trace conversation_trace.jsonl --replicas 8 --cache-blocks 10%\n"
    "  flotilla simulate --trace synthetic:groups=20,own=4 --replicas 2 --concurrency 16\n"
    "  flotilla simulate --trace synthetic --policy cost --weight 0.2 --load 1.1\n"
    "  flotilla simulate --trace synthetic --replicas 1000 --cache-blocks 500 --json\n"
    "\n"
    "The trace has a JSON object on each line: timestamp (ms), input_length, output_length\n"
    "(tokens) and hash_ids, one for each block of 512 tokens of the prompt; prompts begin alike\n"
    "as far as their ids do. Or it is made up: synthetic:KEY=VALUE,... with requests (4000),\n"
    "groups (64) that share the first blocks of their prompts (shared, 32 on average) and have\n"
    "others alone (own, 8), answer (200 tokens on average), and skew (1): group g is asked\n"
    "1 / g^skew times as often as the first one.\n"
    "\n"
    "A replica computes one request after the other. A block of a prompt takes --block-ms, or\n"
    "nothing where its cache has it, and a token of an answer --token-ms. --model measures both\n"
    "on this machine. The load is the work that an unlimited cache would leave, of what the\n"
    "replicas can do in the time in which requests come; the trace's times are stretched to it.\n"
    "\n"
    "hit_rate is the blocks that were found computed, of all blocks of all prompts, and\n"
    "bound_hit_rate those that one unlimited cache for all replicas would have found.\n"
    "max_over_mean_work is the busiest replica's work, of the mean of all; largest_share the\n"
    "requests of the replica that took most, of all. ttft_* is the time from a request's arrival\n"
    "to its first token. core_us_per_event, arrival_us_* (a request comes) and compose_us_p99\n"
    "(the next Steps are formed) are what the core itself took, in CPU time.\n";

struct simulate {
    const char *trace_name, *cache, *model, *plot, *policy;
    float load, block_ms, token_ms, weight;
    uint32_t threads; /* of the model; 0: all cores */
    bool load_given, times_given, weight_given, json;
    struct fifo_options options;
    struct trace trace;
    struct fifo_result result;
};

/* ---- options ---- */

static int open_trace(struct simulate *s, struct errmsg *em)
{
    const char *name = s->trace_name;
    if (!name) return err_set(em, ERR_CONF, "needs --trace");
    size_t n = strlen(SYNTHETIC);
    bool synthetic = strncmp(name, SYNTHETIC, n) == 0 && (name[n] == ':' || name[n] == 0);
    if (!synthetic) return trace_read(name, &s->trace, em);
    struct trace_spec spec = TRACE_SPEC_DEFAULT;
    int rc = trace_parse_spec(name + n + (name[n] == ':'), &spec, em);
    if (rc == 0) rc = trace_make(&spec, s->options.seed, &s->trace, em);
    return rc < 0 ? err_wrap(em, rc, "--trace %s", SYNTHETIC) : 0;
}

/* "18279", or "10%" of the trace's distinct blocks. */
static int set_cache(struct simulate *s, struct errmsg *em)
{
    const char *text = s->cache;
    char *end;
    double v = strtod(text, &end);
    bool percent = *end == '%';
    if (percent) v *= s->trace.n_distinct / 100.0;
    if (end == text || end[percent] || !(v >= 1.0 && v <= (double)TRACE_BLOCKS_MAX))
        return err_set(em, ERR_CONF,
                       "--cache-blocks: '%s' is neither a number in 1..%u nor a share, like 10%%",
                       text, TRACE_BLOCKS_MAX);
    s->options.cache_blocks = (uint32_t)v;
    return 0;
}

/* What this machine takes for a block and for a token of the model, if one is given. */
static int set_times(struct simulate *s, struct errmsg *em)
{
    struct whole_work work = {.prompt = TRACE_BLOCK_TOKENS,
                              .tokens = MEASURED_TOKENS,
                              .depth = TRACE_BLOCK_TOKENS,
                              .chunk = TRACE_BLOCK_TOKENS};
    struct whole_options o = {
        .threads = s->threads, .positions = work.depth + work.tokens, .chunk = work.chunk};
    struct model_file f = {0};
    struct whole w = {0};
    double prompt_rate, decode_rate;
    s->options.block_ns = (uint64_t)((double)s->block_ms * 1e6 + 0.5);
    s->options.token_ns = (uint64_t)((double)s->token_ms * 1e6 + 0.5);
    if (!s->model) return 0;
    int rc = model_file_open(s->model, true, NULL, &f, em);
    if (rc < 0) return rc;
    rc = whole_open(&f, &o, &w, em);
    if (rc == 0) rc = whole_measure(&w, &work, &prompt_rate, &decode_rate, em);
    if (rc == 0) {
        s->options.block_ns = (uint64_t)(TRACE_BLOCK_TOKENS * 1e9 / prompt_rate);
        s->options.token_ns = (uint64_t)(1e9 / decode_rate);
    }
    whole_close(&w);
    model_file_close(&f);
    return rc;
}

static int set_policy(struct simulate *s, struct errmsg *em)
{
    char names[ROUTE_POLICIES_TEXT_BYTES];
    if (!route_policy_parse(s->policy, &s->options.policy))
        return err_set(em, ERR_CONF, "--policy: '%s' is unknown (%s)", s->policy,
                       route_policies_text(names));
    if (s->weight_given && s->options.policy != ROUTE_COST)
        return err_set(em, ERR_CONF, "--weight goes with --policy cost");
    s->options.route_weight = (double)s->weight;
    return 0;
}

static int set_up(struct simulate *s, struct errmsg *em)
{
    if (s->model && s->times_given)
        return err_set(em, ERR_CONF, "--model measures what --block-ms and --token-ms say");
    if (s->load_given && s->options.concurrency)
        return err_set(em, ERR_CONF, "--load and --concurrency exclude each other");
    int rc = set_policy(s, em);
    if (rc == 0) rc = open_trace(s, em);
    if (rc == 0) rc = set_cache(s, em);
    s->options.load = round((double)s->load * 1e6) / 1e6; /* what was written, which no float is */
    return rc < 0 ? rc : set_times(s, em);
}

/* ---- results ---- */

static void print_json(struct simulate *s)
{
    const struct trace *t = &s->trace;
    struct fifo_result *r = &s->result;
    struct json *j = json_new_object();
    json_put_real(j, "hit_rate", fifo_hit_rate(t, r));
    json_put_real(j, "bound_hit_rate", fifo_bound_hit_rate(t));
    json_put_real(j, "max_over_mean_work", fifo_max_over_mean(r));
    json_put_real(j, "ttft_p50_ms", samples_percentile(&r->ttft_ms, 50));
    json_put_real(j, "ttft_p90_ms", samples_percentile(&r->ttft_ms, 90));
    json_put_real(j, "ttft_p99_ms", samples_percentile(&r->ttft_ms, 99));
    json_put_real(j, "largest_share", fifo_largest_share(r));
    json_put_real(j, "core_us_per_event", r->events_us / (double)r->events);
    json_put_real(j, "arrival_us_p50", samples_percentile(&r->arrival_us, 50));
    json_put_real(j, "arrival_us_p99", samples_percentile(&r->arrival_us, 99));
    json_put_real(j, "compose_us_p99", samples_percentile(&r->compose_us, 99));
    json_put_u64(j, "events", r->events);
    json_put_string(j, "policy", s->policy, strlen(s->policy));
    json_put_int(j, "replicas", s->options.n_replicas);
    json_put_int(j, "cache_blocks", s->options.cache_blocks);
    if (s->options.concurrency)
        json_put_null(j, "load");
    else
        json_put_real(j, "load", s->options.load);
    json_put_int(j, "concurrency", s->options.concurrency);
    json_put_real(j, "block_ms", (double)s->options.block_ns / 1e6);
    json_put_real(j, "token_ms", (double)s->options.token_ns / 1e6);
    json_put_int(j, "requests", t->n_requests);
    json_put_int(j, "blocks", t->n_blocks);
    json_put_int(j, "distinct_blocks", t->n_distinct);
    json_put_u64(j, "answer_tokens", t->answer_tokens);
    json_put_real(j, "took_ms", (double)r->took_ns / 1e6);
    json_print(j, stdout);
    json_free(j);
}

static void print_text(struct simulate *s)
{
    const struct trace *t = &s->trace;
    struct fifo_result *r = &s->result;
    (void)printf("%" PRIu32 " requests, %" PRIu32 " blocks (%" PRIu32 " distinct), %" PRIu64
                 " tokens of answers\n%" PRIu32 " replica%s with caches of %" PRIu32 " blocks, ",
                 t->n_requests, t->n_blocks, t->n_distinct, t->answer_tokens, s->options.n_replicas,
                 s->options.n_replicas == 1 ? "" : "s", s->options.cache_blocks);
    (void)printf("policy %s, ", s->policy);
    if (s->options.concurrency)
        (void)printf("%" PRIu32 " live request%s\n", s->options.concurrency,
                     s->options.concurrency == 1 ? "" : "s");
    else
        (void)printf("load %.3g\n", s->options.load);
    (void)printf("a block takes %.4g ms, a token of an answer %.4g ms\n\n",
                 (double)s->options.block_ns / 1e6, (double)s->options.token_ns / 1e6);
    (void)printf("hits  %.3f of all blocks of all prompts (%.3f with one unlimited cache)\n",
                 fifo_hit_rate(t, r), fifo_bound_hit_rate(t));
    (void)printf("TTFT  p50 %.4g  p90 %.4g  p99 %.4g ms\n", samples_percentile(&r->ttft_ms, 50),
                 samples_percentile(&r->ttft_ms, 90), samples_percentile(&r->ttft_ms, 99));
    (void)printf("work  the busiest replica has %.3f of the mean; one took %.3f of the requests\n",
                 fifo_max_over_mean(r), fifo_largest_share(r));
    (void)printf(
        "core  %.2f us an event; an arrival p50 %.2f, p99 %.2f us; a Compose p99 %.2f us\n",
        r->events_us / (double)r->events, samples_percentile(&r->arrival_us, 50),
        samples_percentile(&r->arrival_us, 99), samples_percentile(&r->compose_us, 99));
}

static int write_plot(struct simulate *s, struct errmsg *em)
{
    struct fifo_result *r = &s->result;
    struct samples work = {0};
    FILE *f;
    int rc = plot_open(s->plot, &f, em);
    if (rc < 0) return rc;
    for (uint32_t i = 0; i < r->n_replicas; i++) samples_add(&work, (double)r->replicas[i].work_ns);
    plot_curve(f, PLOT_LEFT, "TTFT", &r->ttft_ms);
    plot_bars(f, PLOT_RIGHT, "work of each replica, of the mean", &work);
    (void)fprintf(f,
                  "<text x='%.0f' y='308'>%" PRIu32 " requests on %" PRIu32 " replicas of %" PRIu32
                  " blocks; hits %.3f of all blocks of all prompts</text>\n",
                  PLOT_LEFT, s->trace.n_requests, r->n_replicas, s->options.cache_blocks,
                  fifo_hit_rate(&s->trace, r));
    samples_close(&work);
    return plot_close(f, s->plot, em);
}

int cmd_simulate(int argc, char **argv)
{
    struct simulate s = {.cache = "10%",
                         .load = 0.8f,
                         .block_ms = 1.0f,
                         .token_ms = 0.01f,
                         .weight = 1.0f,
                         .policy = "auto",
                         .options = {.n_replicas = 8, .seed = 1}};
    const struct opt table[] = {
        {"--trace", 0, OPT_STRING, &s.trace_name, 0, 0, NULL,
         "FILE  of requests, or synthetic[:KEY=VALUE,...]"},
        {"--replicas", 'r', OPT_U32, &s.options.n_replicas, 1, 1000, NULL, "N  (8)"},
        {"--cache-blocks", 0, OPT_STRING, &s.cache, 0, 0, NULL,
         "C  of each replica; or P%, of the trace's distinct blocks (10%)"},
        {"--load", 0, OPT_F32, &s.load, 0.01, 100, &s.load_given,
         "L  open loop: requests come with this load (0.8)"},
        {"--concurrency", 'c', OPT_U32, &s.options.concurrency, 1, TRACE_REQUESTS_MAX, NULL,
         "N  closed loop: N requests at once, whatever the trace's times"},
        {"--policy", 0, OPT_STRING, &s.policy, 0, 0, NULL,
         "NAME  auto, round_robin, least_loaded, affinity, cost, product or near_min (auto)"},
        {"--weight", 0, OPT_F32, &s.weight, 1e-3, 1e3, &s.weight_given,
         "W  of what waits at a replica, with --policy cost (1)"},
        {"--block-ms", 0, OPT_F32, &s.block_ms, 1e-3, 1e5, &s.times_given,
         "X  for a block of 512 tokens of a prompt (1)"},
        {"--token-ms", 0, OPT_F32, &s.token_ms, 0, 1e4, &s.times_given,
         "X  for a token of an answer (0.01)"},
        {"--model", 'm', OPT_STRING, &s.model, 0, 0, NULL,
         "FILE  take what this machine needs for a block and a token of it"},
        CMD_OPT_THREADS(&s.threads),
        {"--seed", 0, OPT_U64, &s.options.seed, 0, 0, NULL, "S  of all that is drawn (1)"},
        {"--plot", 0, OPT_STRING, &s.plot, 0, 0, NULL,
         "FILE  an SVG of TTFT and of each replica's work"},
        CMD_OPT_JSON(&s.json),
        {0},
    };
    size_t n_rest;
    int status;
    if (!cmd_options("flotilla simulate --trace FILE --replicas N [--cache-blocks C]"
                     " [--load L | --concurrency N] [options]",
                     examples, table, argc, argv, NULL, 0, &n_rest, &status))
        return status;
    struct errmsg em = {0};
    int rc = set_up(&s, &em);
    if (rc == 0) rc = fifo_run(&s.trace, &s.options, &s.result, &em);
    if (rc == 0 && s.plot) rc = write_plot(&s, &em);
    if (rc == 0) (s.json ? print_json : print_text)(&s);
    fifo_close(&s.result);
    trace_close(&s.trace);
    return rc < 0 ? cmd_fail("simulate", rc, &em) : CMD_OK;
}
