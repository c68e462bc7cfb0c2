#include "common/text/word.h"

#include "common/base/mem.h"

static void heap_push(struct word *w, uint64_t key)
{
    size_t i = w->n_heap++;
    while (i && key < w->heap[(i - 1) / 2]) {
        w->heap[i] = w->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    w->heap[i] = key;
}

static uint64_t heap_pop(struct word *w)
{
    uint64_t top = w->heap[0], last = w->heap[--w->n_heap];
    size_t i = 0;
    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= w->n_heap) break;
        if (c + 1 < w->n_heap && w->heap[c + 1] < w->heap[c]) c++;
        if (last <= w->heap[c]) break;
        w->heap[i] = w->heap[c];
        i = c;
    }
    w->heap[i] = last;
    return top;
}

/* n symbols have n - 1 neighbours. Each of at most n - 1 merges takes one pair out of the heap and
 * puts in at most two, so that 2n bounds the heap. */
int word_room(struct word *w, size_t n, struct errmsg *em)
{
    if (n <= w->cap) return 0;
    word_close(w);
    w->symbols = mem_try(n * sizeof *w->symbols);
    w->heap = mem_try(2 * n * sizeof *w->heap);
    w->cap = w->symbols && w->heap ? n : 0;
    return w->cap ? 0 : err_set(em, ERR_NOMEM, "a word of %zu symbols", n);
}

void word_close(struct word *w)
{
    mem_free(w->symbols);
    mem_free(w->heap);
    *w = (struct word){0};
}

/* Puts the pair that begins at symbol `left` into the heap, if it is a token. */
static void consider(struct word *w, const char *text, int32_t left, word_find_fn find,
                     const void *arg)
{
    const struct symbol *l = &w->symbols[left];
    int32_t id;
    uint32_t order;
    if (l->next >= 0 && find(arg, text, l, &w->symbols[l->next], &id, &order))
        heap_push(w, (uint64_t)order << 32 | (uint32_t)left);
}

/* A pair in the heap is stale once one of its symbols was merged otherwise. It is looked up again
 * when it is taken: that costs less than a heap whose entries say what they were made of. */
void word_merge(struct word *w, size_t n, const char *text, word_find_fn find, const void *arg)
{
    struct symbol *s = w->symbols;
    w->n_heap = 0;
    for (size_t i = 0; i < n; i++) {
        s[i].prev = (int32_t)i - 1;
        s[i].next = i + 1 < n ? (int32_t)i + 1 : -1;
    }
    for (size_t i = 0; i + 1 < n; i++) consider(w, text, (int32_t)i, find, arg);
    while (w->n_heap) {
        uint64_t key = heap_pop(w);
        int32_t left = (int32_t)(uint32_t)key, id;
        struct symbol *l = &s[left];
        uint32_t order;
        if (l->len == 0 || l->next < 0) continue;
        struct symbol *r = &s[l->next];
        if (!find(arg, text, l, r, &id, &order) || order != key >> 32) continue;
        l->id = id;
        l->len += r->len;
        l->next = r->next;
        r->len = 0;
        if (l->next >= 0) s[l->next].prev = left;
        if (l->prev >= 0) consider(w, text, l->prev, find, arg);
        consider(w, text, left, find, arg);
    }
}
