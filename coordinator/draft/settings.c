#include "coordinator/draft/settings.h"

#include <inttypes.h>
#include <string.h>

static const char *const names[DRAFT_N_KINDS] = {
    [DRAFT_OFF] = "off",           [DRAFT_NGRAM] = "ngram", [DRAFT_MODEL] = "model",
    [DRAFT_RECORDED] = "recorded", [DRAFT_AUTO] = "auto",
};

const char *draft_kind_name(enum draft_kind kind)
{
    return names[kind];
}

int draft_kind_parse(const char *name, enum draft_kind *ret, struct errmsg *em)
{
    for (int k = 0; k < DRAFT_N_KINDS; k++)
        if (strcmp(name, names[k]) == 0) {
            *ret = (enum draft_kind)k;
            return 0;
        }
    return err_set(em, ERR_CONF, "'%.64s' is no kind of draft (off, ngram, model, recorded, auto)",
                   name);
}

/* What follows `prefix` in the text; NULL: it does not begin so, or ends there. */
static const char *after(const char *text, const char *prefix)
{
    size_t n = strlen(prefix);
    return strncmp(text, prefix, n) == 0 && text[n] ? text + n : NULL;
}

int draft_settings_source(struct draft_settings *s, const char *text, struct errmsg *em)
{
    static const char model_end[] = ".gguf";
    static const enum draft_kind plain[] = {DRAFT_OFF, DRAFT_NGRAM, DRAFT_AUTO};
    const char *path;
    size_t n = strlen(text);
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++)
        if (strcmp(text, names[plain[i]]) == 0) {
            s->kind = plain[i];
            s->path = NULL;
            return 0;
        }
    if ((path = after(text, "recorded:"))) {
        s->kind = DRAFT_RECORDED;
        s->path = path;
    } else if ((path = after(text, "auto:"))) {
        s->kind = DRAFT_AUTO;
        s->path = path;
    } else if (n >= sizeof model_end && strcmp(text + n - strlen(model_end), model_end) == 0) {
        s->kind = DRAFT_MODEL;
        s->path = text;
    } else {
        return err_set(em, ERR_CONF,
                       "'%.128s' is no draft (off, ngram, auto, auto:FILE.gguf, recorded:FILE, or "
                       "a model FILE.gguf)",
                       text);
    }
    return 0;
}

static int check_length(const char *what, uint64_t n, uint32_t least, struct errmsg *em)
{
    if (n >= least && n <= DRAFT_LENGTH_MAX) return 0;
    return err_set(em, ERR_RANGE, "%s %" PRIu64 " is not within %" PRIu32 " to %u", what, n, least,
                   DRAFT_LENGTH_MAX);
}

int draft_settings_length(struct draft_settings *s, const char *text, struct errmsg *em)
{
    uint64_t n = 0;
    if (strcmp(text, "auto") == 0) {
        s->adaptive = true;
        return 0;
    }
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 9 || text[digits])
        return err_set(em, ERR_RANGE, "draft length '%.32s' is neither auto nor within 1 to %u",
                       text, DRAFT_LENGTH_MAX);
    for (size_t i = 0; i < digits; i++) n = 10 * n + (uint64_t)(text[i] - '0');
    int rc = check_length("draft length", n, 1, em);
    if (rc < 0) return rc;
    s->length = s->length_max = (uint32_t)n;
    s->adaptive = false;
    return 0;
}

int draft_settings_check(const struct draft_settings *s, struct errmsg *em)
{
    bool needs_path = s->kind == DRAFT_MODEL || s->kind == DRAFT_RECORDED;
    int rc = check_length("draft length", s->length, 1, em);
    if (rc == 0) rc = check_length("longest draft", s->length_max, s->length, em);
    if (rc < 0) return rc;
    if (!(s->low >= 0.0f && s->low <= s->high && s->high <= 1.0f))
        return err_set(em, ERR_RANGE,
                       "acceptances %g and %g, between which the draft length stays, are not "
                       "ascending within 0 to 1",
                       (double)s->low, (double)s->high);
    if (s->threads > DRAFT_THREADS_MAX)
        return err_set(em, ERR_RANGE, "draft threads %" PRIu32 " are more than %u", s->threads,
                       DRAFT_THREADS_MAX);
    if (s->memory_bytes && s->memory_bytes < DRAFT_MEMORY_LEAST)
        return err_set(em, ERR_RANGE, "draft memory of %" PRIu64 " bytes is less than %" PRIu64,
                       s->memory_bytes, DRAFT_MEMORY_LEAST);
    if (needs_path && (!s->path || !s->path[0]))
        return err_set(em, ERR_CONF, "a draft of kind %s needs a file", names[s->kind]);
    return 0;
}
