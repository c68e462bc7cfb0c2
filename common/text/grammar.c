/* Positions wait at operations that take a byte, or at a PEEK, which the next byte decides. A step
 * takes each position through the byte (walk), and then through what takes no byte (settle), to the
 * positions that wait for the next one. Both work on one stack, which they leave as they found it.
 */
#include "common/text/grammar.h"

#include <string.h>

/* What one step may do, and how deep its recursion may be: far beyond what compiled grammars need.
 */
#define FUEL 20000u
#define NESTING_MAX 400u

#define COUNT 0x80000000u
/* Counts of a blurred state: never reaches min; is at min or above and never reaches max. */
#define LOW 0xfffeu
#define FREE 0xffffu

static uint32_t u16(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8;
}

/* Bytes of the operation at p, of which n are there; 0: there is no such operation, or its end. */
static uint32_t op_bytes(const uint8_t *p, uint32_t n)
{
    uint32_t size = 0;
    if (*p >= 0x20 && *p < 0x7f) return 1;
    switch (*p) {
    case GRAMMAR_RET: size = 1; break;
    case GRAMMAR_BYTE:
    case GRAMMAR_SET:
    case GRAMMAR_ROOM: size = 2; break;
    case GRAMMAR_RANGE:
    case GRAMMAR_SPLIT:
    case GRAMMAR_JUMP:
    case GRAMMAR_CALL:
    case GRAMMAR_BEGIN: size = 3; break;
    case GRAMMAR_LOOP: size = 7; break;
    case GRAMMAR_PEEK: size = n > 1 ? 2 + 4 * (uint32_t)p[1] : 0; break;
    default: break;
    }
    return size <= n ? size : 0;
}

/* ---- checking ---- */

/* Operations begin where `starts` has a bit. */
static bool is_start(const uint8_t *starts, uint32_t at)
{
    return at < GRAMMAR_BYTES_MAX && (starts[at / 8] >> at % 8 & 1);
}

static bool check_op(const struct grammar *g, const uint8_t *starts, uint32_t at)
{
    const uint8_t *p = g->code + at;
    switch (*p) {
    case GRAMMAR_RET: return true;
    case GRAMMAR_SET:
        if (p[1] >= g->n_sets) return false;
        break;
    case GRAMMAR_SPLIT:
    case GRAMMAR_CALL:
        if (!is_start(starts, u16(p + 1))) return false;
        break;
    case GRAMMAR_JUMP: return is_start(starts, u16(p + 1));
    case GRAMMAR_BEGIN:
        if (!is_start(starts, u16(p + 1)) || g->code[u16(p + 1)] != GRAMMAR_LOOP) return false;
        break;
    case GRAMMAR_LOOP:
        if (!is_start(starts, u16(p + 1)) || u16(p + 3) > GRAMMAR_COUNT_MAX) return false;
        if (u16(p + 5) != GRAMMAR_NO_MAX &&
            (u16(p + 5) > GRAMMAR_COUNT_MAX || u16(p + 5) < u16(p + 3) || u16(p + 5) == 0))
            return false;
        break;
    case GRAMMAR_PEEK:
        for (uint32_t i = 0; i < p[1]; i++)
            if (!is_start(starts, u16(p + 2 + 4 * i + 2))) return false;
        return true;
    default: break;
    }
    return is_start(starts, at + op_bytes(p, g->n_code - at)); /* what it falls through to */
}

static void mark(bool *begins, uint32_t low, uint32_t high)
{
    begins[low] = begins[high + 1] = true;
}

/* Where a byte is in the set and the one before is not, or the other way round. */
static void mark_set(const uint8_t *set, bool *begins)
{
    for (uint32_t b = 1; b < 256; b++)
        if ((set[b / 8] >> b % 8 & 1) != (set[(b - 1) / 8] >> (b - 1) % 8 & 1)) begins[b] = true;
}

