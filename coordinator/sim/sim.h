/* The simulator: the shipped core under virtual time, with simulated stages and a scripted network,
 * all drawn from one seed. After every event it checks what must always hold (README.md in this
 * folder); a failure names the seed that shows it again.
 *
 * The simulated model: a position's tag is a hash of the tokens up to it; a row writes its tag into
 * the shadow of its KV page, and the token after it is a hash of seed and tag. So a page that was
 * given away too early, a row that ran twice or a result that was taken twice becomes a wrong token
 * or a wrong tag. */
#ifndef FLOTILLA_SIM_SIM_H
#define FLOTILLA_SIM_SIM_H

#include <stdbool.h>
#include <stdint.h>

struct sim_report {
    uint64_t events; /* that the core took */
    uint64_t faults; /* kills, stops, cuts, losses, duplicates, late deliveries, stalls */
    uint64_t requests, completed, tokens, generations;
    uint64_t drained,
        replanned; /* workers that left as ordered; generations that were planned as ordered */
    uint64_t embeddings;                       /* handed out */
    uint64_t cut_shorter;                      /* generations of fewer stages than wanted */
    uint64_t guesses;                          /* rows of Steps that were guesses, of */
    uint64_t drafted, accepted, early, wasted; /* runs that were verified (draft/accept.h) */
    uint64_t slid, windowed_evicted; /* runs that see a window only; cached pages given up */
    uint64_t digest;                 /* of all actions: the same seed gives the same */
    char failure[512];               /* empty: everything held */
};

/* Runs one world to its end. drafts: half of the worlds have a drafter; without, no world has.
 * windows: likewise, half of the worlds have windowed layers.
 * False: report->failure says what broke, and when. */
bool sim_run(uint64_t seed, bool drafts, bool windows, struct sim_report *ret_report);

#endif
