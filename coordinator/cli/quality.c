/* `quality`: how well a model file predicts a text, and how far its predictions lie from those of a
 * baseline: another model file, or vectors, the logits recorded from one (tests/model/record.py).
 *
 * Perplexity of GGUF models is usually quoted so: the text is cut into windows of N tokens (a last
 * partial one is dropped), a window's first token is replaced by BOS where the model wants BOS, and
 * the second half of each is scored.
 *
 * Vectors, little-endian: "flotvec1", u32 sequences; for each u32 n, i32 ids[n], and for each of
 * the n positions f32 log-sum-exp, u32 id[128], u16 d[128]: the largest logits are lse - d / 1024.
 */
#include "coordinator/cli/cmd.h"

#include "common/base/buf.h"
#include "common/base/cursor.h"
#include "common/base/mem.h"
#include "common/text/json.h"
#include "coordinator/cli/kl.h"
#include "coordinator/cli/whole.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAGIC "flotvec1"
#define FILE_BYTES_MAX ((size_t)64 << 20)
#define ROWS 32u /* of a step */

struct quality {
    const char *model, *text, *baseline, *isa, *kv, *baseline_kv, *pre;
    uint32_t window, threads;
    struct model_file file, base_file;
    struct whole whole, base;
    /* of the scored positions */
    double nll;
    uint64_t tokens;
    struct kl_list kl;
};

static int read_file(const char *path, struct buf *ret, struct errmsg *em)
{
    FILE *f = fopen(path, "rb");
    char block[65536];
    size_t n;
    if (!f) return err_set(em, ERR_NOTFOUND, "%s: cannot be opened", path);
    while ((n = fread(block, 1, sizeof block, f)) > 0 && ret->len <= FILE_BYTES_MAX)
        (void)buf_append(ret, block, n);
    bool failed = ferror(f);
    (void)fclose(f);
    if (failed) return err_set(em, ERR_IO, "%s: cannot be read", path);
    if (ret->len > FILE_BYTES_MAX)
        return err_set(em, ERR_LIMIT, "%s: more than %zu bytes", path, FILE_BYTES_MAX);
    return 0;
}

/* ---- a baseline that was recorded ---- */

static int compare_recorded(struct quality *q, const float *logits, const struct kl_recorded *r,
                            struct errmsg *em)
{
    uint32_t n = q->file.dims.vocab;
    for (uint32_t i = 0; i < KL_TOP; i++)
        if (r->id[i] >= n)
            return err_set(em, ERR_FORMAT, "%s: token %" PRIu32 " of %" PRIu32, q->baseline,
                           r->id[i], n);
    kl_add(&q->kl, kl_from_recorded(r, logits, n), kl_largest(logits, n) == r->id[0]);
    return 0;
}

static bool take_recorded(struct cursor *c, struct kl_recorded *ret)
{
    const uint8_t *p = cursor_take(c, sizeof ret->lse + sizeof ret->id + sizeof ret->logit);
    if (!p) return false;
    memcpy(&ret->lse, p, sizeof ret->lse);
    memcpy(ret->id, p + sizeof ret->lse, sizeof ret->id);
    memcpy(ret->logit, p + sizeof ret->lse + sizeof ret->id, sizeof ret->logit);
    return true;
}

static int run_sequence(struct quality *q, struct cursor *c, struct errmsg *em)
{
    uint32_t n = cursor_u32(c), vocab = q->file.dims.vocab;
    if (n > q->window)
        return err_set(em, ERR_LIMIT,
                       "%s: a sequence of %" PRIu32 " tokens, the window is %" PRIu32, q->baseline,
                       n, q->window);
    const uint8_t *raw = cursor_take(c, (uint64_t)n * 4);
    if (!raw) return err_set(em, ERR_FORMAT, "%s: cut short at byte %zu", q->baseline, c->pos);
    int32_t *ids = mem_alloc((size_t)n * sizeof *ids);
    memcpy(ids, raw, (size_t)n * sizeof *ids);
    int rc = 0;
    for (uint32_t at = 0; at < n && rc == 0; at += ROWS) {
        uint32_t rows = n - at < ROWS ? n - at : ROWS;
        const float *logits;
        rc = whole_step(&q->whole, at, ids + at, rows, rows, &logits, em);
        for (uint32_t i = 0; i < rows && rc == 0; i++) {
            struct kl_recorded r;
            logits = eng_logits(q->whole.engine, i);
            if (!take_recorded(c, &r))
                rc = err_set(em, ERR_FORMAT, "%s: cut short at byte %zu", q->baseline, c->pos);
            else
                rc = compare_recorded(q, logits, &r, em);
            if (rc < 0 || at + i + 1 == n) continue;
            uint32_t next = (uint32_t)ids[at + i + 1];
            if (next >= vocab) continue; /* the engine refuses it in the next step */
            q->nll += kl_log_sum_exp(logits, vocab) - (double)logits[next];
            q->tokens++;
        }
    }
    mem_free(ids);
    return rc;
}

