#include "common/text/word.h"

#include "common/base/mem.h"

#include <inttypes.h>

static bool before(const struct word_pair *a, const struct word_pair *b)
{
    return a->order != b->order ? a->order < b->order : a->left < b->left;
}

static void heap_push(struct word *w, struct word_pair p)
{
    size_t i = w->n_heap++;
    while (i && before(&p, &w->heap[(i - 1) / 2])) {
        w->heap[i] = w->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    w->heap[i] = p;
}

static struct word_pair heap_pop(struct word *w)
{
    struct word_pair top = w->heap[0], last = w->heap[--w->n_heap];
    size_t i = 0;
    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= w->n_heap) break;
        if (c + 1 < w->n_heap && before(&w->heap[c + 1], &w->heap[c])) c++;
        if (!before(&w->heap[c], &last)) break;
        w->heap[i] = w->heap[c];
        i = c;
    }
    w->heap[i] = last;
    return top;
}

/* A merge adds at most two pairs and removes a symbol, so 3n bounds the heap. */
int word_room(struct word *w, size_t n, struct errmsg *em)
{
    if (n <= w->cap) return 0;
    word_close(w);
    w->symbols = mem_try(n * sizeof *w->symbols);
    w->heap = mem_try(3 * n * sizeof *w->heap);
    w->cap = w->symbols && w->heap ? n : 0;
    return w->cap ? 0 : err_set(em, ERR_NOMEM, "a word of %zu symbols", n);
}

void word_close(struct word *w)
{
    mem_free(w->symbols);
    mem_free(w->heap);
    *w = (struct word){0};
}

void word_merge(struct word *w, size_t n, const char *text, word_find_fn find, const void *arg)
{
    struct symbol *s = w->symbols;
    struct word_pair p;
    w->n_heap = 0;
    for (size_t i = 0; i < n; i++) {
        s[i].prev = (int32_t)i - 1;
        s[i].next = i + 1 < n ? (int32_t)i + 1 : -1;
    }
    for (size_t i = 0; i + 1 < n; i++)
        if (find(arg, text, &s[i], &s[i + 1], &p.id, &p.order)) {
            p.left = (int32_t)i;
            p.len = s[i].len + s[i + 1].len;
            heap_push(w, p);
        }
    while (w->n_heap) {
        struct word_pair joined = heap_pop(w);
        struct symbol *l = &s[joined.left];
        if (l->len == 0 || l->next < 0 || l->len + s[l->next].len != joined.len) continue;
        struct symbol *r = &s[l->next];
        l->id = joined.id;
        l->len = joined.len;
        l->next = r->next;
        r->len = 0;
        if (l->next >= 0) s[l->next].prev = joined.left;
        const int32_t lefts[] = {l->prev, joined.left};
        for (int i = 0; i < 2; i++) {
            int32_t at = lefts[i];
            if (at < 0 || s[at].next < 0) continue;
            const struct symbol *right = &s[s[at].next];
            if (!find(arg, text, &s[at], right, &p.id, &p.order)) continue;
            p.left = at;
            p.len = s[at].len + right->len;
            heap_push(w, p);
        }
    }
}
