/* `bench --model`: the engine's speed on this machine, with the memory's read rate beside it. */
#include "coordinator/cli/cmd.h"

#include "common/base/clock.h"
#include "common/base/machine.h"
#include "common/base/mem.h"
#include "common/text/json.h"
#include "coordinator/cli/bench_rows.h"
#include "coordinator/cli/whole.h"

#include <stdio.h>
#include <string.h>

#define READ_BYTES ((size_t)1 << 30) /* less where less than twice that can be had */
#define TYPE_NUMBERS 64u             /* beyond those that GGUF has given to weight types */
#define READ_BYTES_LEAST ((size_t)32 << 20)

struct bench {
    const char *path, *isa, *kv, *pre;
    uint32_t prompt, tokens, threads, chunk, depth;
    double prompt_rate, decode_rate, read_gb_per_s;
    const char *used_isa;
    uint64_t bytes_per_token;
    struct stats_view dispatch[ENG_N_OPS];
    struct bench_rows rows;
    uint32_t few[TYPE_NUMBERS]; /* eng_few */
};

struct read_loop {
    const uint8_t *data;
    size_t bytes;
    bool prefetch;
    uint64_t sums[POOL_THREADS_MAX]; /* keeps the loads from being dropped */
};

static void read_part(void *arg, unsigned idx, unsigned n)
{
    struct read_loop *l = arg;
    const uint8_t *p = l->data + l->bytes / 64 * idx / n * 64;
    const uint8_t *end = l->data + l->bytes / 64 * (idx + 1) / n * 64;
    uint64_t s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    for (; p < end; p += 64) {
        uint64_t v[8];
        if (l->prefetch) {
            __builtin_prefetch(p + 4096, 0, 2);
            __builtin_prefetch(p + 1024, 0, 3);
        }
        memcpy(v, p, sizeof v);
        s0 += v[0] + v[4];
        s1 += v[1] + v[5];
        s2 += v[2] + v[6];
        s3 += v[3] + v[7];
    }
    l->sums[idx] = s0 + s1 + s2 + s3;
}

/* The better of a plain and a prefetching loop, best of five passes each. */
static double read_rate(unsigned threads)
{
    struct errmsg em;
    struct pool *pool;
    struct machine_memory memory = machine_memory("");
    struct read_loop l = {.bytes = READ_BYTES};
    while (l.bytes > machine_free(&memory) / 2 && l.bytes > READ_BYTES_LEAST) l.bytes /= 2;
    l.data = mem_pages(l.bytes);
    if (!l.data) return 0.0;
    memset((void *)(uintptr_t)l.data, 1, l.bytes);
    double best = 0.0;
    if (pool_open(threads, &pool, &em) == 0) {
        for (int pass = 0; pass < 10; pass++) {
            l.prefetch = pass & 1;
            uint64_t start = clock_ns();
            pool_run(pool, read_part, &l);
            double rate = (double)l.bytes / (double)(clock_ns() - start);
            if (rate > best) best = rate;
        }
        pool_close(pool);
    }
    mem_pages_free((void *)(uintptr_t)l.data, l.bytes);
    return best;
}

static int run(struct bench *b, struct errmsg *em)
{
    struct model_file f = {0};
    struct whole w = {0};
    int rc = model_file_open(b->path, true, b->pre, &f, em);
    if (rc < 0) return rc;
    uint32_t most = bench_rows_most(&b->rows);
    uint32_t end = b->depth + (b->tokens > most ? b->tokens : most);
    struct whole_options o = {.isa = b->isa,
                              .kv = b->kv,
                              .threads = b->threads,
                              .positions = b->prompt > end ? b->prompt : end,
                              .chunk = b->chunk > most ? b->chunk : most,
                              .logits = most};
    rc = whole_open(&f, &o, &w, em);
    /* A decoded token touches every tensor but the embedding, whose one row does not count; a tied
     * embedding is read whole as the output head. */
    if (rc == 0)
        rc = eng_slice_bytes(f.weights, &f.dims, 0, f.dims.n_layers - 1, &b->bytes_per_token, em);
    if (rc == 0 && weights_tensor(f.weights, "output.weight"))
        b->bytes_per_token -= weights_tensor(f.weights, "token_embd.weight")->bytes;
    struct whole_work work = {
        .prompt = b->prompt, .tokens = b->tokens, .depth = b->depth, .chunk = b->chunk};
    if (rc == 0) rc = whole_measure(&w, &work, &b->prompt_rate, &b->decode_rate, em);
    if (rc == 0) b->used_isa = eng_isa(w.engine);
    for (uint32_t type = 0; type < TYPE_NUMBERS && rc == 0; type++)
        b->few[type] = eng_few(w.engine, type);
    for (int op = 0; op < ENG_N_OPS && rc == 0; op++)
        eng_dispatch(w.engine, (enum eng_op)op, &b->dispatch[op]);
    if (rc == 0 && most) rc = bench_rows_run(&w, b->depth, &b->rows, em);
    whole_close(&w);
    model_file_close(&f);
    if (rc == 0 && (b->tokens || !most)) b->read_gb_per_s = read_rate(b->threads);
    return rc;
}

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
    json_put(all, b->used_isa, level);
    return all;
}