static int run_recorded(struct quality *q, const struct buf *file, struct errmsg *em)
{
    struct cursor c = {.data = (const uint8_t *)file->data, .size = file->len};
    (void)cursor_take(&c, strlen(MAGIC));
    uint32_t n = cursor_u32(&c);
    int rc = c.bad ? err_set(em, ERR_FORMAT, "%s: cut short", q->baseline) : 0;
    for (uint32_t i = 0; i < n && rc == 0; i++) rc = run_sequence(q, &c, em);
    return rc;
}

/* ---- a text ---- */

/* Scores what positions from window / 2 on predict. */
static int run_window(struct quality *q, const int32_t *ids, struct errmsg *em)
{
    uint32_t first = q->window / 2, vocab = q->file.dims.vocab;
    for (uint32_t at = 0, rows; at + 1 < q->window; at += rows) {
        bool scored = at >= first;
        uint32_t left = scored ? q->window - 1 - at : first - at;
        const float *logits;
        rows = left < ROWS ? left : ROWS;
        int rc = whole_step(&q->whole, at, ids + at, rows, scored ? rows : 0, &logits, em);
        if (rc == 0 && q->base.engine)
            rc = whole_step(&q->base, at, ids + at, rows, scored ? rows : 0, &logits, em);
        if (rc < 0) return rc;
        for (uint32_t i = 0; i < rows && scored; i++) {
            const float *row = eng_logits(q->whole.engine, i);
            q->nll += kl_log_sum_exp(row, vocab) - (double)row[ids[at + i + 1]];
            q->tokens++;
            if (!q->base.engine) continue;
            const float *b = eng_logits(q->base.engine, i);
            kl_add(&q->kl, kl_between(b, row, vocab),
                   kl_largest(row, vocab) == kl_largest(b, vocab));
        }
    }
    return 0;
}

static int run_text(struct quality *q, struct errmsg *em)
{
    struct buf text = {0};
    struct tokens t = {0};
    const struct vocab *v = q->file.vocab;
    int rc = read_file(q->text, &text, em);
    if (rc == 0) rc = vocab_encode(v, text.data ? text.data : "", text.len, false, &t, em);
    if (rc == 0 && t.n < q->window)
        rc = err_set(em, ERR_RANGE, "%s has %zu tokens, fewer than one window of %" PRIu32, q->text,
                     t.n, q->window);
    for (size_t at = 0; at + q->window <= t.n && rc == 0; at += q->window) {
        if (vocab_adds_bos(v)) t.ids[at] = vocab_bos(v);
        rc = run_window(q, t.ids + at, em);
        (void)fprintf(stderr, "window %zu of %zu: perplexity %.4f\n", at / q->window + 1,
                      t.n / q->window, exp(q->nll / (double)q->tokens));
    }
    mem_free(t.ids);
    buf_close(&text);
    return rc;
}

static int open_model(struct quality *q, const char *path, const char *kv, struct model_file *file,
                      struct whole *whole, struct errmsg *em)
{
    struct whole_options o = {.isa = q->isa,
                              .kv = kv,
                              .threads = q->threads,
                              .positions = q->window,
                              .chunk = ROWS,
                              .logits = ROWS};
    int rc = model_file_open(path, true, q->pre, file, em);
    if (rc == 0) rc = whole_open(file, &o, whole, em);
    return rc;
}

