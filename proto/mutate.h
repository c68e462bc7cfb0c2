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
    MUT_PAGE_EARLY,  /* the last page is given back before the last row that uses it is issued */
    MUT_DEADLINE,    /* deadlines are ignored */
    MUT_INDEX_EARLY, /* a page enters the prefix index one token early */
    MUT_SHARED_ROW_SKIPPED, /* behind a shared prefix one row is taken for computed that is not */
    MUT_SHARED_SAME_STEP,   /* a page is read in the Step that another request writes it in */
    MUT_PARENT_UNCONFIRMED, /* a hit's parent is not the entry that the walk came through */
    MUT_REPLAY_BOUNDARY,    /* a replay does not say where the prompt ended */
};

#ifndef MUTATION
#define MUTATION MUT_NONE
#endif

#define MUTATED(name) (MUTATION == MUT_##name)

#endif
