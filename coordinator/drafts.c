/* The drafter in the shell: which requests have drafts, what it is told and asked, and its answers
 * as events for the core. */
#include "coordinator/shell.h"

#include "common/base/blob.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define ANSWERS_A_TURN 256
#define FAILED_TOLD_NS (10 * NS_PER_S)

int drafts__open(struct shell *s, const int32_t *ends, uint32_t n_ends, struct errmsg *em)
{
    const struct config *c = s->config;
    if (c->drafts.kind == DRAFT_OFF) return 0;
    const struct drafter_options o = {.settings = &c->drafts,
                                      .ctx = s->ctx,
                                      .requests_max = c->max_requests,
                                      .asks_max = 2 * c->max_requests,
                                      .vocab = s->model->dims.vocab,
                                      .ends = ends,
                                      .n_ends = n_ends,
                                      .text = s->model->vocab};
    int rc = drafter_open(s->net, &o, &s->drafter, em);
    if (rc < 0) return err_wrap(em, rc, "key 'draft'");
    log_info("tokens are guessed ahead (%s)", c->draft);
    return 0;
}

void drafts__close(struct shell *s)
{
    drafter_close(s->drafter);
    s->drafter = NULL;
}

struct net_sock *drafts__socket(const struct shell *s)
{
    return s->drafter ? drafter_socket(s->drafter) : NULL;
}

int drafts__choose(const struct shell *s, const struct msg_generate *g, struct call *c,
                   struct errmsg *em)
{
    enum draft_kind kind = s->config->drafts.kind;
    if (g->has_draft_length && (g->draft_length < 1 || g->draft_length > LIMIT_DRAFT))
        return err_set(em, ERR_RANGE, "field 'draft_length': %" PRIu32 " is not within 1 to %u",
                       g->draft_length, LIMIT_DRAFT);
    if (g->draft[0]) {
        if (draft_kind_parse(g->draft, &kind, em) < 0)
            return err_wrap(em, ERR_RANGE, "field 'draft'");
        if (kind != DRAFT_OFF && (!s->drafter || !drafter_has(s->drafter, kind)))
            return err_set(em, ERR_RANGE, "field 'draft': this cluster has no drafts of kind '%s'",
                           draft_kind_name(kind));
    }
    if (!c) return 0;
    c->draft = kind;
    c->draft_length = g->draft_length;
    return 0;
}

bool drafts__begin(struct shell *s, struct call *c, uint32_t i, const struct tokens *all)
{
    struct errmsg em = {0};
    const struct drafter_request r = {.request = c->request + i,
                                      .tenant = c->tenant,
                                      .kind = c->draft,
                                      .tokens = all->ids,
                                      .n_tokens = (uint32_t)all->n,
                                      .n_prompt = (uint32_t)c->prompt.n,
                                      .sample = i,
                                      .sampling = &c->sampling,
                                      .ignore_ends = c->ignore_eos,
                                      .grammar = c->grammar ? c->grammar->data : NULL,
                                      .grammar_bytes = c->grammar ? c->grammar->bytes : 0};
    if (c->draft == DRAFT_OFF || !s->drafter) return false;
    c->answers[i].drafts = drafter_begin(s->drafter, &r, &em) == 0;
    return c->answers[i].drafts; /* without drafts it is served all the same */
}

void drafts__tokens(struct shell *s, const struct action *a)
{
    struct call *c = s->drafter ? calls__of_request(s, a->tokens.request) : NULL;
    if (!c) return;
    uint32_t first_pos = (uint32_t)c->prompt.n + a->tokens.first_index;
    drafter_tokens(s->drafter, a->tokens.request, first_pos, a->tokens.tokens, a->tokens.n);
}

void drafts__end(struct shell *s, const struct action *a)
{
    if (s->drafter) drafter_end(s->drafter, a->end.request, a->end.status == STATUS_OK);
}

bool drafts__ask(struct shell *s, const struct action *a)
{
    struct errmsg em = {0};
    const struct drafter_ask ask = {.request = a->draft.request,
                                    .serial = a->draft.serial,
                                    .first_pos = a->draft.first_pos,
                                    .tail = a->draft.tail,
                                    .n_tail = a->draft.n_tail,
                                    .want = a->draft.want,
                                    .chain = a->draft.chain->n_points ? a->draft.chain : NULL,
                                    .load = &a->draft.load};
    return s->drafter && drafter_ask(s->drafter, &ask, &em) == 0;
}

/* What fails is a draft; the request goes on without. */
static void tell_failure(struct shell *s, const struct drafter_answer *a)
{
    if (s->draft_told_ns && s->now_ns < s->draft_told_ns + FAILED_TOLD_NS) return;
    s->draft_told_ns = s->now_ns;
    log_error("drafts of request %" PRIu64 ": %s", a->request, a->error);
}

void drafts__take(struct shell *s)
{
    struct drafter_answer a;
    for (int i = 0; i < ANSWERS_A_TURN && s->drafter && drafter_take(s->drafter, &a); i++) {
        struct event e = {.type = EV_DRAFT,
                          .draft = {.request = a.request,
                                    .serial = a.serial,
                                    .first_pos = a.first_pos,
                                    .n = a.n,
                                    .tokens = a.tokens,
                                    .waited_ns = a.waited_ns,
                                    .took_ns = a.took_ns}};
        if (a.rc < 0) tell_failure(s, &a);
        shell__event(s, &e);
    }
}

void drafts__count(struct shell *s)
{
    struct drafter_stats d;
    if (!s->drafter) return;
    drafter_stats(s->drafter, &d);
    s->count.drafts = true;
    s->count.draft_asks = d.asks;
    s->count.draft_failed = 0;
    for (int k = 0; k < DRAFT_N_KINDS; k++) s->count.draft_failed += d.kinds[k].failed;
    s->count.draft_foreign = d.foreign;
    s->count.draft_index_bytes = d.index_bytes;
}