/* Where a byte is not as the one before to the operation at p; sets are marked once for all. */
static void mark_op(const uint8_t *p, bool *begins)
{
    switch (*p) {
    case GRAMMAR_BYTE: mark(begins, p[1], p[1]); break;
    case GRAMMAR_RANGE: mark(begins, p[1], p[2]); break;
    case GRAMMAR_PEEK:
        for (uint32_t i = 0; i < p[1]; i++) mark(begins, p[2 + 4 * i], p[3 + 4 * i]);
        break;
    default:
        if (*p >= 0x20 && *p < 0x7f) mark(begins, *p, *p);
    }
}

static void find_classes(struct grammar *g)
{
    bool begins[257] = {false};
    uint8_t n = 0;
    for (uint32_t i = 0; i < g->n_sets; i++) mark_set(g->sets + i * GRAMMAR_SET_BYTES, begins);
    for (uint32_t at = 0; at < g->n_code; at += op_bytes(g->code + at, g->n_code - at))
        mark_op(g->code + at, begins);
    for (uint32_t b = 0; b < 256; b++) {
        if (b && begins[b]) n++;
        g->class[b] = n;
    }
}

int grammar_open(const void *data, size_t bytes, struct grammar *ret, struct errmsg *em)
{
    const uint8_t *p = data;
    uint8_t starts[GRAMMAR_BYTES_MAX / 8] = {0};
    if (bytes < GRAMMAR_HEAD_BYTES || bytes > GRAMMAR_BYTES_MAX || memcmp(p, "FG\1", 3) != 0)
        return err_set(em, ERR_FORMAT, "%zu bytes are no grammar", bytes);
    struct grammar g = {.n_sets = p[3], .n_code = u16(p + 4), .sets = p + GRAMMAR_HEAD_BYTES};
    size_t sets = (size_t)g.n_sets * GRAMMAR_SET_BYTES;
    if (g.n_code == 0 || GRAMMAR_HEAD_BYTES + sets + g.n_code != bytes)
        return err_set(em, ERR_FORMAT, "a grammar's sizes do not fit its %zu bytes", bytes);
    g.code = g.sets + sets;
    g.character = u16(p + 6) ? u16(p + 6) - 1 : g.n_code;
    if (g.character > g.n_code)
        return err_set(em, ERR_FORMAT, "a grammar's rule is not in its code");
    for (uint32_t at = 0, n; at < g.n_code; at += n) {
        n = op_bytes(g.code + at, g.n_code - at);
        if (n == 0) return err_set(em, ERR_FORMAT, "a grammar's code is wrong at %u", at);
        starts[at / 8] = (uint8_t)(starts[at / 8] | 1u << at % 8);
    }
    for (uint32_t at = 0; at < g.n_code; at += op_bytes(g.code + at, g.n_code - at))
        if (!check_op(&g, starts, at))
            return err_set(em, ERR_FORMAT, "a grammar's code is wrong at %u", at);
    g.hash = hash128_bytes(data, bytes, 0);
    find_classes(&g);
    *ret = g;
    return 0;
}

/* ---- steps ---- */

struct run {
    const struct grammar *g;
    struct grammar_state *out;
    uint32_t fuel, nesting, depth;
    uint32_t looks; /* at ranges of PEEKs */
    int byte;       /* to be taken; -1: none */
    uint32_t stack[GRAMMAR_DEPTH_MAX];
    uint16_t by_hash[2 * GRAMMAR_STATE_WORDS]; /* to the output's positions, plus 1; 0: none */
};

static void add(struct run *r, uint32_t pc)
{
    struct grammar_state *s = r->out;
    uint32_t head = pc << 8 | r->depth, n = 1 + r->depth;
    size_t bytes = r->depth * sizeof *r->stack;
    uint32_t slot =
        (uint32_t)hash_bytes(r->stack, bytes, r->g->hash.lo ^ head) % (2 * GRAMMAR_STATE_WORDS);
    for (; r->by_hash[slot]; slot = (slot + 1) % (2 * GRAMMAR_STATE_WORDS)) {
        const uint32_t *w = s->words + r->by_hash[slot] - 1;
        if (*w == head && memcmp(w + 1, r->stack, bytes) == 0) return;
    }
    if (n > GRAMMAR_STATE_WORDS - s->n_words) return;
    r->by_hash[slot] = (uint16_t)(s->n_words + 1);
    s->words[s->n_words] = head;
    memcpy(s->words + s->n_words + 1, r->stack, bytes);
    s->n_words = (uint16_t)(s->n_words + n);
}

