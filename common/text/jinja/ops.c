/* Operators, with Python's rules. */
#include "common/text/jinja/interp.h"

#include <math.h>
#include <string.h>

static const char *const op_texts[] = {
    "+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "in", "not in"};

static struct value no_value(struct interp *in, enum op op, struct value a, struct value b)
{
    if (a.type == V_UNDEFINED || a.type == V_UNSAFE)
        interp_undefined(in, a);
    else if (b.type == V_UNDEFINED || b.type == V_UNSAFE)
        interp_undefined(in, b);
    interp_fail(in, ERR_RANGE, "'%s' does not go between a '%s' and a '%s'", op_texts[op],
                value_type_name(a), value_type_name(b));
    return value_none();
}

static struct value too_large(struct interp *in)
{
    interp_fail(in, ERR_LIMIT, "an integer is beyond 64 bits");
    return value_none();
}

static struct value by_zero(struct interp *in)
{
    interp_fail(in, ERR_RANGE, "division by zero");
    return value_none();
}

static struct value int_pow(struct interp *in, int64_t a, int64_t b)
{
    int64_t r = 1;
    if (b < 0) return a == 0 ? by_zero(in) : value_float(pow((double)a, (double)b));
    if (a == 1 || a == 0) return value_int(b == 0 ? 1 : a);
    if (a == -1) return value_int(b % 2 ? -1 : 1);
    for (int64_t i = 0; i < b; i++) /* at most 63 times */
        if (__builtin_mul_overflow(r, a, &r)) return too_large(in);
    return value_int(r);
}

static struct value of_ints(struct interp *in, enum op op, int64_t a, int64_t b)
{
    int64_t r = 0;
    bool over = false;
    switch (op) {
    case OP_ADD: over = __builtin_add_overflow(a, b, &r); break;
    case OP_SUB: over = __builtin_sub_overflow(a, b, &r); break;
    case OP_MUL: over = __builtin_mul_overflow(a, b, &r); break;
    case OP_DIV: return b == 0 ? by_zero(in) : value_float((double)a / (double)b);
    case OP_POW: return int_pow(in, a, b);
    default:
        if (b == 0) return by_zero(in);
        if (b == -1) { /* INT64_MIN / -1 does not fit */
            over = __builtin_sub_overflow(0, a, &r);
            r = op == OP_MOD ? 0 : r;
            over = over && op != OP_MOD;
        } else {
            r = op == OP_MOD ? a % b : a / b;
            if (a % b != 0 && (a % b < 0) != (b < 0)) r += op == OP_MOD ? b : -1;
        }
    }
    return over ? too_large(in) : value_int(r);
}

static struct value float_pow(struct interp *in, double a, double b)
{
    double r = pow(a, b);
    if (a == 0.0 && b < 0.0) return by_zero(in);
    if (isinf(r) && isfinite(a) && isfinite(b)) interp_fail(in, ERR_RANGE, "a power is too large");
    if (a < 0.0 && isfinite(a) && isfinite(b) && b != floor(b))
        interp_fail(in, ERR_UNSUPPORTED, "complex numbers are not supported");
    return value_float(r);
}

static struct value of_floats(struct interp *in, enum op op, double a, double b)
{
    double rest;
    switch (op) {
    case OP_ADD: return value_float(a + b);
    case OP_SUB: return value_float(a - b);
    case OP_MUL: return value_float(a * b);
    case OP_POW: return float_pow(in, a, b);
    default: break;
    }
    if (b == 0.0) return by_zero(in);
    if (op == OP_DIV) return value_float(a / b);
    rest = fmod(a, b);
    if (rest != 0.0 && (rest < 0.0) != (b < 0.0)) rest += b;
    if (rest == 0.0) rest = copysign(0.0, b);
    return value_float(op == OP_MOD ? rest : round((a - rest) / b));
}

static struct value add_strings(struct interp *in, struct value a, struct value b)
{
    bool markup = a.markup || b.markup;
    if (markup) {
        a = str_escape(in, a);
        b = str_escape(in, b);
    }
    struct value v = str_concat(in, a, b);
    v.markup = markup;
    return v;
}

static struct value add_lists(struct interp *in, struct value a, struct value b)
{
    struct list *l = list_new(in, a.list->n + b.list->n);
    for (size_t i = 0; i < a.list->n && interp_step(in, 1); i++) list_add(in, l, a.list->items[i]);
    for (size_t i = 0; i < b.list->n && interp_step(in, 1); i++) list_add(in, l, b.list->items[i]);
    return list_value(a.type, l);
}

static struct value repeat(struct interp *in, struct value a, int64_t times)
{
    if (a.type == V_STRING) {
        struct str_builder b;
        str_begin(&b, in);
        for (int64_t i = 0; i < times && a.len && interp_step(in, 1); i++) str_add_value(&b, a);
        struct value v = str_end(&b);
        v.markup = a.markup;
        return v;
    }
    struct list *l = list_new(in, 0);
    for (int64_t i = 0; i < times && a.list->n && in->rc == 0; i++)
        for (size_t k = 0; k < a.list->n && interp_step(in, 1); k++)
            list_add(in, l, a.list->items[k]);
    return list_value(a.type, l);
}

static bool repeats(struct value v)
{
    return v.type == V_STRING || v.type == V_LIST || v.type == V_TUPLE;
}

struct value ops_binary(struct interp *in, enum op op, struct value a, struct value b)
{
    int64_t i, k;
    double x, y;
    if (in->rc < 0) return value_none();
    if (value_integer(a, &i) && value_integer(b, &k))
        return value_foreign(of_ints(in, op, i, k), a.foreign || b.foreign);
    if (value_number(a, &x) && value_number(b, &y))
        return value_foreign(of_floats(in, op, x, y), a.foreign || b.foreign);
    if (op == OP_MOD && a.type == V_STRING) return format_percent(in, a, b);
    if (op == OP_ADD && a.type == V_STRING && b.type == V_STRING) return add_strings(in, a, b);
    if (op == OP_ADD && a.type == b.type && (a.type == V_LIST || a.type == V_TUPLE))
        return add_lists(in, a, b);
    if (op == OP_MUL && repeats(a) && value_integer(b, &k)) return repeat(in, a, k);
    if (op == OP_MUL && repeats(b) && value_integer(a, &i)) return repeat(in, b, i);
    return no_value(in, op, a, b);
}

struct value ops_unary(struct interp *in, enum op op, struct value a)
{
    int64_t i;
    if (a.type == V_FLOAT)
        return value_foreign(value_float(op == OP_SUB ? -a.real : a.real), a.foreign);
    if (value_integer(a, &i)) {
        if (op == OP_SUB && __builtin_sub_overflow(0, i, &i)) return too_large(in);
        return value_foreign(value_int(i), a.foreign);
    }
    if (a.type == V_UNDEFINED || a.type == V_UNSAFE) interp_undefined(in, a);
    interp_fail(in, ERR_RANGE, "a sign before a '%s'", value_type_name(a));
    return value_none();
}

bool ops_compare(struct interp *in, enum op op, struct value a, struct value b)
{
    int order;
    if (in->rc < 0) return false;
    switch (op) {
    case OP_EQ: return value_equal(in, a, b);
    case OP_NE: return !value_equal(in, a, b);
    case OP_IN: return value_contains(in, b, a);
    case OP_NOT_IN: return !value_contains(in, b, a);
    default: break;
    }
    if ((a.type == V_FLOAT && isnan(a.real)) || (b.type == V_FLOAT && isnan(b.real))) return false;
    order = value_order(in, a, b, op_texts[op]);
    if (op == OP_LT) return order < 0;
    if (op == OP_LE) return order <= 0;
    return op == OP_GT ? order > 0 : order >= 0;
}