static int run(struct quality *q, struct errmsg *em)
{
    struct buf recorded = {0};
    bool vectors = false;
    int rc = open_model(q, q->model, q->kv, &q->file, &q->whole, em);
    if (rc == 0 && q->baseline) {
        char magic[sizeof MAGIC] = {0};
        FILE *f = fopen(q->baseline, "rb");
        vectors = f && fread(magic, 1, strlen(MAGIC), f) == strlen(MAGIC) && !strcmp(magic, MAGIC);
        if (f) (void)fclose(f);
        if (vectors)
            rc = read_file(q->baseline, &recorded, em);
        else
            rc = open_model(q, q->baseline, q->baseline_kv ? q->baseline_kv : q->kv, &q->base_file,
                            &q->base, em);
        if (rc == 0 && !vectors && q->base_file.dims.vocab != q->file.dims.vocab)
            rc = err_set(em, ERR_CONF, "%s has %" PRIu32 " tokens, %s %" PRIu32, q->model,
                         q->file.dims.vocab, q->baseline, q->base_file.dims.vocab);
    }
    if (rc == 0 && !vectors && !q->text)
        rc = err_set(em, ERR_CONF, "needs --text, or a --baseline of recorded vectors");
    if (rc == 0 && vectors && (q->text || q->baseline_kv))
        rc = err_set(em, ERR_CONF,
                     "--text and --baseline-kv do not go with vectors, which bring their own "
                     "tokens");
    if (rc == 0 && q->baseline_kv && !q->baseline)
        rc = err_set(em, ERR_CONF, "--baseline-kv needs --baseline");
    if (rc == 0) rc = vectors ? run_recorded(q, &recorded, em) : run_text(q, em);
    buf_close(&recorded);
    return rc;
}

static void print(struct quality *q, bool json)
{
    double perplexity = q->tokens ? exp(q->nll / (double)q->tokens) : 0.0;
    const struct kl_figures f = kl_figures(&q->kl);
    if (!json) {
        (void)printf("perplexity %.4f over %" PRIu64 " tokens\n", perplexity, q->tokens);
        if (q->kl.n)
            (void)printf("KL from the baseline: mean %.3g, 99%% %.3g, largest %.3g; the same "
                         "likeliest token at %.2f%% of %zu positions\n",
                         f.mean, f.p99, f.max, 100.0 * f.top1_agreement, q->kl.n);
        return;
    }
    struct json *j = json_new_object();
    json_put_real(j, "perplexity", perplexity);
    json_put_int(j, "tokens", (int64_t)q->tokens);
    if (q->kl.n) {
        json_put_real(j, "kl_mean", f.mean);
        json_put_real(j, "kl_p99", f.p99);
        json_put_real(j, "kl_max", f.max);
        json_put_real(j, "top1_agreement", f.top1_agreement);
    }
    json_print(j, stdout);
    json_free(j);
}

int cmd_quality(int argc, char **argv)
{
    struct quality q = {.window = 512};
    bool json = false;
    const struct opt table[] = {
        {"--model", 'm', OPT_STRING, &q.model, 0, 0, NULL, "FILE  the model to judge"},
        {"--text", 0, OPT_STRING, &q.text, 0, 0, NULL, "FILE  a text to predict"},
        {"--baseline", 0, OPT_STRING, &q.baseline, 0, 0, NULL,
         "FILE  another model, or vectors: logits recorded from one"},
        {"--window", 0, OPT_U32, &q.window, 4, 1 << 20, NULL,
         "N  tokens of a window, whose second half is scored (512)"},
        CMD_OPT_THREADS(&q.threads),
        CMD_OPT_PRE(&q.pre),
        CMD_OPT_ISA(&q.isa),
        CMD_OPT_KV(&q.kv),
        {"--baseline-kv", 0, OPT_STRING, &q.baseline_kv, 0, 0, NULL,
         "TYPE  the same of a baseline model (as --kv)"},
        CMD_OPT_JSON(&json),
        {0},
    };
    size_t n_rest;
    int status;
    if (!cmd_options(
            "flotilla quality --model FILE (--text FILE [--baseline FILE] | --baseline VECTORS)",
            "  flotilla quality --model smol.gguf --text book.txt\n"
            "  flotilla quality --model smol-q4.gguf --text book.txt --baseline smol-f16.gguf\n",
            table, argc, argv, NULL, 0, &n_rest, &status))
        return status;
    struct errmsg em = {0};
    int rc = q.model ? run(&q, &em) : err_set(&em, ERR_CONF, "needs --model");
    if (rc == 0) print(&q, json);
    whole_close(&q.whole);
    whole_close(&q.base);
    model_file_close(&q.file);
    model_file_close(&q.base_file);
    kl_close(&q.kl);
    return rc < 0 ? cmd_fail("quality", rc, &em) : CMD_OK;
}
