#include "coordinator/cli/up_file.h"

#include "coordinator/config.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* "ports.clients=7070" in its parts. A key without a section has an empty one. */
struct entry {
    const char *section, *name, *value;
    int section_len, name_len;
};

static struct entry split(const char *item)
{
    const char *equals = strchr(item, '='), *dot = memchr(item, '.', (size_t)(equals - item));
    struct entry e = {.section = item, .name = dot ? dot + 1 : item, .value = equals + 1};
    e.section_len = dot ? (int)(dot - item) : 0;
    e.name_len = (int)(equals - e.name);
    return e;
}

static void print(struct buf *out, const char *text, int n)
{
    (void)buf_append(out, text, (size_t)n);
}

static void put_pair(struct buf *out, const struct entry *e)
{
    if (e->section_len) print(out, "  ", 2);
    print(out, e->name, e->name_len);
    print(out, ": ", 2);
    print(out, e->value, (int)strlen(e->value));
    print(out, "\n", 1);
}

static void put_section(struct buf *out, const struct entry *e)
{
    if (!e->section_len) return;
    print(out, e->section, e->section_len);
    print(out, ":\n", 2);
}

void up_file_string(struct up_file *f, const char *key, const char *value)
{
    (void)snprintf(f->own[f->n_own++], sizeof f->own[0], "%s=%s", key, value);
}

void up_file_quoted(struct up_file *f, const char *key, const char *value)
{
    char text[UP_VALUE_BYTES];
    size_t n = 0;
    for (; *value && n + 3 < sizeof text; value++) {
        text[n++] = *value;
        if (*value == '\'') text[n++] = '\'';
    }
    text[n] = 0;
    (void)snprintf(f->own[f->n_own++], sizeof f->own[0], "%s='%.2100s'", key, text);
}

void up_file_number(struct up_file *f, const char *key, uint32_t value)
{
    (void)snprintf(f->own[f->n_own++], sizeof f->own[0], "%s=%" PRIu32, key, value);
}

static int check_one(const char *item, struct errmsg *em)
{
    /* up itself goes by them. */
    static const char *const options[] = {"model", "workers", "replicas"};
    const char *equals = strchr(item, '=');
    size_t n = strspn(item, "abcdefghijklmnopqrstuvwxyz0123456789_.");
    if (!equals || equals == item || n != (size_t)(equals - item) || strpbrk(equals, "\r\n"))
        return err_set(em, ERR_CONF, "--set: '%s' is not KEY=VALUE on one line", item);
    struct entry e = split(item);
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++)
        if (!e.section_len && (size_t)e.name_len == strlen(options[i]) &&
            memcmp(e.name, options[i], (size_t)e.name_len) == 0)
            return err_set(em, ERR_CONF, "--set: '%s' is given with --%s", options[i], options[i]);
    const char *value = e.value + strspn(e.value, " \t");
    if (*value == '{' || (*value && strchr("!&*", *value) && strchr(value, '{')))
        return err_set(
            em, ERR_CONF,
            "--set: '%s': the keys of a section are set one by one, as SECTION.KEY=VALUE", item);
    if (e.section_len == 4 && memcmp(e.section, "keys", 4) == 0)
        return err_set(em, ERR_CONF,
                       "--set: a cluster with keys is not for up, whose programs stay on this "
                       "machine: start them one by one");
    char name[128];
    (void)snprintf(name, sizeof name, "--set %.100s", item);
    struct buf text = {0};
    put_section(&text, &e);
    put_pair(&text, &e);
    int rc = config_check_key(name, text.data, em);
    buf_close(&text);
    return rc;
}

int up_file_check(const struct opt_list *set, struct errmsg *em)
{
    int rc = 0;
    for (size_t i = 0; i < set->n && rc == 0; i++) rc = check_one(set->items[i], em);
    return rc;
}

static bool same_section(const struct entry *a, const struct entry *b)
{
    return a->section_len == b->section_len &&
           memcmp(a->section, b->section, (size_t)a->section_len) == 0;
}

static bool same_key(const struct entry *a, const struct entry *b)
{
    return same_section(a, b) && a->name_len == b->name_len &&
           memcmp(a->name, b->name, (size_t)a->name_len) == 0;
}

void up_file_write(const struct up_file *f, const struct opt_list *set, struct buf *out)
{
    struct entry all[UP_KEYS_MAX + OPT_LIST_MAX];
    size_t n = 0, kept = 0;
    for (size_t i = 0; i < f->n_own; i++) all[n++] = split(f->own[i]);
    for (size_t i = 0; i < set->n; i++) all[n++] = split(set->items[i]);
    for (size_t i = 0; i < n; i++) {
        bool later = false;
        for (size_t k = i + 1; k < n; k++) later = later || same_key(&all[i], &all[k]);
        if (!later) all[kept++] = all[i];
    }
    /* A section's keys stand together, where its first one would. */
    for (size_t i = 0; i < kept; i++) {
        bool before = false;
        for (size_t k = 0; k < i; k++)
            before = before || (all[i].section_len && same_section(&all[i], &all[k]));
        if (before) continue;
        put_section(out, &all[i]);
        put_pair(out, &all[i]);
        for (size_t k = i + 1; k < kept && all[i].section_len; k++)
            if (same_section(&all[i], &all[k])) put_pair(out, &all[k]);
    }
}
