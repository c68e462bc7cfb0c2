/* The interpreter's state and what its files share: eval.c (expressions), exec.c (statements),
 * call.c (calls and their arguments), attr.c (members, items, slices), ops.c (operators),
 * filters*.c, is.c (tests), methods.c, globals.c, format.c, repr.c.
 *
 * An error is kept in the state: interp_fail() notes the first, and from then on every function
 * returns at once, with a value that has no meaning. Who loops asks interp_step(). So a failed
 * rendering ends soon, and no function in between has to hand errors on. */
#ifndef FLOTILLA_TEXT_JINJA_INTERP_H
#define FLOTILLA_TEXT_JINJA_INTERP_H

#include "common/base/arena.h"
#include "common/base/err.h"
#include "common/text/jinja/ast.h"
#include "common/text/jinja/str.h"
#include "common/text/jinja/value.h"

/* Variables that a statement's body sees beside those of the scopes around it. */
struct scope {
    struct scope *outer;
    struct variable *variables;
    uint32_t n, cap;
};

struct variable {
    uint32_t name;
    struct value value;
};

enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };

#define INTERP_NESTING_MAX 1000u

struct interp {
    const struct program *program;
    struct arena arena;
    struct errmsg *em;
    int rc;
    uint64_t steps, steps_max;
    uint32_t depth, depth_max;
    uint32_t nesting; /* of eval() and of statements, which bounds the stack */
    size_t output_max;
    size_t memory_max;
    uint32_t line; /* of the node at hand */
    struct scope *scope;
    struct str_builder *out; /* where text goes that is printed */
    enum flow flow;
    uint64_t macros; /* that were made so far */
    uint32_t loop_depth;
    struct value block;  /* the text that the filters of a block get */
    struct list no_list; /* what there is in place of memory after an error: empty, and stays so */
    struct dict no_dict;
    int64_t now_s;
};

