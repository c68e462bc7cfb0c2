/* The walk goes from state to state by byte. States are numbered as they are met, and each step
 * from one by a byte is noted, so that a step that many tokens have in common is taken once: most
 * tokens stay within a string, whose states are one and the same once they are blurred
 * (grammar_blur).
 *
 * Where the numbers or their room run out all is forgotten, and the walk goes on from the begin of
 * the token at hand. */
#include "common/text/masks.h"

#include "common/base/check.h"
#include "common/base/mem.h"
#include "common/base/utf8.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MASKS 256u /* that are kept */
#define WAYS 4u    /* where one may be */
#define STATES 2048u
#define WORDS (64u << 10) /* of states */
#define STEPS (1u << 14)  /* that are noted */
#define DEAD UINT16_MAX
#define SHORT 24u    /* bytes of a token of the first list */
#define LONGEST 255u /* bytes of a token; longer ones are not allowed: their parts are */

struct entry {
    struct hash128 key; /* all zero: none */
    uint64_t used;      /* when */
    uint64_t work;      /* that the mask took; above MASKS_WORK: it was given up */
};

/* From a state by a byte. */
struct step {
    uint32_t key; /* state << 8 | class of the byte, plus 1; 0: none */
    uint16_t to;
};

struct met {
    uint32_t at; /* in `words` */
    uint16_t n_words;
    bool may_end;
    uint64_t hash;
};

/* Tokens that may be text, sorted by their bytes: short ones of characters that stand in a JSON
 * string as they are, other short ones, and the few long ones. A state's mask is all of theirs.
 * They are apart since how far a state is blurred depends on the longest token, and since most
 * tokens are of the first kind, of which it is known without a walk whether a string may go on with
 * them. */
enum { PLAIN, OTHER, LONG, LISTS };

struct list {
    int32_t *tokens; /* n */
    uint8_t *shared; /* bytes that each has in common with the one before */
    uint32_t n, longest;
};

struct masks {
    uint32_t n;       /* tokens */
    uint32_t n_words; /* of a mask */
    /* The vocabulary. */
    char *bytes;
    uint32_t *offset; /* n + 1 */
    uint8_t *kind;    /* by token */
    struct list lists[LISTS];
    uint8_t *characters; /* of each token of the first list */
    uint64_t *plain;     /* the mask of all of these */
    int32_t *ends;       /* n_ends: tokens that end an answer */
    uint32_t n_ends;
    /* Masks that are kept. */
    struct entry entries[MASKS];
    uint64_t *all;  /* MASKS of them, */
    uint64_t *both; /* and one that is handed out */
    uint64_t clock;
    struct masks_counts counts;
    /* The walk. */
    struct met states[STATES];
    uint16_t by_hash[2 * STATES]; /* to states, plus 1 */
    uint32_t n_states, words_used;
    uint64_t work; /* that the walk took so far */
    uint32_t *words;
    struct step *steps;
    uint16_t path[LONGEST + 1]; /* the state behind each byte of the token at hand */
    struct grammar_state first, from, to;
};

enum { KIND_NONE, KIND_TEXT, KIND_END };

/* ---- the vocabulary ---- */

static struct vocab_string piece(const struct masks *m, int32_t token)
{
    return (struct vocab_string){m->bytes + m->offset[token],
                                 m->offset[token + 1] - m->offset[token]};
}

static int by_bytes(const void *a, const void *b, void *arg)
{
    struct vocab_string x = piece(arg, *(const int32_t *)a), y = piece(arg, *(const int32_t *)b);
    int c = memcmp(x.data, y.data, x.len < y.len ? x.len : y.len);
    return c ? c : x.len < y.len ? -1 : x.len > y.len;
}

/* The characters of a text, if all of them stand in a JSON string as they are; else 0. */
static uint32_t plain_characters(struct vocab_string x)
{
    uint32_t count = 0;
    int32_t c = 0;
    for (size_t i = 0, n; i < x.len; i += n, count++) {
        n = utf8_char(x.data + i, x.len - i, &c);
        if (n == 0 || c < 0x20 || c == '"' || c == '\\') return 0;
    }
    return count;
}

static int list_of(const struct masks *m, int32_t token)
{
    struct vocab_string x = piece(m, token);
    return x.len > SHORT ? LONG : plain_characters(x) ? PLAIN : OTHER;
}

static void set(uint64_t *mask, int32_t token)
{
    mask[token / 64] |= (uint64_t)1 << token % 64;
}