/* Whether the operation at p takes this byte. */
static bool takes(const struct grammar *g, const uint8_t *p, uint8_t byte)
{
    switch (*p) {
    case GRAMMAR_BYTE: return p[1] == byte;
    case GRAMMAR_RANGE: return byte >= p[1] && byte <= p[2];
    case GRAMMAR_SET: return g->sets[p[1] * GRAMMAR_SET_BYTES + byte / 8] >> byte % 8 & 1;
    default: return *p == byte;
    }
}

static void settle(struct run *r, uint32_t pc);

/* The LOOP at pc has done one more time. */
static void loop(struct run *r, uint32_t pc)
{
    const uint8_t *p = r->g->code + pc;
    uint32_t min = u16(p + 3), max = u16(p + 5);
    if (r->depth == 0 || r->stack[r->depth - 1] >> 16 != (COUNT >> 16 | pc)) return;
    uint32_t was = r->stack[r->depth - 1], n = was & 0xffff;
    bool again = true, out = n == FREE;
    if (n != FREE && n != LOW) {
        n++;
        again = max == GRAMMAR_NO_MAX || n < max;
        out = n >= min;
        if (max == GRAMMAR_NO_MAX && n > min) n = min;
    }
    r->stack[r->depth - 1] = COUNT | pc << 16 | n;
    if (again) settle(r, u16(p + 1));
    if (out) {
        r->depth--;
        settle(r, pc + 7);
        r->depth++;
    }
    r->stack[r->depth - 1] = was;
}

static void push(struct run *r, uint32_t word, uint32_t pc)
{
    if (r->depth == GRAMMAR_DEPTH_MAX) return;
    r->stack[r->depth++] = word;
    settle(r, pc);
    r->depth--;
}

static void ret(struct run *r)
{
    if (r->depth == 0) {
        if (r->byte < 0) r->out->may_end = true;
        return;
    }
    uint32_t word = r->stack[r->depth - 1];
    if (word & COUNT) return;
    r->depth--;
    settle(r, word);
    r->stack[r->depth++] = word;
}

/* Takes r->byte, if there is one, at an operation that takes bytes. */
static void take(struct run *r, uint32_t pc)
{
    const uint8_t *p = r->g->code + pc;
    if (r->byte < 0) {
        add(r, pc);
        return;
    }
    if (!takes(r->g, p, (uint8_t)r->byte)) return;
    int byte = r->byte;
    r->byte = -1;
    settle(r, pc + op_bytes(p, 7));
    r->byte = byte;
}

/* Where a PEEK leads; false: the byte is none of its. */
static bool peek(const uint8_t *p, int byte, uint32_t *ret_pc)
{
    for (uint32_t i = 0; i < p[1]; i++)
        if (byte >= p[2 + 4 * i] && byte <= p[3 + 4 * i]) {
            *ret_pc = u16(p + 4 + 4 * i);
            return true;
        }
    return false;
}

/* From pc to where a byte is taken: takes r->byte there, or, without one, waits there. */
static void settle(struct run *r, uint32_t pc)
{
    if (r->nesting == NESTING_MAX) return;
    r->nesting++;
    while (r->fuel) {
        const uint8_t *p = r->g->code + pc;
        r->fuel--;
        switch (*p) {
        case GRAMMAR_JUMP: pc = u16(p + 1); continue;
        case GRAMMAR_SPLIT:
            settle(r, pc + 3);
            pc = u16(p + 1);
            continue;
        case GRAMMAR_ROOM:
            if (r->depth + p[1] > GRAMMAR_DEPTH_MAX) break;
            pc += 2;
            continue;
        case GRAMMAR_CALL: push(r, pc + 3, u16(p + 1)); break;
        case GRAMMAR_BEGIN: push(r, COUNT | u16(p + 1) << 16, pc + 3); break;
        case GRAMMAR_RET: ret(r); break;
        case GRAMMAR_LOOP: loop(r, pc); break;
        case GRAMMAR_PEEK:
            r->looks += p[1];
            if (r->byte < 0)
                add(r, pc);
            else if (peek(p, r->byte, &pc))
                continue;
            break;
        default: take(r, pc);
        }
        break;
    }
    r->nesting--;
}

