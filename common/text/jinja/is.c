/* Tests: what follows `is`. */
#include "common/text/jinja/interp.h"

#include <string.h>

struct is_def {
    const char *name;
    const char *params;
    bool (*run)(struct interp *in, struct value v, struct value p);
};

#define TEST(name) static bool name(struct interp *in, struct value v, struct value p)
#define UNUSED (void)in, (void)v, (void)p

static bool defined(struct value v)
{
    return v.type != V_UNDEFINED && v.type != V_UNSAFE;
}

static bool rest_is(struct interp *in, struct value v, struct value by, int64_t want)
{
    struct value rest = ops_binary(in, OP_MOD, v, by);
    return in->rc == 0 && value_equal(in, rest, value_int(want));
}

TEST(is_odd)
{
    UNUSED;
    return rest_is(in, v, value_int(2), 1);
}

TEST(is_even)
{
    UNUSED;
    return rest_is(in, v, value_int(2), 0);
}

TEST(is_divisible)
{
    return rest_is(in, v, p, 0);
}

TEST(is_defined)
{
    UNUSED;
    return defined(v);
}

TEST(is_undefined)
{
    UNUSED;
    return !defined(v);
}

TEST(is_filter)
{
    UNUSED;
    return v.type == V_STRING && filter_find(v.text, v.len);
}

TEST(is_test)
{
    UNUSED;
    return v.type == V_STRING && is_find(v.text, v.len);
}

TEST(is_none)
{
    UNUSED;
    return v.type == V_NONE;
}

TEST(is_boolean)
{
    UNUSED;
    return v.type == V_BOOL;
}

TEST(is_false)
{
    UNUSED;
    return v.type == V_BOOL && !v.truth;
}

TEST(is_true)
{
    UNUSED;
    return v.type == V_BOOL && v.truth;
}

TEST(is_integer)
{
    UNUSED;
    return v.type == V_INT;
}

TEST(is_float)
{
    UNUSED;
    return v.type == V_FLOAT;
}

TEST(is_lower)
{
    UNUSED;
    return cases_is_lower(in, repr_str(in, v));
}

TEST(is_upper)
{
    UNUSED;
    return cases_is_upper(in, repr_str(in, v));
}

TEST(is_string)
{
    UNUSED;
    return v.type == V_STRING;
}

TEST(is_mapping)
{
    UNUSED;
    return v.type == V_DICT;
}

TEST(is_number)
{
    UNUSED;
    return v.type == V_BOOL || v.type == V_INT || v.type == V_FLOAT;
}

/* It has a length and items by number or key; an undefined value has both in Python. */
TEST(is_sequence)
{
    UNUSED;
    return !defined(v) || v.type == V_STRING || v.type == V_DICT ||
           (value_is_list(v) && v.type != V_VIEW);
}

TEST(is_iterable)
{
    UNUSED;
    return is_sequence(in, v, p) || v.type == V_VIEW || v.type == V_ITER || v.type == V_LOOP;
}

TEST(is_callable)
{
    UNUSED;
    return !defined(v) || v.type == V_MACRO || v.type == V_FUNCTION || v.type == V_METHOD ||
           v.type == V_LOOP || v.type == V_JOINER;
}

TEST(is_same)
{
    UNUSED;
    return interp_bytes(in, v.type == V_STRING ? v.len : 0) && value_same(v, p);
}

TEST(is_escaped)
{
    UNUSED;
    return v.type == V_STRING && v.markup;
}

TEST(is_in)
{
    return value_contains(in, p, v);
}

TEST(is_eq)
{
    return ops_compare(in, OP_EQ, v, p);
}

TEST(is_ne)
{
    return ops_compare(in, OP_NE, v, p);
}

TEST(is_gt)
{
    return ops_compare(in, OP_GT, v, p);
}

TEST(is_ge)
{
    return ops_compare(in, OP_GE, v, p);
}

TEST(is_lt)
{
    return ops_compare(in, OP_LT, v, p);
}

TEST(is_le)
{
    return ops_compare(in, OP_LE, v, p);
}

static const struct is_def tests[] = {
    {"odd", "", is_odd},
    {"even", "", is_even},
    {"divisibleby", "num", is_divisible},
    {"defined", "", is_defined},
    {"undefined", "", is_undefined},
    {"filter", "", is_filter},
    {"test", "", is_test},
    {"none", "", is_none},
    {"boolean", "", is_boolean},
    {"false", "", is_false},
    {"true", "", is_true},
    {"integer", "", is_integer},
    {"float", "", is_float},
    {"lower", "", is_lower},
    {"upper", "", is_upper},
    {"string", "", is_string},
    {"mapping", "", is_mapping},
    {"number", "", is_number},
    {"sequence", "", is_sequence},
    {"iterable", "", is_iterable},
    {"callable", "", is_callable},
    {"sameas", "other", is_same},
    {"escaped", "", is_escaped},
    {"in", "seq", is_in},
    {"==", "other", is_eq},
    {"eq", "other", is_eq},
    {"equalto", "other", is_eq},
    {"!=", "other", is_ne},
    {"ne", "other", is_ne},
    {">", "other", is_gt},
    {"gt", "other", is_gt},
    {"greaterthan", "other", is_gt},
    {">=", "other", is_ge},
    {"ge", "other", is_ge},
    {"<", "other", is_lt},
    {"lt", "other", is_lt},
    {"lessthan", "other", is_lt},
    {"<=", "other", is_le},
    {"le", "other", is_le},
};

const struct is_def *is_find(const char *name, size_t len)
{
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++)
        if (strlen(tests[i].name) == len && memcmp(tests[i].name, name, len) == 0) return &tests[i];
    return NULL;
}

bool is_run(struct interp *in, const struct is_def *d, struct value v, const struct call_args *a)
{
    struct value to[CALL_PARAMS_MAX];
    return call_bind(in, d->name, d->params, a, to) && d->run(in, v, to[0]);
}