/* False: no memory. */
static bool note_plain(struct masks *m)
{
    const struct list *l = &m->lists[PLAIN];
    m->characters = mem_try((size_t)l->n + 1);
    m->plain = mem_try_zeroed(m->n_words + 1, sizeof *m->plain);
    if (!m->characters || !m->plain) return false;
    for (uint32_t i = 0; i < l->n; i++) {
        m->characters[i] = (uint8_t)plain_characters(piece(m, l->tokens[i]));
        set(m->plain, l->tokens[i]);
    }
    return true;
}

/* False: no memory. */
static bool sort(struct masks *m)
{
    for (uint32_t i = 0; i < m->n; i++)
        if (m->kind[i] == KIND_TEXT) m->lists[list_of(m, (int32_t)i)].n++;
    for (struct list *l = m->lists; l < m->lists + LISTS; l++) {
        l->tokens = mem_try(l->n * sizeof *l->tokens + 1);
        l->shared = mem_try((size_t)l->n + 1);
        if (!l->tokens || !l->shared) return false;
        l->n = 0;
    }
    for (uint32_t i = 0; i < m->n; i++) {
        struct list *l = &m->lists[list_of(m, (int32_t)i)];
        if (m->kind[i] == KIND_TEXT) l->tokens[l->n++] = (int32_t)i;
    }
    for (struct list *l = m->lists; l < m->lists + LISTS; l++) {
        qsort_r(l->tokens, l->n, sizeof *l->tokens, by_bytes, m);
        for (uint32_t i = 0; i < l->n; i++) {
            struct vocab_string x = piece(m, l->tokens[i]), before = {"", 0};
            if (i) before = piece(m, l->tokens[i - 1]);
            size_t k = 0;
            while (k < x.len && k < before.len && x.data[k] == before.data[k]) k++;
            l->shared[i] = (uint8_t)k;
            if (x.len > l->longest) l->longest = (uint32_t)x.len;
        }
    }
    return note_plain(m);
}

/* False: no memory. */
static bool read_vocab(struct masks *m, const struct vocab *v)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i < m->n; i++) m->n_ends += vocab_is_eog(v, (int32_t)i);
    m->ends = mem_try(m->n_ends * sizeof *m->ends + 1);
    if (!m->ends) return false;
    m->n_ends = 0;
    for (uint32_t i = 0; i < m->n; i++) {
        struct vocab_string p = vocab_piece(v, (int32_t)i);
        bool ends = vocab_is_eog(v, (int32_t)i);
        m->offset[i] = at;
        memcpy(m->bytes + at, p.data, p.len);
        at += (uint32_t)p.len;
        bool text = p.len > 0 && p.len <= LONGEST && !vocab_is_control(v, (int32_t)i);
        m->kind[i] = ends ? KIND_END : text ? KIND_TEXT : KIND_NONE;
        if (ends) m->ends[m->n_ends++] = (int32_t)i;
    }
    m->offset[m->n] = at;
    return true;
}

int masks_open(const struct vocab *v, uint32_t n, struct masks **ret, struct errmsg *em)
{
    struct masks *m = mem_zalloc(sizeof *m);
    size_t bytes = 0;
    for (uint32_t i = 0; i < n; i++) bytes += vocab_piece(v, (int32_t)i).len;
    m->n = n;
    m->n_words = (n + 63) / 64;
    m->bytes = mem_try(bytes + 1);
    m->offset = mem_try(((size_t)n + 1) * sizeof *m->offset);
    m->kind = mem_try((size_t)n + 1);
    m->all = mem_try((size_t)MASKS * m->n_words * sizeof *m->all + 1); /* pages come when used */
    m->both = mem_try(m->n_words * sizeof *m->both + 1);
    m->words = mem_try(WORDS * sizeof *m->words);
    m->steps = mem_try_zeroed(STEPS, sizeof *m->steps);
    bool some = m->bytes && m->offset && m->kind && m->all && m->both && m->words && m->steps &&
                bytes <= UINT32_MAX;
    if (!some || !read_vocab(m, v) || !sort(m)) {
        masks_close(m);
        return err_set(em, ERR_NOMEM, "no memory for the bytes of %" PRIu32 " tokens", n);
    }
    *ret = m;
    return 0;
}

void masks_close(struct masks *m)
{
    if (!m) return;
    mem_free(m->bytes);
    mem_free(m->offset);
    for (struct list *l = m->lists; l < m->lists + LISTS; l++) {
        mem_free(l->tokens);
        mem_free(l->shared);
    }
    mem_free(m->ends);
    mem_free(m->kind);
    mem_free(m->all);
    mem_free(m->both);
    mem_free(m->characters);
    mem_free(m->plain);
    mem_free(m->words);
    mem_free(m->steps);
    mem_free(m);
}

/* ---- one token ---- */

