/* accept_tool TARGET DRAFT TEMP SEED TOKENS THREADS: the ids of a prompt (int32) on stdin. The
 * target answers with TOKENS tokens; before each the draft chooses too, with the same noise and
 * after the same text. Prints how many it chose alike, and sums over the positions: what the best
 * drafter could reach (1 - total variation of the two distributions), and what the noise promises
 * at least, (1 - tv) / (1 + tv) (Daliri et al. 2024). */
#include "common/base/mem.h"
#include "common/text/chooser.h"
#include "coordinator/cli/whole.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define TOKENS_MAX 8192u
#define CHUNK 64u

struct side {
    struct model_file file;
    struct whole whole;
    const float *logits;
};

struct run {
    struct side target, draft;
    struct chooser *chooser;
    struct sampling sampling;
    int32_t ids[TOKENS_MAX];
    uint32_t n, n_prompt, alike;
    double best, least;
};

static int open_side(struct side *s, const char *path, uint32_t positions, uint32_t threads,
                     struct errmsg *em)
{
    const struct whole_options o = {.threads = threads, .positions = positions, .chunk = CHUNK};
    int rc = model_file_open(path, true, NULL, &s->file, em);
    return rc == 0 ? whole_open(&s->file, &o, &s->whole, em) : rc;
}

/* Computes what the sequence has from `first` on. */
static int step(struct side *s, const struct run *r, uint32_t first, struct errmsg *em)
{
    int rc = 0;
    for (uint32_t at = first, rows; at < r->n && rc == 0; at += rows) {
        rows = r->n - at < CHUNK ? r->n - at : CHUNK;
        rc = whole_step(&s->whole, at, r->ids + at, rows, 1, &s->logits, em);
    }
    return rc;
}

static int32_t choose(struct run *r, const float *logits)
{
    const struct chooser_ask a = {
        .sampling = &r->sampling, .pos = r->n, .boundary = r->n_prompt, .logits = logits};
    struct chooser_choice c = {.token = -1};
    (void)chooser_choose(r->chooser, &a, &c);
    return c.token;
}

static double log_sum(const float *x, uint32_t n, double temp)
{
    double max = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < n; i++) max = fmax(max, (double)x[i]);
    for (uint32_t i = 0; i < n; i++) sum += exp(((double)x[i] - max) / temp);
    return max / temp + log(sum);
}

static double variation(const struct run *r, uint32_t vocab)
{
    const float *p = r->target.logits, *q = r->draft.logits;
    double temp = (double)r->sampling.temp, sum = 0;
    double of_p = log_sum(p, vocab, temp), of_q = log_sum(q, vocab, temp);
    for (uint32_t i = 0; i < vocab; i++)
        sum += fabs(exp((double)p[i] / temp - of_p) - exp((double)q[i] / temp - of_q));
    return sum / 2;
}

static int answer(struct run *r, uint32_t tokens, struct errmsg *em)
{
    uint32_t done = 0, vocab = r->target.file.dims.vocab;
    for (uint32_t i = 0; i < tokens && r->n < TOKENS_MAX; i++) {
        int rc = step(&r->target, r, done, em);
        if (rc == 0) rc = step(&r->draft, r, done, em);
        if (rc < 0) return rc;
        int32_t said = choose(r, r->target.logits), guessed = choose(r, r->draft.logits);
        if (said < 0 || guessed < 0) return err_set(em, ERR_FORMAT, "%s", chooser_why(ERR_FORMAT));
        double tv = r->sampling.temp > 0 ? variation(r, vocab) : said == guessed ? 0.0 : 1.0;
        r->alike += said == guessed;
        r->best += 1 - tv;
        r->least += (1 - tv) / (1 + tv);
        done = r->n;
        r->ids[r->n++] = said;
    }
    return 0;
}

int main(int argc, char **argv)
{
    static struct run r;
    struct errmsg em = {0};
    if (argc != 7) return 2;
    uint32_t tokens = (uint32_t)atoi(argv[5]), threads = (uint32_t)atoi(argv[6]);
    r.sampling = SAMPLING_PLAIN;
    r.sampling.temp = strtof(argv[3], NULL);
    r.sampling.seed = strtoull(argv[4], NULL, 10);
    r.n = r.n_prompt = (uint32_t)fread(r.ids, sizeof *r.ids, TOKENS_MAX, stdin);
    int rc = open_side(&r.target, argv[1], r.n + tokens, threads, &em);
    if (rc == 0) rc = open_side(&r.draft, argv[2], r.n + tokens, threads, &em);
    if (rc == 0 && r.target.file.dims.vocab != r.draft.file.dims.vocab)
        rc = err_set(&em, ERR_CONF, "the vocabularies differ");
    if (rc == 0) rc = chooser_open(r.target.file.dims.vocab, &r.chooser, &em);
    if (rc == 0) rc = answer(&r, tokens, &em);
    if (rc == 0)
        (void)printf("{\"tokens\": %" PRIu32 ", \"alike\": %" PRIu32
                     ", \"best\": %.6f, \"least\": %.6f}\n",
                     r.n - r.n_prompt, r.alike, r.best, r.least);
    else
        (void)fprintf(stderr, "%s\n", em.text);
    whole_close(&r.target.whole);
    whole_close(&r.draft.whole);
    model_file_close(&r.target.file);
    model_file_close(&r.draft.file);
    chooser_close(r.chooser);
    return rc < 0;
}
