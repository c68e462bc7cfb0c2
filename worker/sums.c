#include "worker/sums.h"

#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/engine/pooling.h"

#include <string.h>

/* Requests that ended keep theirs until a later Step closes them. */
#define SLOTS (2u * LIMIT_EMBEDS)

struct sums {
    uint32_t width;
    struct imap by_request; /* to slots */
    uint32_t next[SLOTS];   /* the position whose row comes next */
    uint32_t free[SLOTS], n_free;
    double *values; /* [SLOTS][width] */
    /* The embeddings of the present Step, one behind the other: LIMIT_EMBEDDED floats, which the
     * decoder of Steps keeps to. */
    float *done;
    uint32_t n_done;
};

int sums_open(uint32_t width, struct sums **ret, struct errmsg *em)
{
    struct sums *s = mem_zalloc(sizeof *s);
    s->width = width;
    s->values = mem_try((size_t)SLOTS * width * sizeof *s->values);
    s->done = mem_try(LIMIT_EMBEDDED * sizeof *s->done);
    if (!s->values || !s->done || imap_reserve(&s->by_request, SLOTS) < 0) {
        sums_close(s);
        return err_set(em, ERR_NOMEM, "no memory for the sums of %u embeddings", SLOTS);
    }
    sums_reset(s);
    *ret = s;
    return 0;
}

void sums_close(struct sums *s)
{
    if (!s) return;
    imap_close(&s->by_request);
    mem_free(s->values);
    mem_free(s->done);
    mem_free(s);
}

void sums_reset(struct sums *s)
{
    imap_clear(&s->by_request);
    s->n_free = SLOTS;
    for (uint32_t i = 0; i < SLOTS; i++) s->free[i] = SLOTS - 1 - i; /* the first ones first */
}

void sums_begin(struct sums *s)
{
    s->n_done = 0;
}

/* SLOTS: there is none. */
static uint32_t slot_of(struct sums *s, const struct msg_run *r)
{
    const uint32_t *known = imap_get(&s->by_request, r->request);
    uint32_t slot = known ? *known : SLOTS;
    if (r->first_pos > 0) return slot;
    if (slot == SLOTS && s->n_free == 0) return SLOTS;
    if (slot == SLOTS) {
        slot = s->free[--s->n_free];
        imap_put(&s->by_request, r->request, slot);
    }
    double *sum = s->values + (size_t)slot * s->width;
    for (uint32_t i = 0; i < s->width; i++) sum[i] = 0.0;
    s->next[slot] = 0;
    return slot;
}

const char *sums_add(struct sums *s, const struct msg_run *r, const float *rows, const float **ret)
{
    uint32_t slot = slot_of(s, r);
    bool follows = slot < SLOTS && s->next[slot] == r->first_pos;
    *ret = NULL;
    if (follows) {
        pooling_add(s->values + (size_t)slot * s->width, rows, r->n_rows, s->width);
        s->next[slot] += r->n_rows;
    }
    if (!msg_run_embeds(r)) return NULL;
    if (!follows) return "the last stage lacks rows of the prompt whose embedding is wanted";
    CHECK(s->n_done + s->width <= LIMIT_EMBEDDED);
    float *done = s->done + s->n_done;
    if (pooling_finish(s->values + (size_t)slot * s->width, s->width, done) < 0)
        return "the embedding is not finite";
    s->n_done += s->width;
    *ret = done;
    return NULL;
}

void sums_drop(struct sums *s, uint64_t request)
{
    const uint32_t *slot = imap_get(&s->by_request, request);
    if (!slot) return;
    CHECK(s->n_free < SLOTS);
    s->free[s->n_free++] = *slot;
    imap_remove(&s->by_request, request);
}