static void clear(struct grammar_state *s)
{
    s->n_words = 0;
    s->may_end = false;
}

void grammar_start(const struct grammar *g, struct grammar_state *ret_state)
{
    struct run r = {.g = g, .out = ret_state, .fuel = FUEL, .byte = -1};
    clear(ret_state);
    settle(&r, 0);
    ret_state->work = FUEL - r.fuel;
}

bool grammar_step(const struct grammar *g, const struct grammar_state *from, uint8_t byte,
                  struct grammar_state *ret_state)
{
    struct run r;
    clear(ret_state);
    r.g = g;
    r.out = ret_state;
    r.fuel = FUEL;
    r.nesting = r.looks = 0;
    r.byte = byte;
    memset(r.by_hash, 0, sizeof r.by_hash);
    for (uint32_t i = 0; i < from->n_words; i += 1 + r.depth) {
        r.depth = from->words[i] & 0xff;
        memcpy(r.stack, from->words + i + 1, r.depth * sizeof *r.stack);
        settle(&r, from->words[i] >> 8);
    }
    ret_state->work = from->work + (FUEL - r.fuel) + r.looks / 16;
    return !grammar_is_dead(ret_state);
}

/* Whether behind an address the rule of characters is called again, any number of times: the end of
 * x* or x+. */
static bool calls_again(const struct grammar *g, uint32_t pc)
{
    const uint8_t *p = g->code + pc;
    if (*p != GRAMMAR_JUMP && *p != GRAMMAR_SPLIT) return false;
    p = g->code + u16(p + 1);
    if (*p == GRAMMAR_SPLIT) p += 3;
    return *p == GRAMMAR_CALL && u16(p + 1) == g->character;
}

uint32_t grammar_free_characters(const struct grammar *g, const struct grammar_state *s)
{
    uint32_t most = 0;
    for (uint32_t i = 0, depth; i < s->n_words; i += 1 + depth) {
        depth = s->words[i] & 0xff;
        uint32_t back = depth ? s->words[i + depth] : COUNT;
        if (s->words[i] >> 8 != g->character || back & COUNT) continue;
        uint32_t n = calls_again(g, back) ? UINT32_MAX : 1;
        if (g->code[back] == GRAMMAR_LOOP && depth > 1 && s->words[i + depth - 1] & COUNT) {
            const uint8_t *p = g->code + back, *body = g->code + u16(p + 1);
            uint32_t done = s->words[i + depth - 1] & 0xffff, max = u16(p + 5);
            bool again = *body == GRAMMAR_CALL && u16(body + 1) == g->character;
            if (again) n = max == GRAMMAR_NO_MAX || done >= LOW ? UINT32_MAX : max - done;
        }
        most = n > most ? n : most;
    }
    return most;
}

void grammar_blur(const struct grammar *g, struct grammar_state *s, uint32_t n_bytes)
{
    for (uint32_t i = 0; i < s->n_words; i += 1 + (s->words[i] & 0xff)) {
        for (uint32_t k = i + 1; k <= i + (s->words[i] & 0xff); k++) {
            uint32_t w = s->words[k], n = w & 0xffff;
            if (!(w & COUNT) || n >= LOW) continue;
            const uint8_t *p = g->code + (w >> 16 & 0x7fff);
            uint32_t min = u16(p + 3), max = u16(p + 5);
            if (n + n_bytes + 1 < min)
                n = LOW;
            else if (n >= min && (max == GRAMMAR_NO_MAX || n + n_bytes + 1 < max))
                n = FREE;
            s->words[k] = (w & ~0xffffu) | n;
        }
    }
}
