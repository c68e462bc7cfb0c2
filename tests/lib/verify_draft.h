/* What a last stage says of a draft: rows are live up to the first whose token is not what was
 * chosen before it. */
#ifndef FLOTILLA_TESTS_VERIFY_DRAFT_H
#define FLOTILLA_TESTS_VERIFY_DRAFT_H

#include "coordinator/draft/accept.h"

/* A run of a known row and n_draft drafted ones, where choices[i] (n_choices of them, as many as
 * are wanted) is what the target says behind row i if that is live. */
static inline struct accept verify_draft(const int32_t *draft, uint32_t n_draft,
                                         const int32_t *choices, uint32_t n_choices,
                                         const int32_t *ends, uint32_t n_ends)
{
    uint32_t n_live = 1;
    while (n_live <= n_draft && n_live <= n_choices && draft[n_live - 1] == choices[n_live - 1])
        n_live++;
    const struct accept_rows rows = {.n_rows = n_draft + 1,
                                     .n_draft = n_draft,
                                     .n_live = n_live,
                                     .choices = choices,
                                     .n_choices = n_live,
                                     .room = n_choices,
                                     .ends = ends,
                                     .n_ends = n_ends};
    return accept_run(&rows);
}

#endif
