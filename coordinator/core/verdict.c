/* Whether a generation computes what others did. Every generation begins with the same probe, and
 * its logits are a function of the model alone; the slices' contents were verified before. So a
 * digest that differs means broken hardware or a build that computes otherwise.
 *
 * The first digest stands until it is contradicted by better evidence: another one that two
 * generations agree on that were not made of the same workers. A digest that nobody else has
 * confirmed also gives way to one that comes VERDICT_TURNS times, over some time, where the
 * processes that computed it are not all there to do so again, or did and computed another; or
 * twice as often, where they are there and have not computed it since, as one of them is not
 * reached. So a cluster whose first worker was broken does not stand still once that one is gone,
 * mended or caught. A digest that was agreed on gives way only to another that is. */
#include "coordinator/core/core_state.h"

#include "common/base/check.h"
#include "common/base/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define VERDICT_TURNS 3u
#define VERDICT_NS (10 * NS_PER_S) /* time for another worker to come and decide */
/* Both times this, where those who may decide are here and do not get to compute again. */
#define VERDICT_PATIENCE 2u
#define NAMED_BYTES 120u /* of names in a text; the others are counted */

static bool among(const struct verdict *v, const char *name)
{
    for (uint32_t i = 0; i < v->n_names; i++)
        if (strcmp(v->names[i].name, name) == 0) return true;
    return false;
}

static const char *name_at(struct core *c, const struct replica *r, uint32_t stage)
{
    return replica__at(c, r, stage)->hello.name;
}

static bool in_generation(struct core *c, const struct replica *r, const char *name)
{
    for (uint32_t i = 0; i < r->n_stages; i++)
        if (strcmp(name_at(c, r, i), name) == 0) return true;
    return false;
}

/* The entry of a name. As many names are remembered of a digest as the fleet remembers at all;
 * beyond that, the one that was seen least recently gives way. By then workers of several
 * generations have computed the digest, and it is agreed on. */
static struct verdict_name *name_entry(struct core *c, struct verdict *v, const char *name)
{
    struct verdict_name *x = &v->names[0];
    for (uint32_t i = 0; i < v->n_names; i++) {
        if (strcmp(v->names[i].name, name) == 0) return &v->names[i];
        if (v->names[i].seen_ns < x->seen_ns) x = &v->names[i];
    }
    if (v->n_names < c->n_records) x = &v->names[v->n_names++];
    (void)snprintf(x->name, sizeof x->name, "%s", name);
    return x;
}

static void note_workers(struct core *c, const struct replica *r, struct verdict *v)
{
    for (uint32_t i = 0; i < r->n_stages; i++) {
        struct verdict_name *x = name_entry(c, v, name_at(c, r, i));
        x->instance = replica__at(c, r, i)->instance;
        x->seen_ns = c->now_ns;
    }
    v->seen_ns = c->now_ns;
}

/* The entry of a digest. A new one takes the place of the least recently computed one that does not
 * stand; a free entry was never computed. */
static uint32_t entry_of(struct core *c, uint64_t digest)
{
    uint32_t at = VERDICTS;
    for (uint32_t i = 0; i < VERDICTS; i++)
        if (c->verdicts[i].used && c->verdicts[i].digest == digest) return i;
    for (uint32_t i = 0; i < VERDICTS; i++)
        if (i != c->standing &&
            (at == VERDICTS || c->verdicts[i].seen_ns < c->verdicts[at].seen_ns))
            at = i;
    CHECK(at < VERDICTS);
    c->verdicts[at] =
        (struct verdict){.used = true, .digest = digest, .names = c->verdicts[at].names};
    return at;
}

/* "workers a, b" or "workers a, b and 7 more": those of v that are not in `without` too (NULL: all
 * of them); "" for none. */
static const char *names_of(struct core *c, const struct verdict *v, const struct verdict *without)
{
    char list[LIMIT_TEXT_BYTES] = "", more[32] = "";
    uint32_t n_names = 0, n_more = 0;
    size_t n = 0;
    for (uint32_t i = 0; i < v->n_names; i++) {
        if (without && among(without, v->names[i].name)) continue;
        n_more += n >= NAMED_BYTES;
        if (n < NAMED_BYTES)
            n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", n ? ", " : "",
                                  v->names[i].name);
        n_names++;
    }
    if (n_more) (void)snprintf(more, sizeof more, " and %" PRIu32 " more", n_more);
    return n_names ? core__text(c, "worker%s %s%s", n_names > 1 ? "s" : "", list, more) : "";
}

/* Whether the replica's generation is made of workers that computed v, and of no others. */
static bool only_of(struct core *c, const struct replica *r, const struct verdict *v)
{
    for (uint32_t i = 0; i < r->n_stages; i++)
        if (!among(v, name_at(c, r, i))) return false;
    return true;
}

/* Whether the generation's workers are known to have computed another digest than v: then one of
 * them does not repeat itself. */
