#include "common/io/conf.h"

#include "common/base/buf.h"
#include "common/base/mem.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <yaml.h>

#define FILE_BYTES_MAX ((size_t)1 << 20)
#define KEYS_MAX 64

struct reader {
    const char *name;
    const struct conf_key *table;
    yaml_parser_t parser;
    yaml_event_t event;
    bool has_event;
    bool seen[KEYS_MAX];
    struct errmsg *em;
};

static int fail(struct reader *r, const char *key, const char *reason)
{
    const yaml_mark_t *m = &r->event.start_mark;
    return err_set(r->em, ERR_CONF, "%s:%zu:%zu: %s%s%s%s", r->name, m->line + 1, m->column + 1,
                   key ? "key '" : "", key ? key : "", key ? "': " : "", reason);
}

static int next(struct reader *r)
{
    if (r->has_event) yaml_event_delete(&r->event);
    r->has_event = yaml_parser_parse(&r->parser, &r->event);
    if (r->has_event) return 0;
    const yaml_parser_t *p = &r->parser;
    return err_set(r->em, ERR_CONF, "%s:%zu:%zu: %s", r->name, p->problem_mark.line + 1,
                   p->problem_mark.column + 1, p->problem ? p->problem : "not YAML");
}

static bool plain(const struct reader *r)
{
    return r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
}

static bool is_null(const char *s)
{
    return !*s || strcmp(s, "~") == 0 || strcmp(s, "null") == 0;
}

static bool is_u32(const char *s, uint32_t min, uint32_t max, uint32_t *ret)
{
    uint64_t v = 0;
    size_t n = strlen(s);
    bool right = n > 0 && n <= 10 && (s[0] != '0' || n == 1);
    for (size_t i = 0; i < n && right; i++) {
        right = s[i] >= '0' && s[i] <= '9';
        v = v * 10 + (uint64_t)(s[i] - '0');
    }
    if (!right || v < min || v > max) return false;
    *ret = (uint32_t)v;
    return true;
}

bool conf_node_u32(const struct conf_node *node, uint32_t min, uint32_t max, uint32_t *ret)
{
    return node->shape == CONF_SCALAR && node->plain && is_u32(node->text, min, max, ret);
}

static int set_u32(struct reader *r, const struct conf_key *k, const char *s)
{
    char reason[96];
    if (!plain(r) || !is_u32(s, k->min, k->max, k->value)) {
        (void)snprintf(reason, sizeof reason, "'%.20s' is not a whole number in %u..%u", s, k->min,
                       k->max);
        return fail(r, k->name, reason);
    }
    return 0;
}

static void free_list(struct conf_list *list)
{
    for (size_t i = 0; i < list->n; i++) mem_free(list->items[i].text);
    mem_free(list->items);
    *list = (struct conf_list){.items = NULL};
}

/* The event must be a scalar that this reader takes. */
static int check_scalar(struct reader *r, const struct conf_key *k)
{
    if (r->event.type != YAML_SCALAR_EVENT) return fail(r, k->name, "needs a single value");
    if (r->event.data.scalar.anchor || r->event.data.scalar.tag)
        return fail(r, k->name, "anchors and tags are not read");
    const char *s = (const char *)r->event.data.scalar.value;
    return strlen(s) == r->event.data.scalar.length ? 0 : fail(r, k->name, "holds a NUL");
}

/* From the list's start to its end. */
static int set_list(struct reader *r, const struct conf_key *k)
{
    char reason[96];
    struct conf_list *list = k->value;
    if (r->event.type != YAML_SEQUENCE_START_EVENT || r->event.data.sequence_start.anchor ||
        r->event.data.sequence_start.tag)
        return fail(r, k->name, "needs a list, without anchor or tag");
    free_list(list);
    int rc;
    while ((rc = next(r)) == 0 && r->event.type != YAML_SEQUENCE_END_EVENT) {
        if ((rc = check_scalar(r, k)) < 0) return rc;
        const char *s = (const char *)r->event.data.scalar.value;
        if (plain(r) && is_null(s)) return fail(r, k->name, "has an empty item");
        if (list->n == k->max) {
            (void)snprintf(reason, sizeof reason, "has more than %u items", k->max);
            return fail(r, k->name, reason);
        }
        list->items = mem_realloc(list->items, (list->n + 1) * sizeof *list->items);
        list->items[list->n++] = (struct conf_item){.text = mem_strdup(s),
                                                    .line = r->event.start_mark.line + 1,
                                                    .column = r->event.start_mark.column + 1};
    }
    return rc;
}

/* ---- nodes ---- */

