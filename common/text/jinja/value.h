/* Values of a template that is being rendered, with Python's rules for truth, equality, order and
 * iteration. All memory is the interpreter's arena; values are copied freely and never freed.
 *
 * Where text came from: `foreign` says that a string or number came from the conversation. A string
 * of both kinds of text has one mark for each byte. */
#ifndef FLOTILLA_TEXT_JINJA_VALUE_H
#define FLOTILLA_TEXT_JINJA_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct interp;
struct node;
struct scope;

enum value_type {
    V_UNDEFINED, /* text: what was asked for; of: the type that lacks it, or V_MISSING */
    V_NONE,
    V_BOOL,
    V_INT,
    V_FLOAT,
    V_STRING,
    V_LIST,
    V_TUPLE,
    V_RANGE, /* as a list */
    V_VIEW,  /* keys, values or items of a dictionary, as a list */
    V_DICT,
    V_ITER, /* what Python makes a generator of: walked once, always true, without a length */
    V_NAMESPACE,
    V_MACRO,
    V_FUNCTION, /* one of globals.c; integer: which */
    V_METHOD,
    V_LOOP,
    V_JOINER,
    V_CYCLER,
    V_UNSAFE, /* what the sandbox forbids: an error once it is used; text: its name */
    V_MISSING /* an argument that was not given; never seen by templates */
};

struct value {
    uint8_t type;
    bool foreign; /* of numbers and strings; with marks it says nothing */
    bool markup;  /* of a string: escaped text, as the filter `safe` makes it */
    bool room;    /* of a string: its bytes are the beginning of a struct room (str.c) */
    uint8_t of;   /* V_UNDEFINED */
    uint32_t len; /* bytes of a string */
    union {
        const char *text;
        bool truth;
        int64_t integer;
        double real;
        struct list *list;
        struct dict *dict;
        struct iter *iter;
        struct macro *macro;
        struct method *method;
        struct loop *loop;
        struct cycler *cycler;
    };
    const uint8_t
        *marks; /* of a string: 1 for each foreign byte, or NULL: all are as `foreign` says */
};

struct list {
    struct value *items;
    size_t n, cap;
};

struct iter {
    struct list list;
    size_t at; /* the next item */
};

struct dict_entry {
    struct value key, value;
    uint64_t hash;
};

/* In the order of insertion. */
struct dict {
    struct dict_entry *entries;
    uint32_t n, cap;
    uint32_t *slots; /* entry + 1, 0: empty; NULL while there are few entries */
    uint32_t n_slots;
};

struct macro {
    const struct node *node; /* NODE_MACRO, or NODE_CALL_BLOCK for a caller */
    struct scope *scope;     /* in which it was defined */
};

struct method {
    struct value self;
    const struct method_def *def;
    struct value name;
};

struct loop {
    struct list *items;
    size_t at;
    uint32_t depth;
    const struct node *node; /* the loop, when it is recursive */
    struct scope *scope;     /* in which the loop stands */
    struct value *changed;   /* NULL: changed() was not called */
    size_t n_changed;
};

struct cycler { /* of a joiner, too */
    struct list *items;
    size_t at;
};

static inline struct value value_of(enum value_type type)
{
    return (struct value){.type = (uint8_t)type};
}

static inline struct value value_none(void)
{
    return value_of(V_NONE);
}

static inline struct value value_bool(bool b)
{
    return (struct value){.type = V_BOOL, .truth = b};
}

static inline struct value value_int(int64_t i)
{
    return (struct value){.type = V_INT, .integer = i};
}

static inline struct value value_float(double d)
{
    return (struct value){.type = V_FLOAT, .real = d};
}

/* Text of the interpreter or the template, which is borrowed. */
static inline struct value value_text(const char *text, size_t len)
{
    return (struct value){.type = V_STRING, .text = text, .len = (uint32_t)len};
}

static inline struct value value_foreign(struct value v, bool foreign)
{
    v.foreign = v.foreign || foreign;
    return v;
}

static inline bool value_is_list(struct value v)
{
    return v.type >= V_LIST && v.type <= V_VIEW;
}

/* None, numbers and booleans and the like are their own; others have a name in Python. */
const char *value_type_name(struct value v);

bool value_is(struct value v, const char *text); /* a string with this text */
bool value_true(struct interp *in, struct value v);
bool value_equal(struct interp *in, struct value a, struct value b);
/* -1, 0 or 1; an error of the interpreter where the two have no order. `op` is for its text. */
int value_order(struct interp *in, struct value a, struct value b, const char *op);
bool value_same(struct value a, struct value b); /* Python's `is` */
bool value_contains(struct interp *in, struct value in_what, struct value v);

/* False: it is no number (a boolean is one). */
bool value_number(struct value v, double *ret);
bool value_integer(struct value v, int64_t *ret);

/* ---- lists ---- */

struct list *list_new(struct interp *in, size_t cap);
/* Does nothing once the interpreter has failed. */
void list_add(struct interp *in, struct list *l, struct value v);
struct value list_value(enum value_type type, struct list *l);
/* What a loop over v walks; NULL and an error of the interpreter: v cannot be walked. A generator
 * is used up. */
struct list *list_walk(struct interp *in, struct value v);
/* False: it has none. Characters of a string, items of a list, members of a dictionary. */
bool value_length(struct interp *in, struct value v, size_t *ret);
/* Sorts in place, stably; keys has the items that are compared, in the same order. */
void list_sort(struct interp *in, struct list *items, struct list *keys, bool reverse);

/* ---- dictionaries ---- */

struct dict *dict_new(struct interp *in);
struct value dict_value(struct dict *d);
/* NULL: no such key. An error of the interpreter where the key cannot be one. */
struct value *dict_get(struct interp *in, const struct dict *d, struct value key);
struct value *dict_get_text(struct interp *in, const struct dict *d, const char *key);
void dict_put(struct interp *in, struct dict *d, struct value key, struct value v);
/* (key, value) tuples, keys, or values. */
enum dict_part { DICT_KEYS, DICT_VALUES, DICT_ITEMS };
struct list *dict_list(struct interp *in, const struct dict *d, enum dict_part part);

#endif
