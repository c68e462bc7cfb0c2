#include "worker/constrain.h"

#include "common/base/mem.h"
#include "common/base/prom.h"
#include "common/model/vocab_file.h"
#include "proto/limits.h"

#include <stdatomic.h>
#include <stdio.h>

_Static_assert(LIMIT_GRAMMAR_BYTES == GRAMMAR_BYTES_MAX, "what may travel can be kept");

/* Requests that ended keep theirs until a later Step closes them. */
#define SLOTS (2u * LIMIT_CONSTRAINED)

struct constrain {
    struct constraint *slots; /* SLOTS of them */
    uint32_t free[SLOTS], n_free;
    struct errmsg no_vocab; /* why nothing can be constrained, or empty */
    struct errmsg wrong;    /* about the last grammar that could not be used */
    atomic_ullong tested, made, kept;
};

/* Whether there is a vocabulary, no_vocab says. */
static int learn(struct constrain *c, const struct weights *model, struct chooser *chooser,
                 struct errmsg *em)
{
    const struct vocab_file_options o = {.decodes_only = true};
    struct vocab *v;
    if (vocab_file_open(model, &o, &v, &c->no_vocab) < 0) {
        (void)err_wrap(&c->no_vocab, ERR_UNSUPPORTED, "the last stage has no vocabulary");
        return 0;
    }
    int rc = chooser_learn(chooser, v, em);
    vocab_close(v);
    return rc;
}

int constrain_open(const struct weights *model, struct chooser *chooser, struct constrain **ret,
                   struct errmsg *em)
{
    struct constrain *c = mem_zalloc(sizeof *c);
    c->slots = mem_try(SLOTS * sizeof *c->slots);
    int rc = c->slots ? learn(c, model, chooser, em)
                      : err_set(em, ERR_NOMEM, "no memory for %u grammars", SLOTS);
    if (rc < 0) {
        constrain_close(c);
        return rc;
    }
    constrain_reset(c);
    *ret = c;
    return 0;
}

void constrain_close(struct constrain *c)
{
    if (!c) return;
    mem_free(c->slots);
    mem_free(c);
}

void constrain_reset(struct constrain *c)
{
    c->n_free = SLOTS;
    for (uint32_t i = 0; i < SLOTS; i++) c->free[i] = SLOTS - 1 - i; /* the first ones first */
}

struct constraint *constrain_take(struct constrain *c, const void *grammar, size_t bytes,
                                  const char **ret_why)
{
    *ret_why = c->no_vocab.text;
    if (c->no_vocab.text[0]) return NULL;
    *ret_why = "the last stage has more constrained requests than may live";
    if (c->n_free == 0) return NULL;
    struct constraint *x = &c->slots[c->free[c->n_free - 1]];
    *ret_why = c->wrong.text;
    if (constraint_open(x, grammar, bytes, &c->wrong) < 0) return NULL;
    c->n_free--;
    return x;
}

void constrain_give(struct constrain *c, struct constraint *x)
{
    if (x) c->free[c->n_free++] = (uint32_t)(x - c->slots);
}

void constrain_count(struct constrain *c, struct masks_counts counts)
{
    atomic_store_explicit(&c->tested, counts.tested, memory_order_relaxed);
    atomic_store_explicit(&c->made, counts.made, memory_order_relaxed);
    atomic_store_explicit(&c->kept, counts.kept, memory_order_relaxed);
}

void constrain_metrics(const struct constrain *c, struct buf *out)
{
    static const char tested[] = "flotilla_grammar_tokens_tested_total";
    static const char masks[] = "flotilla_grammar_masks_total";
    prom_head(out, tested, "counter", "Tokens that grammars were asked about one by one.");
    prom_int(out, tested, "", atomic_load_explicit(&c->tested, memory_order_relaxed));
    prom_head(out, masks, "counter", "Masks of all tokens: made by a walk, or known already.");
    prom_int(out, masks, "from=\"walk\"", atomic_load_explicit(&c->made, memory_order_relaxed));
    prom_int(out, masks, "from=\"cache\"", atomic_load_explicit(&c->kept, memory_order_relaxed));
}
