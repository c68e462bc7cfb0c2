/* draft_tool KIND[:PATH] LENGTH PROMPT VOCAB: the ids (int32) of a prompt of PROMPT tokens and of
 * its answer on stdin. Drafts of LENGTH tokens are made along the answer as if each were verified,
 * and what of them was right is printed. KIND: ngram, recorded:FILE or a model FILE.gguf, whose
 * choices are the likeliest tokens. */
#include "tests/lib/verify_draft.h"

#include "coordinator/draft/guess.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define TOKENS_MAX 8192u

static int run(const struct drafter_options *o, const int32_t *ids, uint32_t n, uint32_t n_prompt,
               struct accept_stats *ret, struct errmsg *em)
{
    static const struct sampling sampling = {.top_p = 1.0f, .repetition = 1.0f};
    const struct drafter_request r = {.request = 1,
                                      .kind = o->settings->kind,
                                      .n_prompt = n_prompt,
                                      .sampling = &sampling,
                                      .ignore_ends = true};
    struct guesser *g;
    int rc = guesser_open(o, &g, em);
    if (rc < 0) return rc;
    struct guess *q = guess_begin(g, &r);
    rc = guess_tokens(g, q, ids, n_prompt);
    for (uint32_t at = n_prompt; at < n && rc == 0;) {
        struct drafter_answer draft;
        uint32_t want = o->settings->length;
        const struct guess_ask ask = {.first_pos = at, .want = want};
        while (!guess_ask(g, q, &ask, &draft)) continue;
        if (draft.rc < 0) rc = err_set(em, draft.rc, "%s", draft.error);
        struct accept a = verify_draft(draft.tokens, draft.n, ids + at, n - at, NULL, 0);
        accept_note(ret, draft.n + 1, draft.n, a);
        if (rc == 0) rc = guess_tokens(g, q, ids + at, a.emitted);
        at += a.emitted;
    }
    guess_end(g, q, false);
    guesser_close(g);
    return rc;
}

int main(int argc, char **argv)
{
    static int32_t ids[TOKENS_MAX];
    struct errmsg em = {0};
    struct accept_stats s = {0};
    struct draft_settings settings = DRAFT_DEFAULTS;
    if (argc != 5) return 2;
    uint32_t n = (uint32_t)fread(ids, sizeof *ids, TOKENS_MAX, stdin);
    uint32_t n_prompt = (uint32_t)atoi(argv[3]);
    const struct drafter_options o = {
        .settings = &settings, .ctx = TOKENS_MAX, .vocab = (uint32_t)atoi(argv[4])};
    int rc = draft_settings_source(&settings, argv[1], &em);
    if (rc == 0) rc = draft_settings_length(&settings, argv[2], &em);
    if (rc == 0 && (n_prompt == 0 || n_prompt > n)) return 2;
    if (rc == 0) rc = run(&o, ids, n, n_prompt, &s, &em);
    if (rc == 0)
        (void)printf("{\"runs\": %" PRIu64 ", \"drafted\": %" PRIu64 ", \"accepted\": %" PRIu64
                     ", \"emitted\": %" PRIu64 "}\n",
                     s.runs, s.drafted, s.accepted, s.emitted);
    else
        (void)fprintf(stderr, "%s\n", em.text);
    return rc < 0;
}
