"""Faults in embeddings: the sum of hidden rows, who computes which rows, and the reply."""

POOLING, SUMS, STAGE = "common/engine/pooling.c", "worker/sums.c", "common/engine/stage.c"
SCHED, FLIGHT, REQUESTS, ROUTER = ("coordinator/core/sched.c", "coordinator/core/flight.c", "coordinator/core/requests.c",
                                   "coordinator/core/router.c")
TABLE = "coordinator/core/table.c"
GATEWAY, ASK, GENERATE = "coordinator/gateway/embed.c", "coordinator/gateway/ask.c", "coordinator/generate.c"


def m(name, file, old, new, tests, why, **kw):
    return dict(name="embed-" + name, file=file, old=old, new=new, tests=tests, why=why, **kw)


MUTANTS = [
    # ---- the numbers
    m("last-row-only", POOLING, "sum[i] += (double)rows[i];", "sum[i] = (double)rows[i];", "arch_test", "the embedding is of the last row"),
    m("length", POOLING, "double length = sqrt(square);", "double length = square;", "sums_test", "embeddings are not of length 1", short=True),
    m("not-normed", STAGE, "norm_last(t, e->hidden_rows, a, b,", "norm_last(t, e->logit_rows, a, b,",
      "step_test", "hidden rows are those of other rows"),
    m("hidden-place", "common/engine/engine.c", "return e->norm + (size_t)e->n_logits * e->model.dims.hidden;", "return e->norm;",
      "step_test", "rows that want logits count as hidden rows"),
    # ---- the last stage
    m("not-anew", SUMS, "    for (uint32_t i = 0; i < s->width; i++) sum[i] = 0.0;\n", "    (void)sum;\n", "sums_test", "a prompt that is replayed is summed twice"),
    m("gaps", SUMS, "s->next[slot] == r->first_pos;", "s->next[slot] <= r->first_pos;", "sums_test", "a prompt may lack rows"),
    m("slots", SUMS, "    s->free[s->n_free++] = *slot;\n", "", "sums_test", "ended prompts keep their room", short=True),
    m("old-epoch", SUMS, "    imap_clear(&s->by_request);\n    s->n_free = SLOTS;", "    s->n_free = SLOTS;", "sums_test", "sums outlive their epoch"),
    # ---- the core
    m("cached-rows", SCHED, "    if (r->n_issued != r->n_walked * page || r->embed) return true;", "    if (r->n_issued != r->n_walked * page) return true;",
      "embed_test", "rows that are found computed are left out of the sum", short=True),
    m("indexed", TABLE, "    if (r->embed) return; /*", "    if (r->embed && !r->used) return; /*", "embed_test", "embedded texts push out prefixes"),
    m("logits", SCHED, "new_run(c, b, r, n, !r->embed && r->n_issued", "new_run(c, b, r, n, r->n_issued", "embed_test", "the last row of a prompt wants logits"),
    m("not-opened", SCHED, "        r->opened = r->replica; /* the last stage has its sum */\n", "", "embed_test sim_test", "the last stage never forgets a sum"),
    m("result-room", SCHED, "    if (r->embed) return b->n_embeds == LIMIT_EMBEDDED / c->cfg.width;", "    if (r->embed) return false;", "embed_test",
      "a result is larger than may be"),
    m("any-length", FLIGHT, "x->n_embedding != c->cfg.width)", "x->n_embedding > c->cfg.width)", "embed_test", "an embedding of any length counts"),
    m("nan", FLIGHT, "if (!isfinite(x->embedding[i]))", "if (isinf(x->embedding[i]))", "embed_test", "NaN is an embedding"),
    m("uninvited", FLIGHT, "    if (x->n_embedding) return false;\n", "", "embed_test",
      "an embedding that nobody wants counts"),
    m("without-limit", REQUESTS, "c->n_embeds == LIMIT_EMBEDS", "c->n_embeds == UINT32_MAX", "embed_test", "more live than the last stage has room for"),
    m("limit-leaks", REQUESTS, "    c->n_embeds -= r->embed;\n", "", "embed_test", "ended ones count"),
    m("old-workers", "coordinator/core/queue.c", "r->embed ? cannot_embed(c, rep) : NULL", "r->embed && !rep->n_stages ? cannot_embed(c, rep) : NULL",
      "embed_test", "an old worker is blamed for what it does not know"),
    m("no-room", "coordinator/core/queue.c", "        if (r->embed) reserve(c, rep, r);\n", "        if (r->embed && !r->used) reserve(c, rep, r);\n", "embed_test sim_test",
      "prompts that are embedded take their pages row by row, and each other's"),
    m("room-beside-prompts", "coordinator/core/queue.c", "    if (r->embed) taken =", "    if (r->embed && !r->used) taken =", "embed_test",
      "an embedding begins although a prompt that runs will take its pages"),
    m("window-given-back", "coordinator/core/table.c", "        if (r->n_ahead)\n            r->windowed", "        if (r->n_ahead > r->n_pages)\n            r->windowed",
      "embed_test", "windowed pages that were reserved go to others", short=True),
    m("window-of-nobody", "coordinator/core/table.c", "    if (r->n_ahead)\n        r->n_ahead--;\n    else if", "    if", "embed_test",
      "pages that a request has not come to are given back twice"),
    m("not-counted", "coordinator/calls.c", "    s->count.embeddings++;\n", "", "embed_calls_test", "embeddings are not counted"),
    m("text-not-counted", "coordinator/calls.c", "    s->count.embedding_tokens += c->prompt.n;\n", "", "embed_calls_test",
      "the tokens of embedded texts are not counted"),
    m("wire-room", "proto/wire_cluster.c", "    if (embeds * s->width > LIMIT_EMBEDDED)", "    if (embeds * s->width > UINT32_MAX)", "embed_wire_test",
      "a Step may ask for more than a result has room for"),
    # ---- clients
    m("with-samples", GENERATE, "    if (g->samples > 1) return \"field 'embed'", "    if (g->samples > 16) return \"field 'embed'", "embed_calls_test", "one prompt has several embeddings"),
    m("specials", ASK, "    a.request.special = kind == ASK_COMPLETION;", "    a.request.special = kind != ASK_CHAT;", "ask_test", "texts may name control tokens"),
    m("base64-order", GATEWAY, "(uint32_t)bytes[0] << 16", "(uint32_t)bytes[0] << 8", "embeddings_test", "base64 is of other bytes"),
    m("all-at-once", GATEWAY, " && x->n_live < AT_ONCE)", ")", "embeddings_test", "all texts at once",
      survives="a hundred texts fit into the coordinator's limit; what it costs is others' turns"),
    m("first-width", GATEWAY, "x->values + (size_t)(p - x->parts) * x->width", "x->values", "embeddings_test", "embeddings are another text's"),
]
