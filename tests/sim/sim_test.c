/* Runs seeds of the simulator; status 0 when everything held. A failure prints its seed, and
 * `sim_test --first SEED --seeds 1` shows it again. The digest at the end is of all actions of all
 * seeds: two builds that print the same one for the same seeds behave alike in them. */
#include "coordinator/sim/sim.h"

#include "common/base/hash.h"
#include "common/base/opts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static void add(struct sim_report *sum, const struct sim_report *r)
{
    sum->events += r->events;
    sum->faults += r->faults;
    sum->requests += r->requests;
    sum->completed += r->completed;
    sum->tokens += r->tokens;
    sum->generations += r->generations;
    sum->embeddings += r->embeddings;
    sum->cut_shorter += r->cut_shorter;
    sum->drained += r->drained;
    sum->replanned += r->replanned;
    sum->guesses += r->guesses;
    sum->drafted += r->drafted;
    sum->accepted += r->accepted;
    sum->early += r->early;
    sum->wasted += r->wasted;
    sum->slid += r->slid;
    sum->windowed_evicted += r->windowed_evicted;
}

static bool windows_slide(const struct sim_report *sum, bool expected)
{
    (void)printf("windows: %" PRIu64 " runs behind their first window, %" PRIu64
                 " cached pages given up\n",
                 sum->slid, sum->windowed_evicted);
    return !expected || (sum->slid && sum->windowed_evicted);
}

/* Whether so much happened that the checks had something to look at. */
static bool enough(const struct sim_report *sum, uint32_t seeds, bool drafts)
{
    double n = (double)seeds;
    if ((double)sum->events / n < 500.0 || (double)sum->faults / n < 5.0) {
        (void)printf("too little happens: 500 events and 5 faults a seed are needed\n");
        return false;
    }
    if (seeds < 50) return true;
    if ((double)sum->embeddings / n < 1.0) {
        (void)printf("too few embeddings are asked for: one a seed is needed\n");
        return false;
    }
    if (drafts && (!sum->early || !sum->wasted || 4 * sum->accepted < sum->drafted)) {
        (void)printf("too little is guessed, or guesses are not told apart\n");
        return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    uint64_t first = 1;
    uint32_t seeds = 1000, long_seeds = 0;
    bool no_drafts = false, no_windows = false;
    const struct opt table[] = {
        {"--first", 0, OPT_U64, &first, 0, 0, NULL, "SEED  the first seed"},
        {"--seeds", 0, OPT_U32, &seeds, 1, 100000000, NULL, "N  how many"},
        {"--long-seeds", 0, OPT_U32, &long_seeds, 1, 100000000, NULL,
         "N  how many where FLOTILLA_LONG is set"},
        {"--no-drafts", 0, OPT_FLAG, &no_drafts, 0, 0, NULL, "  no world has a drafter"},
        {"--no-windows", 0, OPT_FLAG, &no_windows, 0, 0, NULL, "  no world has windowed layers"},
        {0},
    };
    const struct opts_usage usage = {.line = "sim_test [options]",
                                     .examples = "  sim_test --first 77 --seeds 1\n"};
    struct errmsg em;
    size_t rest;
    int rc = opts_parse(&usage, table, argc, argv, NULL, 0, &rest, &em);
    if (rc == ERR_CANCELLED) return 0;
    if (rc < 0) {
        (void)fprintf(stderr, "sim_test: %s\n", em.text);
        return 2;
    }
    const char *deep = getenv("FLOTILLA_LONG");
    if (long_seeds && deep && deep[0]) seeds = long_seeds;
    struct sim_report sum = {0};
    uint64_t digest = 0;
    for (uint64_t seed = first; seed < first + seeds; seed++) {
        struct sim_report r, again;
        bool held = sim_run(seed, !no_drafts, !no_windows, &r);
        if (held && seed % 50 == 0 &&
            (!sim_run(seed, !no_drafts, !no_windows, &again) || again.digest != r.digest)) {
            (void)printf("seed %" PRIu64 ": two runs differ\n", seed);
            return 1;
        }
        if (!held) {
            (void)printf("seed %" PRIu64 ": %s\n", seed, r.failure);
            return 1;
        }
        uint64_t words[] = {digest, r.digest};
        digest = hash_bytes(words, sizeof words, seed);
        add(&sum, &r);
    }
    double n = (double)seeds;
    (void)printf("%" PRIu32 " seeds held; a seed has on average %.0f events, %.1f faults, %.1f "
                 "generations lost, %.1f requests of which %.1f complete, %.0f tokens, %.1f "
                 "embeddings\n",
                 seeds, (double)sum.events / n, (double)sum.faults / n, (double)sum.generations / n,
                 (double)sum.requests / n, (double)sum.completed / n, (double)sum.tokens / n,
                 (double)sum.embeddings / n);
    (void)printf("in all: %" PRIu64 " workers left as ordered, %" PRIu64
                 " replicas were planned anew, %" PRIu64 " generations had fewer stages\n",
                 sum.drained, sum.replanned, sum.cut_shorter);
    (void)printf("guesses: %" PRIu64 " issued, %" PRIu64 " verified, %" PRIu64
                 " of them right; %" PRIu64 " runs sent before the answer to the last, %" PRIu64
                 " rows for nothing\n",
                 sum.guesses, sum.drafted, sum.accepted, sum.early, sum.wasted);
    bool slides = windows_slide(&sum, !no_windows && seeds >= 50);
    (void)printf("digest of all actions: %016" PRIx64 "\n", digest);
    return slides && enough(&sum, seeds, !no_drafts) ? 0 : 1;
}