static void free_node(struct conf_node *node)
{
    for (size_t i = 0; i < node->n; i++) free_node(&node->items[i]);
    mem_free(node->items);
    mem_free(node->key);
    mem_free(node->text);
    *node = (struct conf_node){.shape = CONF_ABSENT};
}

static bool has_key(const struct conf_node *mapping, const char *key)
{
    for (size_t i = 0; i < mapping->n; i++)
        if (strcmp(mapping->items[i].key, key) == 0) return true;
    return false;
}

/* The name of a value of a mapping, and the value's first event. */
static int take_key(struct reader *r, const struct conf_key *k, const struct conf_node *mapping,
                    char **ret_key)
{
    int rc = check_scalar(r, k);
    if (rc < 0) return rc;
    const char *s = (const char *)r->event.data.scalar.value;
    if (has_key(mapping, s)) return fail(r, k->name, "has a key twice");
    *ret_key = mem_strdup(s);
    return next(r);
}

static int set_node(struct reader *r, const struct conf_key *k, struct conf_node *node,
                    uint32_t depth, uint32_t *left);

/* From the start of a list or mapping to its end. */
static int set_items(struct reader *r, const struct conf_key *k, struct conf_node *node,
                     uint32_t depth, uint32_t *left)
{
    bool mapping = node->shape == CONF_MAPPING;
    yaml_event_type_t end = mapping ? YAML_MAPPING_END_EVENT : YAML_SEQUENCE_END_EVENT;
    int rc;
    if (depth == CONF_DEPTH) return fail(r, k->name, "has too many lists inside each other");
    while ((rc = next(r)) == 0 && r->event.type != end) {
        struct conf_node item = {.shape = CONF_ABSENT};
        if (mapping) rc = take_key(r, k, node, &item.key);
        if (rc == 0) rc = set_node(r, k, &item, depth + 1, left);
        node->items = mem_realloc(node->items, (node->n + 1) * sizeof *node->items);
        node->items[node->n++] = item; /* half of one is freed with the rest */
        if (rc < 0) return rc;
    }
    return rc;
}

static int set_node(struct reader *r, const struct conf_key *k, struct conf_node *node,
                    uint32_t depth, uint32_t *left)
{
    const yaml_event_t *e = &r->event;
    node->line = e->start_mark.line + 1;
    node->column = e->start_mark.column + 1;
    if (*left == 0) return fail(r, k->name, "has too many values");
    (*left)--;
    if (e->type == YAML_SEQUENCE_START_EVENT || e->type == YAML_MAPPING_START_EVENT) {
        bool list = e->type == YAML_SEQUENCE_START_EVENT;
        if (list ? e->data.sequence_start.anchor || e->data.sequence_start.tag
                 : e->data.mapping_start.anchor || e->data.mapping_start.tag)
            return fail(r, k->name, "anchors and tags are not read");
        node->shape = list ? CONF_SEQUENCE : CONF_MAPPING;
        return set_items(r, k, node, depth, left);
    }
    int rc = check_scalar(r, k);
    if (rc < 0) return rc;
    const char *s = (const char *)e->data.scalar.value;
    if (plain(r) && is_null(s)) return fail(r, k->name, "has an empty value");
    node->shape = CONF_SCALAR;
    node->plain = plain(r);
    node->text = mem_strdup(s);
    return 0;
}

static int set_whole_node(struct reader *r, const struct conf_key *k)
{
    uint32_t left = k->max;
    free_node(k->value);
    return set_node(r, k, k->value, 0, &left);
}

static int set_value(struct reader *r, const struct conf_key *k)
{
    if (k->kind == CONF_LIST) return set_list(r, k);
    if (k->kind == CONF_NODE) return set_whole_node(r, k);
    int rc = check_scalar(r, k);
    if (rc < 0) return rc;
    const char *s = (const char *)r->event.data.scalar.value;
    if (k->kind == CONF_U32) return set_u32(r, k, s);
    if (k->kind == CONF_BOOL) {
        bool yes = strcmp(s, "true") == 0;
        if (!plain(r) || (!yes && strcmp(s, "false") != 0))
            return fail(r, k->name, "needs true or false");
        *(bool *)k->value = yes;
        return 0;
    }
    if (plain(r) && is_null(s)) return fail(r, k->name, "has no value");
    mem_free(*(char **)k->value);
    *(char **)k->value = mem_strdup(s);
    return 0;
}

/* Whether `name` is the first part of a key with parts. */
static bool is_section(const struct conf_key *table, const char *name)
{
    size_t n = strlen(name);
    for (; table->name; table++)
        if (strncmp(table->name, name, n) == 0 && table->name[n] == '.') return true;
    return false;
}