/* Whether the token's bytes lead on; adds the operations that this took. */
static bool try_bytes(struct masks *m, const struct grammar *g, const struct grammar_state *s,
                      int32_t token, uint64_t *add_work)
{
    struct vocab_string p = piece(m, token);
    struct grammar_state *a = &m->to, *b = &m->from;
    for (size_t i = 0; i < p.len; i++) {
        const struct grammar_state *from = i ? b : s;
        bool on = grammar_step(g, from, (uint8_t)p.data[i], a);
        *add_work += a->work - from->work;
        if (!on) return false;
        struct grammar_state *swap = a;
        a = b;
        b = swap;
    }
    return true;
}

static bool allowed(struct masks *m, const struct grammar *g, const struct grammar_state *s,
                    int32_t token, uint64_t *add_work)
{
    if (token < 0 || (uint32_t)token >= m->n) return false;
    if (m->kind[token] == KIND_END) return s->may_end;
    return m->kind[token] == KIND_TEXT && try_bytes(m, g, s, token, add_work);
}

bool masks_allow(struct masks *m, const struct grammar *g, const struct grammar_state *s,
                 int32_t token, uint64_t *add_work)
{
    m->counts.tested++;
    return allowed(m, g, s, token, add_work);
}

bool masks_step(const struct masks *m, const struct grammar *g, struct grammar_state *s,
                int32_t token)
{
    struct grammar_state next;
    bool text = token >= 0 && (uint32_t)token < m->n && m->kind[token] == KIND_TEXT;
    struct vocab_string p = text ? piece(m, token) : (struct vocab_string){"", 0};
    for (size_t i = 0; i < p.len && text; i++) {
        text = grammar_step(g, s, (uint8_t)p.data[i], &next);
        *s = next;
    }
    if (!text) {
        s->n_words = 0;
        s->may_end = false;
    }
    return text;
}

/* ---- the walk ---- */

static void forget(struct masks *m)
{
    m->n_states = 0;
    m->words_used = 0;
    memset(m->by_hash, 0, sizeof m->by_hash);
    memset(m->steps, 0, STEPS * sizeof *m->steps);
}

/* The number of a state; DEAD: there is no room. */
static uint16_t number(struct masks *m, const struct grammar_state *s)
{
    size_t bytes = s->n_words * sizeof *s->words;
    uint64_t hash = hash_bytes(s->words, bytes, s->may_end);
    uint32_t slot = (uint32_t)hash % (2 * STATES);
    for (; m->by_hash[slot]; slot = (slot + 1) % (2 * STATES)) {
        const struct met *x = &m->states[m->by_hash[slot] - 1];
        if (x->hash == hash && x->n_words == s->n_words && x->may_end == s->may_end &&
            memcmp(m->words + x->at, s->words, bytes) == 0)
            return (uint16_t)(m->by_hash[slot] - 1);
    }
    if (m->n_states == STATES || s->n_words > WORDS - m->words_used) return DEAD;
    m->states[m->n_states] = (struct met){m->words_used, s->n_words, s->may_end, hash};
    memcpy(m->words + m->words_used, s->words, bytes);
    m->words_used += s->n_words;
    m->by_hash[slot] = (uint16_t)++m->n_states;
    return (uint16_t)(m->n_states - 1);
}

static void load(const struct masks *m, uint16_t number_, struct grammar_state *ret)
{
    const struct met *x = &m->states[number_];
    ret->n_words = x->n_words;
    ret->may_end = x->may_end;
    ret->work = 0;
    memcpy(ret->words, m->words + x->at, x->n_words * sizeof *ret->words);
}

/* False: there was no room, and all is forgotten. *ret_to is DEAD where no answer goes on so. */
static bool step(struct masks *m, const struct grammar *g, uint16_t from, uint8_t byte,
                 uint16_t *ret_to)
{
    uint32_t key = ((uint32_t)from << 8 | g->class[byte]) + 1;
    struct step *s = &m->steps[key * 2654435761u % STEPS];
    if (s->key == key) {
        *ret_to = s->to;
        return true;
    }
    load(m, from, &m->from);
    *ret_to = DEAD;
    bool on = grammar_step(g, &m->from, byte, &m->to);
    m->work += m->to.work;
    if (on) {
        *ret_to = number(m, &m->to);
        if (*ret_to == DEAD) {
            forget(m);
            return false;
        }
    }
    *s = (struct step){key, *ret_to};
    return true;
}

/* Walks bytes [from, len) of a token whose states up to `from` are in m->path. Returns how many of
 * its bytes lead on. */