/* {"Q4_K": most rows whose products read its tiles, ...} */
static struct json *json_few(const struct bench *b)
{
    struct json *o = json_new_object();
    for (uint32_t type = 0; type < TYPE_NUMBERS; type++)
        if (b->few[type]) json_put_int(o, qtype_info(type)->name, b->few[type]);
    return o;
}

static void print_text(const struct bench *b, double decode_gb)
{
    if (b->prompt) (void)printf("prompt  %u tokens  %.1f tokens/s\n", b->prompt, b->prompt_rate);
    if (b->tokens)
        (void)printf("decode  %u tokens  %.1f tokens/s  %.1f GB/s of weights; memory reads %.1f "
                     "GB/s\n",
                     b->tokens, b->decode_rate, decode_gb, b->read_gb_per_s);
    if (b->rows.n_counts) bench_rows_print(&b->rows);
    (void)printf("isa %s, %u threads; rows straight from tiles, at most:", b->used_isa, b->threads);
    for (uint32_t type = 0; type < TYPE_NUMBERS; type++)
        if (b->few[type]) (void)printf(" %s %u", qtype_info(type)->name, b->few[type]);
    (void)printf("\n");
}

static void print(const struct bench *b, bool json)
{
    double decode_gb = b->decode_rate * (double)b->bytes_per_token / 1e9;
    if (!json) {
        print_text(b, decode_gb);
        return;
    }
    struct json *j = json_new_object();
    json_put_real(j, "prompt_tokens_per_s", b->prompt_rate);
    json_put_real(j, "decode_tokens_per_s", b->decode_rate);
    json_put_string(j, "isa", b->used_isa, strlen(b->used_isa));
    json_put_int(j, "threads", b->threads);
    if (b->read_gb_per_s > 0) json_put_real(j, "read_gb_per_s", b->read_gb_per_s);
    json_put_real(j, "decode_gb_per_s", decode_gb);
    json_put(j, "dispatch", json_dispatch(b));
    json_put(j, "rows_from_tiles", json_few(b));
    if (b->rows.n_counts) json_put(j, "rows", bench_rows_json(&b->rows));
    json_print(j, stdout);
    json_free(j);
}

int cmd_bench(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], "--cluster", strlen("--cluster")) == 0) return cmd_load(argc, argv);
    struct bench b = {.prompt = 512, .tokens = 128, .threads = pool_cores(), .chunk = 512};
    bool json = false;
    const char *rows = NULL;
    const struct opt table[] = {
        {"--model", 'm', OPT_STRING, &b.path, 0, 0, NULL, "FILE  a GGUF file"},
        {"--prompt", 'p', OPT_U32, &b.prompt, 0, 1 << 20, NULL, "N  prompt tokens (512)"},
        {"--tokens", 'n', OPT_U32, &b.tokens, 0, 1 << 20, NULL, "N  decoded tokens (128)"},
        {"--depth", 'd', OPT_U32, &b.depth, 0, 1 << 20, NULL,
         "N  position at which decoding starts (0)"},
        {"--rows", 0, OPT_STRING, &rows, 0, 0, NULL,
         "LIST  also steps of so many rows (1,2,4,8,16,32), as multiples of a step of one"},
        {"--chunk", 0, OPT_U32, &b.chunk, 1, 4096, NULL, "N  prompt tokens computed at once (512)"},
        CMD_OPT_THREADS(&b.threads),
        CMD_OPT_PRE(&b.pre),
        CMD_OPT_ISA(&b.isa),
        CMD_OPT_KV(&b.kv),
        CMD_OPT_JSON(&json),
        {0},
    };
    size_t n_rest;
    int status;
    if (!cmd_options(
            "flotilla bench --model FILE [-p 512] [-n 128] [options]\n"
            "       flotilla bench --cluster ADDR [options]   (add --help for its options)",
            "  flotilla bench --model smol.gguf -p 512 -n 128 --threads 2 --json\n"
            "  flotilla bench --model smol.gguf -p 0 -n 0 --rows 1,2,4,8,16,32\n",
            table, argc, argv, NULL, 0, &n_rest, &status))
        return status;
    struct errmsg em = {0};
    if (!b.path) {
        (void)err_set(&em, ERR_CONF, "needs --model");
        return cmd_fail("bench", ERR_CONF, &em);
    }
    int rc = rows ? bench_rows_parse(rows, &b.rows, &em) : 0;
    if (rc == 0) rc = run(&b, &em);
    if (rc < 0) return cmd_fail("bench", rc, &em);
    print(&b, json);
    return CMD_OK;
}
