/* Deliberate faults, one a build, that the simulator must catch: they show that its checks can
 * fail. MUTATED(X) is the constant false in every shipped build; tests/CMakeLists.txt builds each
 * mutant with -DMUTATION=MUT_X. */
#ifndef FLOTILLA_PROTO_MUTATE_H
#define FLOTILLA_PROTO_MUTATE_H

enum mutation {
    MUT_NONE,
    MUT_STALE_EPOCH,     /* a stage takes Steps of any epoch */
    MUT_STEP_GAP,        /* a stage takes a Step whose predecessor is missing */
    MUT_RESULT_BY_COUNT, /* a token counts by how many are outstanding, not by its position */
    MUT_PAGE_EARLY, /* the last page is given back before the last row that uses it is issued */
    MUT_DEADLINE,   /* deadlines are ignored */
};

#ifndef MUTATION
#define MUTATION MUT_NONE
#endif

#define MUTATED(name) (MUTATION == MUT_##name)

#endif
