#include "coordinator/draft/recorded.h"

#include "common/base/mem.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct text {
    size_t first; /* its first token's place in `tokens` */
    uint32_t n;
};

struct recorded {
    int32_t *tokens; /* of all texts */
    size_t n_tokens, tokens_cap;
    struct text *texts;
    uint32_t n_texts, texts_cap;
};

void recorded_close(struct recorded *r)
{
    if (!r) return;
    mem_free(r->tokens);
    mem_free(r->texts);
    mem_free(r);
}

/* ---- the file ---- */

struct reader {
    FILE *file;
    const char *path;
    uint32_t vocab;
    size_t bytes_max;
    uint64_t line;
    struct recorded *r;
};

/* Twice the room, if there is so much. */
static int grow(struct reader *in, void **items, size_t size, size_t *cap, struct errmsg *em)
{
    const struct recorded *r = in->r;
    size_t more = *cap ? 2 * *cap : 64;
    size_t others = r->tokens_cap * sizeof *r->tokens + r->texts_cap * sizeof *r->texts;
    others -= *cap * size;
    void *grown = NULL;
    if (more * size > in->bytes_max || others > in->bytes_max - more * size)
        return err_set(em, ERR_LIMIT, "%s:%" PRIu64 ": the texts take more than %zu bytes",
                       in->path, in->line, in->bytes_max);
    grown = mem_try(more * size);
    if (!grown) return err_set(em, ERR_NOMEM, "no memory for the texts of %s", in->path);
    if (*cap) memcpy(grown, *items, *cap * size);
    mem_free(*items);
    *items = grown;
    *cap = more;
    return 0;
}

static int push_token(struct reader *in, uint64_t id, struct errmsg *em)
{
    struct recorded *r = in->r;
    void *items = r->tokens;
    if (id >= in->vocab)
        return err_set(em, ERR_FORMAT,
                       "%s:%" PRIu64 ": token %" PRIu64 " is not in the target's vocabulary of "
                       "%" PRIu32,
                       in->path, in->line, id, in->vocab);
    if (r->n_tokens == r->tokens_cap) {
        int rc = grow(in, &items, sizeof *r->tokens, &r->tokens_cap, em);
        r->tokens = items;
        if (rc < 0) return rc;
    }
    r->tokens[r->n_tokens++] = (int32_t)id;
    return 0;
}

/* What was read since the last text is one, if it has any token. */
static int end_text(struct reader *in, struct errmsg *em)
{
    struct recorded *r = in->r;
    const struct text *last = r->n_texts ? &r->texts[r->n_texts - 1] : NULL;
    size_t first = last ? last->first + last->n : 0, cap = r->texts_cap;
    void *items = r->texts;
    if (r->n_tokens == first) return 0;
    if (r->n_texts == RECORDED_TEXTS_MAX || r->n_tokens - first > UINT32_MAX)
        return err_set(em, ERR_LIMIT, "%s:%" PRIu64 ": more than %u texts", in->path, in->line,
                       RECORDED_TEXTS_MAX);
    if (r->n_texts == r->texts_cap) {
        int rc = grow(in, &items, sizeof *r->texts, &cap, em);
        r->texts = items;
        r->texts_cap = (uint32_t)cap;
        if (rc < 0) return rc;
    }
    r->texts[r->n_texts++] = (struct text){first, (uint32_t)(r->n_tokens - first)};
    return 0;
}

/* A number whose first digit is `c`; *ret_next is the character behind it. */
static int read_number(struct reader *in, int c, int *ret_next, struct errmsg *em)
{
    uint64_t id = 0;
    for (; c >= '0' && c <= '9'; c = getc(in->file)) {
        id = 10 * id + (uint64_t)(c - '0');
        if (id > INT32_MAX) id = INT32_MAX;
    }
    *ret_next = c;
    return push_token(in, id, em);
}

static int read_texts(struct reader *in, struct errmsg *em)
{
    int rc = 0, c = getc(in->file);
    while (c != EOF && rc == 0) {
        if (c >= '0' && c <= '9') {
            rc = read_number(in, c, &c, em);
            continue;
        }
        if (c == '#')
            while (c != '\n' && c != EOF) c = getc(in->file);
        if (c == '\n' || c == EOF) {
            rc = end_text(in, em);
            in->line++;
        } else if (c != ' ' && c != ',' && c != '\t' && c != '\r') {
            rc = err_set(em, ERR_FORMAT, "%s:%" PRIu64 ": neither a token's number nor a comment",
                         in->path, in->line);
        }
        if (c != EOF) c = getc(in->file);
    }
    if (rc == 0 && ferror(in->file)) rc = err_set(em, ERR_IO, "%s cannot be read", in->path);
    return rc == 0 ? end_text(in, em) : rc;
}

int recorded_open(const char *path, uint32_t vocab, size_t bytes_max, struct recorded **ret,
                  struct errmsg *em)
{
    FILE *f = fopen(path, "re");
    if (!f) return err_set(em, err_from_errno(errno), "%s: %s", path, strerror(errno));
    struct reader in = {.file = f,
                        .path = path,
                        .vocab = vocab,
                        .bytes_max = bytes_max,
                        .line = 1,
                        .r = mem_zalloc(sizeof *in.r)};
    int rc = read_texts(&in, em);
    (void)fclose(f);
    if (rc == 0 && in.r->n_texts == 0) rc = err_set(em, ERR_FORMAT, "%s has no texts", path);
    if (rc < 0)
        recorded_close(in.r);
    else
        *ret = in.r;
    return rc;
}

/* ---- drafts ---- */

/* How many of n tokens a text has too, of which the first `known` are known to be. */
static uint32_t agreement(const struct recorded *r, const struct text *t, const int32_t *tokens,
                          uint32_t n, uint32_t known)
{
    const int32_t *own = r->tokens + t->first;
    if (n > t->n) n = t->n;
    while (known < n && own[known] == tokens[known]) known++;
    return known;
}

/* A text that disagrees somewhere does so for ever: once all do, the choice stays. */
static void choose(const struct recorded *r, struct recorded_choice *c, const int32_t *tokens,
                   uint32_t n, uint32_t n_prompt)
{
    if (c->text) {
        c->agreed = agreement(r, &r->texts[c->text - 1], tokens, n, c->agreed);
        if (c->agreed == n) return;
    }
    *c = (struct recorded_choice){0};
    for (uint32_t i = 0; i < r->n_texts; i++) {
        uint32_t agreed = agreement(r, &r->texts[i], tokens, n, 0);
        if (agreed < n_prompt || (c->text && agreed <= c->agreed)) continue;
        c->text = i + 1;
        c->agreed = agreed;
    }
    c->final = c->agreed < n;
}

uint32_t recorded_draft(const struct recorded *r, struct recorded_choice *c, const int32_t *tokens,
                        uint32_t n, uint32_t n_prompt, uint32_t from, uint32_t want, int32_t *ret)
{
    if (!c->final) choose(r, c, tokens, n, n_prompt);
    if (!c->text) return 0;
    const struct text *t = &r->texts[c->text - 1];
    if (from >= t->n) return 0;
    if (want > t->n - from) want = t->n - from;
    memcpy(ret, r->tokens + t->first + from, want * sizeof *ret);
    return want;
}