static bool erratic(struct core *c, const struct replica *r, const struct verdict *v)
{
    for (uint32_t i = 0; i < VERDICTS; i++) {
        const struct verdict *x = &c->verdicts[i];
        if (x->used && x != v && only_of(c, r, x)) return true;
    }
    return false;
}

/* Another digest stands from now on: those who computed only the old one are to blame. */
static void replace(struct core *c, uint32_t with)
{
    struct verdict *old = &c->verdicts[c->standing], *v = &c->verdicts[with];
    const char *differ = names_of(c, old, v);
    const char *text = core__text(
        c,
        "the probe's logits of %s are right from now on; %s computed others (broken hardware, or "
        "another build)",
        names_of(c, v, NULL), differ[0] ? differ : names_of(c, old, NULL));
    core__note_loss(c, "%s", text);
    for (uint32_t i = 0; i < old->n_names; i++)
        if (!among(v, old->names[i].name))
            fleet__blame_name(c, old->names[i].name, v->agreed, text);
    *old = (struct verdict){.used = false, .names = old->names};
    c->standing = with;
}

/* Who may have computed a wrong digest, of the replica's generation and of those that computed the
 * standing one:
 *  - a generation that contradicts itself: all of it, each in turn a little more, so that each is
 *    left out once where there are others;
 *  - the standing digest was contradicted by its own workers, and this one is not: nobody yet. The
 *    same workers are tried again, and either repeat this digest or contradict themselves too;
 *  - else the workers of one side only; those of the other side when this digest is new, since
 *    later it is their turn to show it. Where the standing digest was agreed on, those of this
 *    generation are to blame for certain. */
static void blame(struct core *c, const struct replica *r, const struct verdict *v,
                  const char *text)
{
    const struct verdict *s = &c->verdicts[c->standing];
    bool itself = erratic(c, r, v), differs = names_of(c, v, s)[0] != 0;
    if (s->contradicted && !itself) return;
    if (itself) c->n_erratic++;
    uint32_t turn = c->n_erratic % r->n_stages;
    for (uint32_t i = 0; i < r->n_stages; i++) {
        const char *name = name_at(c, r, i);
        if (itself || !differs || !among(s, name))
            fleet__blame_name(c, name, s->agreed && differs, text);
        if (itself && i == turn) fleet__blame_name(c, name, false, text);
    }
    bool others = v->n_times == 1 && !s->agreed && !itself;
    for (uint32_t i = 0; i < s->n_names && others; i++)
        if (!in_generation(c, r, s->names[i].name))
            fleet__blame_name(c, s->names[i].name, false, text);
}

static const char *refuse(struct core *c, const struct replica *r, const struct verdict *v)
{
    const struct verdict *s = &c->verdicts[c->standing];
    const char *differ = names_of(c, v, s);
    const char *text = core__text(
        c,
        "the probe's logits differ: %s computed others than %s (broken hardware, or another build)",
        differ[0] ? differ : names_of(c, v, NULL), names_of(c, s, NULL));
    blame(c, r, v, text);
    return text;
}

/* Whether the processes that computed a digest are all here and able to compute it again: then they
 * decide. One that was started again may be another build, or on mended hardware; one that ended a
 * generation since may be broken altogether. */
static bool all_present(struct core *c, const struct verdict *v)
{
    for (uint32_t i = 0; i < v->n_names; i++) {
        const struct worker *w = fleet__find(c, v->names[i].instance);
        if (!w) return false;
        const struct record *x = &c->records[w->record];
        if (x->n_lost && x->lost_ns[0] > v->seen_ns) return false;
    }
    return true;
}

const char *verdict__probe(struct core *c, const struct replica *r, uint64_t digest)
{
    uint32_t at = entry_of(c, digest), known = c->verdicts[at].n_names;
    struct verdict *v = &c->verdicts[at];
    note_workers(c, r, v);
    if (known && v->n_names > known) v->agreed = true; /* somebody else computed it too */
    if (c->standing == VERDICTS) c->standing = at;
    if (c->standing == at) {
        for (uint32_t i = 0; i < VERDICTS; i++) c->verdicts[i].n_times = 0;
        return NULL;
    }
    struct verdict *s = &c->verdicts[c->standing];
    s->contradicted |= only_of(c, r, s);
    if (v->n_times++ == 0) v->since_ns = c->now_ns;
    /* Those who computed the standing digest may decide. As this digest is held against others, it
     * is their turn before long; what they cannot do then, they do not decide. */
    uint32_t turns = all_present(c, s) && !s->contradicted ? VERDICT_PATIENCE : 1;
    bool again =
        v->n_times >= turns * VERDICT_TURNS && c->now_ns - v->since_ns >= turns * VERDICT_NS;
    if (!v->agreed && (s->agreed || !again)) return refuse(c, r, v);
    replace(c, at);
    return NULL;
}