static size_t walk(struct masks *m, const struct grammar *g, struct vocab_string p, size_t from)
{
    for (size_t i = from; i < p.len; i++) {
        uint16_t to;
        if (m->work > MASKS_WORK) return 0;
        if (!step(m, g, m->path[i], (uint8_t)p.data[i], &to)) {
            m->path[0] = number(m, &m->first);
            /* A token's own states have room at all times: LONGEST < STATES, unless they are huge.
             */
            bool room = true;
            for (size_t k = 0; k < i && room; k++)
                room = step(m, g, m->path[k], (uint8_t)p.data[k], &m->path[k + 1]);
            if (!room || !step(m, g, m->path[i], (uint8_t)p.data[i], &to)) {
                m->path[0] = number(m, &m->first); /* all is forgotten again */
                return 0;
            }
        }
        if (to == DEAD) return i;
        m->path[i + 1] = to;
    }
    return p.len;
}

/* Of the first list tokens of up to `free` characters are allowed, whatever else is. What it
 * took is in m->work; beyond MASKS_WORK it is given up. */
static void make(struct masks *m, const struct list *l, const struct grammar *g,
                 const struct grammar_state *s, uint32_t free, uint64_t *mask)
{
    uint32_t shared = 0; /* bytes in common with the token that was walked last, */
    size_t good = 0;     /* and bytes of that one that lead on */
    forget(m);
    m->first = *s;
    m->path[0] = number(m, s);
    for (uint32_t i = 0; i < l->n && m->work <= MASKS_WORK; i++) {
        if (l->shared[i] < shared) shared = l->shared[i];
        if (free && m->characters[i] <= free) {
            set(mask, l->tokens[i]);
            continue;
        }
        if (shared > good) continue; /* it begins with what was refused */
        struct vocab_string p = piece(m, l->tokens[i]);
        good = walk(m, g, p, shared);
        shared = LONGEST;
        if (good == p.len) set(mask, l->tokens[i]);
    }
}

static void make_list(struct masks *m, const struct list *l, const struct grammar *g,
                      const struct grammar_state *s, uint64_t *mask)
{
    uint32_t free = l == &m->lists[PLAIN] ? grammar_free_characters(g, s) : 0;
    if (free >= SHORT) {
        memcpy(mask, m->plain, m->n_words * sizeof *mask);
        return;
    }
    memset(mask, 0, m->n_words * sizeof *mask);
    make(m, l, g, s, free, mask);
}

/* Where a mask is kept: its own place, or that of the one among a few that was not used longest. */
static uint32_t place(struct masks *m, struct hash128 key, bool *ret_known)
{
    uint32_t base = (uint32_t)key.lo % MASKS, oldest = base;
    for (uint32_t i = 0; i < WAYS; i++) {
        uint32_t at = (base + i) % MASKS;
        *ret_known = m->entries[at].key.lo == key.lo && m->entries[at].key.hi == key.hi;
        if (*ret_known) return at;
        if (m->entries[at].used < m->entries[oldest].used) oldest = at;
    }
    return oldest;
}

/* The mask of one list's tokens. Adds what it takes, also where it is known already. */
static const uint64_t *mask_of(struct masks *m, const struct list *l, const struct grammar *g,
                               const struct grammar_state *s, uint64_t *add_work)
{
    struct grammar_state blurred = {.n_words = s->n_words}; /* whether it may end is no matter */
    memcpy(blurred.words, s->words, s->n_words * sizeof *s->words);
    grammar_blur(g, &blurred, l->longest);
    struct hash128 key = hash128_bytes(blurred.words, blurred.n_words * sizeof *blurred.words,
                                       g->hash.lo + (uint64_t)(l - m->lists));
    key.hi ^= g->hash.hi;
    key.lo |= 1; /* not all zero */
    bool known;
    uint32_t at = place(m, key, &known);
    uint64_t *mask = m->all + (size_t)at * m->n_words;
    m->work = 0;
    if (!known) make_list(m, l, g, &blurred, mask);
    uint64_t work = known ? m->entries[at].work : m->work;
    m->entries[at] = (struct entry){key, ++m->clock, work};
    *add_work += work;
    m->counts.kept += known;
    m->counts.made += !known;
    return mask;
}

const uint64_t *masks_all(struct masks *m, const struct grammar *g, const struct grammar_state *s,
                          bool *ret_is_dear)
{
    uint64_t work = 0;
    memset(m->both, 0, m->n_words * sizeof *m->both);
    for (const struct list *l = m->lists; l < m->lists + LISTS && work <= MASKS_WORK; l++) {
        const uint64_t *one = l->n ? mask_of(m, l, g, s, &work) : NULL;
        for (uint32_t i = 0; i < m->n_words && one; i++) m->both[i] |= one[i];
    }
    *ret_is_dear = work > MASKS_WORK;
    for (uint32_t i = 0; i < m->n_ends && s->may_end; i++) set(m->both, m->ends[i]);
    return m->both;
}

struct masks_counts masks_counts(const struct masks *m)
{
    return m->counts;
}
