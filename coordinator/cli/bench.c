/* `bench --model`: the engine's speed on this machine, beside what its memory and its instructions
 * can give. */
#include "coordinator/cli/bench.h"

#include "common/base/clock.h"
#include "common/base/machine.h"
#include "common/base/mem.h"
#include "common/base/samples.h"
#include "coordinator/cli/cmd.h"

#include <stdio.h>
#include <string.h>

#define READ_BYTES ((size_t)1 << 30) /* less where less than twice that can be had */
#define READ_BYTES_LEAST ((size_t)32 << 20)
#define READ_PASSES 7 /* of each loop */

struct options {
    const char *model, *isa, *kv, *pre, *rows, *streams, *plot;
    uint32_t chunk;
    bool kernels, json;
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

/* Bytes a second of the better of a plain and a prefetching loop: the median of its passes, since
 * it is compared with the mean over many tokens, and not with the fastest of them. */
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
    struct samples rates[2] = {{0}, {0}};
    if (pool_open(threads, &pool, &em) == 0) {
        for (int pass = 0; pass < 2 * READ_PASSES; pass++) {
            l.prefetch = pass & 1;
            uint64_t start = clock_ns();
            pool_run(pool, read_part, &l);
            samples_add(&rates[pass & 1], (double)l.bytes * 1e9 / (double)(clock_ns() - start));
        }
        pool_close(pool);
    }
    mem_pages_free((void *)(uintptr_t)l.data, l.bytes);
    double plain = samples_percentile(&rates[0], 50), ahead = samples_percentile(&rates[1], 50);
    samples_close(&rates[0]);
    samples_close(&rates[1]);
    return plain > ahead ? plain : ahead;
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static int open_whole(const struct bench *b, const struct options *o, const struct model_file *f,
                      struct whole *w, struct errmsg *em)
{
    uint32_t rows = larger(bench_steps_rows(&b->rows), bench_steps_rows(&b->streams));
    uint32_t context = b->depth + larger(b->prompt, b->tokens);
    context = larger(context, bench_steps_context(&b->rows, b->depth));
    context = larger(context, bench_steps_context(&b->streams, b->depth));
    struct whole_options wo = {.isa = o->isa,
                               .kv = o->kv,
                               .threads = b->threads,
                               .positions =
                                   larger(context, bench_steps_positions(&b->streams, b->depth)),
                               .context = larger(context, 1),
                               .chunk = larger(o->chunk, rows),
                               .logits = rows};
    return whole_open(f, &wo, w, em);
}

/* A decoded token reads every tensor but the embedding, whose one row does not count; a tied
 * embedding is read whole as the output head. */
static int count_bytes(const struct model_file *f, uint64_t *ret, struct errmsg *em)
{
    int rc = eng_slice_bytes(f->weights, &f->dims, 0, f->dims.n_layers - 1, ret, em);
    if (rc == 0 && weights_tensor(f->weights, "output.weight"))
        *ret -= weights_tensor(f->weights, "token_embd.weight")->bytes;
    return rc;
}

static int measure(struct bench *b, const struct options *o, struct whole *w, struct errmsg *em)
{
    struct whole_work work = {.prompt = b->prompt,
                              .prompt_at = b->depth,
                              .tokens = b->tokens,
                              .depth = b->depth,
                              .chunk = o->chunk};
    int rc = whole_measure(w, &work, &b->prompt_rate, &b->decode_rate, em);
    if (rc < 0) return rc;
    b->isa = eng_isa(w->engine);
    b->products = eng_products(w->engine);
    b->prompt_heads = (b->prompt + o->chunk - 1) / o->chunk; /* the last row of each chunk */
    for (uint32_t type = 0; type < BENCH_TYPE_NUMBERS; type++)
        b->few[type] = eng_few(w->engine, type);
    for (int op = 0; op < ENG_N_OPS; op++)
        eng_dispatch(w->engine, (enum eng_op)op, &b->dispatch[op]);
    rc = bench_steps_run(w, b->depth, &b->rows, em);
    return rc < 0 ? rc : bench_steps_run(w, b->depth, &b->streams, em);
}

/* The machine's own rates come last: the engine's threads are gone, and so are its weights. */
static int run_model(struct bench *b, const struct options *o, struct errmsg *em)
{
    struct model_file f = {0};
    struct whole w = {0};
    int rc = model_file_open(o->model, true, o->pre, &f, em);
    if (rc < 0) return rc;
    rc = open_whole(b, o, &f, &w, em);
    if (rc == 0) rc = count_bytes(&f, &b->bytes_per_token, em);
    if (rc == 0) rc = measure(b, o, &w, em);
    whole_close(&w);
    model_file_close(&f);
    if (rc == 0 && b->prompt) rc = kern_rate_peak(o->isa, b->threads, &b->peak_per_s, em);
    if (rc == 0 && b->tokens) b->read_per_s = read_rate(b->threads);
    return rc;
}

static int run_kernels(struct bench *b, const char *isa, struct errmsg *em)
{
    struct bench_kernels *k = &b->kernels;
    int rc = kern_rate_isa(isa, &b->isa, em);
    if (rc == 0) rc = kern_rate_peak(isa, 1, &k->peak_per_s, em);
    for (uint32_t type = 0; type < BENCH_TYPE_NUMBERS && rc == 0; type++) {
        const struct qtype_info *info = qtype_info(type);
        if (!info || !info->computed) continue;
        k->types[k->n] = (enum qtype)type;
        for (uint32_t i = 0; i < BENCH_KERNEL_COUNTS && rc == 0; i++)
            rc = kern_rate_linear(isa, (enum qtype)type, bench_kernel_rows[i], &k->rates[k->n][i],
                                  em);
        k->n++;
    }
    return rc;
}

static int check(struct bench *b, const struct options *o, struct errmsg *em)
{
    int rc = 0;
    if (!o->model && !o->kernels) return err_set(em, ERR_CONF, "needs --model, or --kernels");
    if (!o->model && (o->rows || o->streams))
        return err_set(em, ERR_CONF, "%s needs --model", o->rows ? "--rows" : "--streams");
    if (o->plot && !o->rows && !o->streams)
        return err_set(em, ERR_CONF, "--plot draws what --rows and --streams measure");
    b->streams.streams = true;
    if (o->rows) rc = bench_steps_parse("--rows", o->rows, &b->rows, em);
    if (o->streams && rc == 0) rc = bench_steps_parse("--streams", o->streams, &b->streams, em);
    return rc;
}

static int run(struct bench *b, const struct options *o, struct errmsg *em)
{
    int rc = check(b, o, em);
    b->with_model = o->model != NULL;
    if (rc == 0 && o->model) rc = run_model(b, o, em);
    if (rc == 0 && o->kernels) rc = run_kernels(b, o->isa, em);
    if (rc < 0) return rc;
    if (o->json) {
        struct json *j = bench_json(b);
        json_print(j, stdout);
        json_free(j);
    } else {
        bench_print(b);
    }
    return o->plot ? bench_plot(b, o->plot, em) : 0;
}

int cmd_bench(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], "--cluster", strlen("--cluster")) == 0) return cmd_load(argc, argv);
    struct bench b = {.prompt = 512, .tokens = 128, .threads = pool_cores()};
    struct options o = {.chunk = 512};
    const struct opt table[] = {
        {"--model", 'm', OPT_STRING, &o.model, 0, 0, NULL, "FILE  a GGUF file"},
        {"--prompt", 'p', OPT_U32, &b.prompt, 0, 1 << 20, NULL, "N  prompt tokens (512)"},
        {"--tokens", 'n', OPT_U32, &b.tokens, 0, 1 << 20, NULL, "N  decoded tokens (128)"},
        {"--depth", 'd', OPT_U32, &b.depth, 0, 1 << 20, NULL,
         "N  positions before the prompt, and before what is decoded (0)"},
        {"--rows", 0, OPT_STRING, &o.rows, 0, 0, NULL,
         "LIST  also steps of so many rows (1,2,4,8,16,32), as multiples of a step of one"},
        {"--streams", 0, OPT_STRING, &o.streams, 0, 0, NULL,
         "LIST  also so many sequences (1,2,4,8,16) that are decoded together, likewise"},
        {"--kernels", 0, OPT_FLAG, &o.kernels, 0, 0, NULL,
         "also products of every weight type with 1 to 32 rows; goes without a model too"},
        {"--plot", 0, OPT_STRING, &o.plot, 0, 0, NULL,
         "FILE  an SVG of --rows against time and --streams against tokens/s"},
        {"--chunk", 0, OPT_U32, &o.chunk, 1, 4096, NULL, "N  prompt tokens computed at once (512)"},
        CMD_OPT_THREADS(&b.threads),
        CMD_OPT_PRE(&o.pre),
        CMD_OPT_ISA(&o.isa),
        CMD_OPT_KV(&o.kv),
        CMD_OPT_JSON(&o.json),
        {0},
    };
    size_t n_rest;
    int status;
    if (!cmd_options(
            "flotilla bench --model FILE [-p 512] [-n 128] [options]\n"
            "       flotilla bench --cluster ADDR [options]   (add --help for its options)",
            "  flotilla bench --model smol.gguf -p 512 -n 128 --threads 2 --json\n"
            "  flotilla bench --model smol.gguf -p 0 -n 0 --rows 1,2,4,8,16,32 --plot rows.svg\n"
            "  flotilla bench --model smol.gguf -p 0 -n 0 --streams 1,4,16 --depth 1024\n"
            "  flotilla bench --kernels --isa avx2\n",
            table, argc, argv, NULL, 0, &n_rest, &status))
        return status;
    struct errmsg em = {0};
    int rc = run(&b, &o, &em);
    return rc < 0 ? cmd_fail("bench", rc, &em) : CMD_OK;
}