/* Notes the first error, with the line at hand; the text is followed through like printf's. */
void interp_fail(struct interp *in, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Takes an error of the conversation's back, to be raised later or never. NULL: there is none, or
 * it is of another kind (a limit, the template's refusal), and stays. */
const struct errmsg *interp_set_aside(struct interp *in, int *ret_rc);
void interp_raise(struct interp *in, int rc, const struct errmsg *em);
/* The template's own refusal. */
void interp_refuse(struct interp *in, struct value words);
/* Counts n steps. False: an error, of now or before. */
bool interp_step(struct interp *in, uint64_t n);
/* Steps for n bytes of text that are looked through or made. */
bool interp_bytes(struct interp *in, size_t n);
/* The same for text of which it is asked what kind of character each one is. */
bool interp_kinds(struct interp *in, size_t n);
/* One level deeper; false: an error. interp_leave() in both cases. */
bool interp_enter(struct interp *in);
void interp_leave(struct interp *in);
/* NULL and an error where the memory's limit is reached. */
void *interp_alloc(struct interp *in, size_t bytes);
/* "'name' is undefined" and the like, an error. */
void interp_undefined(struct interp *in, struct value v);

/* ---- scopes ---- */

void scope_set(struct interp *in, struct scope *s, uint32_t name, struct value v);
/* NULL: there is none of this name. */
const struct value *scope_get(struct interp *in, const struct scope *s, uint32_t name);

/* ---- eval.c ---- */

struct value eval(struct interp *in, const struct node *n);

/* ---- exec.c ---- */

void exec_body(struct interp *in, const struct node *first);
/* The text that a body prints. */
struct value exec_capture(struct interp *in, const struct node *first);
/* Prints the body of a loop over the items, in a scope within `scope`. */
void exec_loop(struct interp *in, const struct node *n, struct list *items, struct scope *scope);

/* ---- call.c ---- */

struct call_kw {
    struct value name; /* a string */
    struct value value;
};

struct call_args {
    struct value *pos;
    size_t n_pos;
    struct call_kw *kw;
    size_t n_kw;
};

/* The arguments of NODE_CALL, NODE_FILTER or NODE_TEST, evaluated. */
struct call_args call_args(struct interp *in, const struct node *n);
#define CALL_PARAMS_MAX 6
/* Puts arguments where their parameters are: `params` names them in order, "old new count?", with ?
 * for one that may be missing, which becomes V_MISSING. False and an error: too many, too few, or
 * of another name. `what` is for its text. */
bool call_bind(struct interp *in, const char *what, const char *params, const struct call_args *a,
               struct value to[CALL_PARAMS_MAX]);
struct value call_value(struct interp *in, struct value callee, struct call_args *a);

/* ---- attr.c ---- */

struct value attr_get(struct interp *in, struct value of, struct value name);  /* of.name */
struct value attr_item(struct interp *in, struct value of, struct value item); /* of[item] */
struct value attr_slice(struct interp *in, struct value of, struct value start, struct value stop,
                        struct value step);
/* "a.b.0" walked from v, as filters take it: a string, an integer, or V_NONE for v itself. What is
 * undefined on the way becomes `missing`, unless that is V_NONE or V_MISSING. */
struct value attr_path(struct interp *in, struct value v, struct value path, struct value missing);

/* ---- ops.c ---- */

struct value ops_binary(struct interp *in, enum op op, struct value a, struct value b);
struct value ops_unary(struct interp *in, enum op op, struct value a);
bool ops_compare(struct interp *in, enum op op, struct value a, struct value b);

/* ---- filters ---- */

struct filter_def {
    const char *name;
    const char *params; /* as call_bind takes them; NULL: `run` looks at the arguments itself */
    struct value (*run)(struct interp *in, struct value v, const struct value *p,
                        const struct call_args *a);
};

/* NULL: there is no such filter. The tables end with a NULL name. */
const struct filter_def *filter_find(const char *name, size_t len);
struct value filter_run(struct interp *in, const struct filter_def *f, struct value v,
                        const struct call_args *a);
/* Those of filters_lazy make a V_ITER, in which their errors wait. */
extern const struct filter_def filters_text[], filters_items[], filters_lazy[];

/* ---- is.c ---- */

const struct is_def *is_find(const char *name, size_t len);
bool is_run(struct interp *in, const struct is_def *d, struct value v, const struct call_args *a);

/* ---- methods.c ---- */

struct method_def {
    const char *name;
    const char *params; /* as of filters */
    struct value (*run)(struct interp *in, struct value self, const struct value *p,
                        const struct call_args *a);
};

/* What `of.name` is where Python's class of `of` has such a member: a bound method, or V_UNSAFE.
 * False: it has none. */
bool method_find(struct interp *in, struct value of, struct value name, struct value *ret);
extern const struct method_def methods_str[]; /* methods_str.c */

/* ---- cases.c: what changes or looks through a whole string ---- */

struct value cases_upper(struct interp *in, struct value s);
struct value cases_lower(struct interp *in, struct value s);
struct value cases_capitalize(struct interp *in, struct value s);
struct value cases_title(struct interp *in, struct value s);
struct value cases_swap(struct interp *in, struct value s);
bool cases_is_lower(struct interp *in, struct value s);
bool cases_is_upper(struct interp *in, struct value s);
/* most below 0: all. */
struct value cases_replace(struct interp *in, struct value s, struct value old, struct value new,
                           int64_t most);
struct list *cases_lines(struct interp *in, struct value s, bool keep_ends);
/* n characters long, `fill` being added on the sides. */
struct value cases_pad(struct interp *in, struct value s, int64_t n, struct value fill, bool left,
                       bool right);
/* Text on its way to a number, as int() and float() take it. False: it is none. Digits that are not
 * ASCII's are an error, where Python knows their values. */
bool cases_to_int(struct interp *in, struct value s, int base, int64_t *ret);
bool cases_to_float(struct interp *in, struct value s, double *ret);

/* ---- globals.c ---- */

/* Puts range, dict, namespace and the like into the scope. */
void globals_set(struct interp *in, struct scope *s);
struct value globals_call(struct interp *in, int64_t which, const struct call_args *a);

/* ---- repr.c ---- */

struct value repr_str(struct interp *in, struct value v);  /* Python's str(v) */
struct value repr_repr(struct interp *in, struct value v); /* Python's repr(v) */
/* The shortest digits that read back as the same number. */
size_t repr_double(double d, char to[40]);
struct json_style {
    bool ascii;                             /* other characters become \u escapes */
    bool sort;                              /* by key */
    bool lines;                             /* each item on a line of its own, indented */
    struct value indent, item_sep, key_sep; /* strings */
};
struct value repr_json(struct interp *in, struct value v, const struct json_style *style);

/* ---- format.c ---- */

/* text % what */
struct value format_percent(struct interp *in, struct value text, struct value what);
/* text.format(...) */
struct value format_braces(struct interp *in, struct value text, const struct call_args *a);

#endif