static int read_mapping(struct reader *r, const char *section);

static int read_pair(struct reader *r, const char *section)
{
    char key[128];
    if (r->event.type != YAML_SCALAR_EVENT) return fail(r, NULL, "a key must be a word");
    int n = snprintf(key, sizeof key, "%s%s%s", section, section[0] ? "." : "",
                     (const char *)r->event.data.scalar.value);
    if (n < 0 || (size_t)n >= sizeof key) return fail(r, NULL, "a key is too long");
    size_t i = 0;
    while (r->table[i].name && strcmp(r->table[i].name, key) != 0) i++;
    if (strlen((const char *)r->event.data.scalar.value) != r->event.data.scalar.length ||
        r->event.data.scalar.anchor || r->event.data.scalar.tag)
        return fail(r, NULL, "a key with an anchor, a tag or a NUL");
    bool section_key = !section[0] && is_section(r->table, key);
    if (!r->table[i].name && !section_key) return fail(r, key, "unknown");
    if (r->table[i].name && r->seen[i]) return fail(r, key, "appears twice");
    if (r->table[i].name) r->seen[i] = true;
    int rc = next(r);
    if (rc < 0) return rc;
    if (!section_key) return set_value(r, &r->table[i]);
    if (r->event.type != YAML_MAPPING_START_EVENT || r->event.data.mapping_start.anchor ||
        r->event.data.mapping_start.tag)
        return fail(r, key, "needs a mapping of keys, without anchor or tag");
    return read_mapping(r, key);
}

/* From just after the mapping's start to its end. */
static int read_mapping(struct reader *r, const char *section)
{
    int rc;
    while ((rc = next(r)) == 0 && r->event.type != YAML_MAPPING_END_EVENT)
        if ((rc = read_pair(r, section)) < 0) break;
    return rc;
}

static int read_stream(struct reader *r)
{
    int rc = next(r); /* stream start */
    if (rc == 0) rc = next(r);
    if (rc < 0) return rc;
    if (r->event.type == YAML_STREAM_END_EVENT) return fail(r, NULL, "the file is empty");
    rc = next(r);
    if (rc < 0) return rc;
    if (r->event.type != YAML_MAPPING_START_EVENT) return fail(r, NULL, "needs a mapping of keys");
    rc = read_mapping(r, "");
    if (rc == 0) rc = next(r); /* document end */
    if (rc == 0) rc = next(r);
    if (rc == 0 && r->event.type != YAML_STREAM_END_EVENT) rc = fail(r, NULL, "a second document");
    for (size_t i = 0; rc == 0 && r->table[i].name; i++)
        if (r->table[i].needed && !r->seen[i])
            rc = err_set(r->em, ERR_CONF, "%s: key '%s' is missing", r->name, r->table[i].name);
    return rc;
}

int conf_parse(const char *name, const char *text, size_t len, const struct conf_key *table,
               struct errmsg *em)
{
    struct reader r = {.name = name, .table = table, .em = em};
    if (!yaml_parser_initialize(&r.parser)) return err_set(em, ERR_NOMEM, "%s", name);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, len);
    int rc = read_stream(&r);
    if (r.has_event) yaml_event_delete(&r.event);
    yaml_parser_delete(&r.parser);
    return rc;
}

int conf_read(const char *path, const struct conf_key *table, struct errmsg *em)
{
    bool from_stdin = strcmp(path, "-") == 0;
    FILE *f = from_stdin ? stdin : fopen(path, "re");
    if (!f) return err_set(em, err_from_errno(errno), "%s: %s", path, strerror(errno));
    struct buf text = {.max = FILE_BYTES_MAX};
    char block[4096];
    size_t n;
    int rc = 0;
    while (rc == 0 && (n = fread(block, 1, sizeof block, f)) > 0)
        if (buf_append(&text, block, n) < 0)
            rc = err_set(em, ERR_CONF, "%s: longer than %zu bytes", path, FILE_BYTES_MAX);
    if (rc == 0 && ferror(f)) rc = err_set(em, ERR_IO, "%s: read error", path);
    if (!from_stdin) (void)fclose(f);
    if (rc == 0)
        rc = conf_parse(from_stdin ? "stdin" : path, text.data ? text.data : "", text.len, table,
                        em);
    buf_close(&text);
    return rc;
}

void conf_free(const struct conf_key *table)
{
    for (; table->name; table++) {
        if (table->kind == CONF_LIST) free_list(table->value);
        if (table->kind == CONF_NODE) free_node(table->value);
        if (table->kind != CONF_STRING) continue;
        mem_free(*(char **)table->value);
        *(char **)table->value = NULL;
    }
}
