/* Calls of tools as grammars: answers that are nothing but calls, and answers that may be text, in
 * which whatever begins as a call must be one.
 *
 * The latter are the automaton of what the gateway's split.h finds in an answer: <think> at its
 * beginning, behind at most FORMAT_BLANKS_MAX blanks, up to </think>; then text, in which each
 * <tool_call> begins a call. All of it is made of bytes, not of characters, so that it allows
 * whatever a model may say. It can end wherever it is not in a call.
 *
 *   START -- blanks, <think> --> THINK -- </think> --> TEXT -- <tool_call> --> call
 *     |                                                 ^  ^                     |
 *     +------------------- anything else ---------------+  +---- </tool_call> ---+ */
#include "common/text/format_state.h"

#include "common/base/mem.h"

#include <stdlib.h>
#include <string.h>

#define TOOLS_MAX 128u
#define WORDS_MAX 2u

static const char THINK[] = "<think>", THOUGHT[] = "</think>", TAG[] = "<tool_call>";

static gnode text(struct format_builder *b, const char *words)
{
    return schema__text(b->schema, words);
}

/* ---- words in a text ---- */

/* Words that are looked for in a text. They begin with '<', have it nowhere else, and none begins
 * with another: where a word breaks off, the text may only be at the beginning of one. */
struct words {
    struct format_builder *b;
    const char *text[WORDS_MAX];
    gnode then[WORDS_MAX]; /* what follows each */
    uint32_t n;
    gnode begun;  /* what follows '<' in the text, */
    gnode others; /* and what follows any other byte that goes on with none of the words */
    bool may_end; /* the answer may end in the text */
};

/* One byte that is none of these. */
static gnode other_byte(struct format_builder *b, const bool *taken)
{
    gnode all = GRAMMAR_NONE;
    for (uint32_t low = 0, high; low < 256; low = high + 1) {
        high = low;
        if (taken[low]) continue;
        while (high < 255 && !taken[high + 1]) high++;
        all = grammar_alt(b->t, grammar_bytes(b->t, (uint8_t)low, (uint8_t)high), all);
    }
    return all;
}

/* First what the next byte decides, so that an answer is at one position. */
static gnode or_end(const struct words *w, gnode a)
{
    return w->may_end ? grammar_alt(w->b->t, a, text(w->b, "")) : a;
}

/* What follows a text whose last k bytes are the first k of each word in `live`, a bit for each. */
static gnode after(const struct words *w, uint32_t live, size_t k)
{
    struct grammar_tree *t = w->b->t;
    bool taken[256] = {false};
    gnode all = GRAMMAR_NONE;
    for (uint32_t i = 0; i < w->n; i++) {
        if (!(live >> i & 1) || taken[(uint8_t)w->text[i][k]]) continue;
        char c = w->text[i][k];
        uint32_t same = 0;
        for (uint32_t j = i; j < w->n; j++)
            if (live >> j & 1 && w->text[j][k] == c) same |= 1u << j;
        gnode then = w->text[i][k + 1] ? after(w, same, k + 1) : w->then[i];
        all = grammar_alt(t, grammar_seq(t, grammar_text(t, &c, 1), then), all);
        taken[(uint8_t)c] = true;
    }
    if (!taken['<']) all = grammar_alt(t, grammar_seq(t, text(w->b, "<"), w->begun), all);
    taken['<'] = true;
    all = grammar_alt(t, grammar_seq(t, other_byte(w->b, taken), w->others), all);
    return or_end(w, all);
}

/* What follows a text that is at none of the words' beginnings, and does not go on with a byte of
 * `without`. */
static gnode outside(const struct words *w, const char *without)
{
    struct grammar_tree *t = w->b->t;
    bool taken[256] = {['<'] = true};
    for (; *without; without++) taken[(uint8_t)*without] = true;
    gnode begin = grammar_seq(t, text(w->b, "<"), w->begun);
    gnode other = grammar_seq(t, other_byte(w->b, taken), w->others);
    return or_end(w, grammar_alt(t, begin, other));
}

/* Defines `rule` as a text up to the first `word`, and `then`. Returns what follows '<' in it. */
static gnode define_text(struct format_builder *b, uint32_t rule, const char *word, gnode then,
                         bool may_end)
{
    uint32_t begun = grammar_rule(b->t);
    const struct words w = {.b = b,
                            .text = {word},
                            .then = {then},
                            .n = 1,
                            .begun = grammar_ref(b->t, begun),
                            .others = grammar_ref(b->t, rule),
                            .may_end = may_end};
    grammar_define(b->t, begun, after(&w, 1, 1));
    grammar_define(b->t, rule, outside(&w, ""));
    return w.begun;
}

gnode format__behind_thought(struct format_builder *b, gnode then)
{
    uint32_t rule = grammar_rule(b->t);
    gnode lines = grammar_repeat(b->t, text(b, "\n"), 0, 2);
    (void)define_text(b, rule, THOUGHT, grammar_seq(b->t, lines, then), false);
    return grammar_ref(b->t, rule);
}

/* ---- calls ---- */

/* A tool's name, quoted as JSON. */
static struct buf quoted(const char *name, size_t n)
{
    struct json *list = json_new_array();
    struct buf text = {0};
    json_add_string(list, name, n);
    json_write_exact(list, &text);
    json_free(list);
    buf_drop(&text, 1); /* the brackets around it */
    text.len--;
    return text;
}

/* Whether there is a grammar for this schema alone. */
static bool can_hold(const struct json *parameters)
{
    struct grammar_tree *t = grammar_tree_open();
    struct schema *s = schema_open(t);
    struct buf code = {0};
    struct errmsg em;
    gnode root = GRAMMAR_NONE;
    int rc = schema_build(s, parameters, &root, &em);
    if (rc == 0) rc = grammar_compile(t, root, &code, &em);
    buf_close(&code);
    schema_close(s);
    grammar_tree_close(t);
    return rc == 0;
}

/* Whether a call's arguments may be any object, whatever the tool's schema says. */
static bool is_loose(const struct format_builder *b, const struct json *function)
{
    const struct json *parameters = json_get(function, "parameters");
    bool strict = false;
    (void)json_as_bool(json_get(function, "strict"), &strict);
    if (json_kind(parameters) == JSON_KIND_NULL || !json_n_members(parameters)) return true;
    if (strict || b->hold == FORMAT_HOLD_ALL) return false;
    return b->hold == FORMAT_HOLD_STRICT || !can_hold(parameters);
}

static int arguments_of(struct format_builder *b, const struct json *function, const char *name,
                        gnode *ret)
{
    if (is_loose(b, function)) {
        *ret = schema_any_object(b->schema);
        return 0;
    }
    int rc = schema_build(b->schema, json_get(function, "parameters"), ret, b->em);
    return rc < 0 ? err_wrap(b->em, rc, "tool '%.64s'", name) : 0;
}

struct call {
    struct buf name;
    gnode behind;
};

static int by_name(const void *a, const void *b)
{
    const struct call *x = a, *y = b;
    return strcmp(x->name.data, y->name.data);
}

/* One call of any of the tools: what stands before its name, the name and the arguments, the rest.
 */
static gnode any_call(struct format_builder *b, struct call *calls, size_t n, gnode begin,
                      gnode end)
{
    struct buf names[TOOLS_MAX];
    gnode behind[TOOLS_MAX];
    size_t kept = 0;
    qsort(calls, n, sizeof *calls, by_name);
    for (size_t i = 0; i < n; i++) {
        if (kept && strcmp(names[kept - 1].data, calls[i].name.data) == 0) continue;
        names[kept] = calls[i].name;
        behind[kept++] = calls[i].behind;
    }
    const gnode all[] = {begin, schema__texts(b->schema, names, behind, kept), end};
    return grammar_seqs(b->t, all, 3);
}

static gnode wrap(struct format_builder *b, const char *before, gnode a, const char *behind)
{
    return grammar_seq(b->t, text(b, before), grammar_seq(b->t, a, text(b, behind)));
}

/* One call, or several, as the model's template shows them. */
static gnode written(struct format_builder *b, gnode call, bool parallel)
{
    static const struct {
        const char *before, *behind, *begin, *between, *end;
    } forms[] = {
        [FORMAT_PLAIN] = {"", "", "", "; ", ""},
        [FORMAT_PARAMETERS] = {"", "", "", "; ", ""},
        [FORMAT_TAGGED] = {"<tool_call>\n", "\n</tool_call>", "", "\n", ""},
        [FORMAT_LIST] = {"", "", "[", ", ", "]"},
    };
    uint32_t rule = grammar_rule(b->t);
    grammar_define(b->t, rule, wrap(b, forms[b->calls].before, call, forms[b->calls].behind));
    gnode one = grammar_ref(b->t, rule);
    gnode more = grammar_seq(b->t, text(b, forms[b->calls].between), one);
    more = grammar_repeat(b->t, more, 0, parallel ? FORMAT_CALLS_MAX - 1 : 0);
    return wrap(b, forms[b->calls].begin, grammar_seq(b->t, one, more), forms[b->calls].end);
}

/* ---- calls that may be left out ---- */

/* `call`, and then text again or the end, wherever a text begins one. */
static gnode among_text(struct format_builder *b, gnode call, bool parallel, bool reasoning,
                        bool open_thought)
{
    static const struct grammar_range blanks[] = {{'\t', '\n'}, {'\r', '\r'}, {' ', ' '}};
    struct grammar_tree *t = b->t;
    uint32_t said = grammar_rule(t), called = grammar_rule(t), thought = grammar_rule(t);
    gnode then = parallel ? grammar_ref(t, said) : text(b, "");
    const gnode whole[] = {call, text(b, "</tool_call>"), then};
    grammar_define(t, called, grammar_seqs(t, whole, 3));
    struct words start = {.b = b,
                          .text = {THINK, TAG},
                          .then = {grammar_ref(t, thought), grammar_ref(t, called)},
                          .n = 2,
                          .others = grammar_ref(t, said),
                          .may_end = true};
    start.begun = define_text(b, said, TAG, grammar_ref(t, called), true);
    if (!reasoning) return start.others;
    (void)define_text(b, thought, THOUGHT, start.others, true);
    if (open_thought) return start.then[0];
    /* Only the answer's first '<' may begin a thought: behind it start.begun is the text's. */
    uint32_t begun = grammar_rule(t);
    grammar_define(t, begun, after(&start, 3, 1));
    start.begun = grammar_ref(t, begun);
    gnode blank = grammar_class(t, blanks, 3);
    gnode few = grammar_repeat(t, blank, 0, FORMAT_BLANKS_MAX);
    gnode many = grammar_repeat(t, blank, FORMAT_BLANKS_MAX + 1, FORMAT_BLANKS_MAX + 1);
    return grammar_alt(t, grammar_seq(t, few, outside(&start, " \t\n\r")),
                       grammar_seq(t, many, start.others));
}

/* A call between its tags, with white space as models leave it out or put it in. */
static gnode spaced_call(struct format_builder *b, struct call *calls, size_t n)
{
    gnode space = schema_space(b->schema);
    const gnode begin[] = {space, text(b, "{"), space, text(b, "\"name\":"), space};
    const gnode end[] = {space, text(b, "}"), space};
    return any_call(b, calls, n, grammar_seqs(b->t, begin, 5), grammar_seqs(b->t, end, 3));
}

/* What stands between a call's name and its arguments. */
static gnode before_arguments(struct format_builder *b, bool optional)
{
    gnode space = schema_space(b->schema);
    const gnode all[] = {text(b, ","), space, text(b, "\"arguments\":"), space};
    if (optional) return grammar_seqs(b->t, all, 4);
    return text(b, b->calls == FORMAT_PARAMETERS ? ", \"parameters\": " : ", \"arguments\": ");
}

/* ---- formats ---- */

bool format__is_optional(const struct json *format)
{
    bool optional = false;
    (void)json_as_bool(json_get(format, "optional"), &optional);
    return optional;
}

/* The tools that may be called; *ret_n of them are to be closed, also after an error. */
static int read_tools(struct format_builder *b, const struct json *format, struct call *ret,
                      size_t *ret_n)
{
    const struct json *tools = json_get(format, "tools");
    bool optional = format__is_optional(format);
    size_t n, len, n_only;
    const char *only = format__string(format, "name", &n_only), *name;
    if (!json_count(tools, &n) || n == 0 || n > TOOLS_MAX)
        return err_set(b->em, ERR_FORMAT, "'tools' must be a list of 1 to %u tools", TOOLS_MAX);
    for (size_t i = 0; i < n; i++) {
        const struct json *function = json_get(json_at(tools, i), "function");
        name = format__string(function, "name", &len);
        if (!name || !len)
            return err_set(b->em, ERR_FORMAT, "tool %zu has no function with a name", i);
        if (only && (len != n_only || memcmp(only, name, len) != 0)) continue;
        gnode value = GRAMMAR_NONE;
        int rc = arguments_of(b, function, name, &value);
        if (rc < 0) return rc;
        ret[(*ret_n)++] = (struct call){quoted(name, len),
                                        grammar_seq(b->t, before_arguments(b, optional), value)};
    }
    if (*ret_n == 0)
        return err_set(b->em, ERR_FORMAT, "there is no tool '%.64s'", only ? only : "");
    return 0;
}

int format__calls(struct format_builder *b, const struct json *format, bool open_thought,
                  gnode *ret)
{
    struct call calls[TOOLS_MAX];
    size_t n = 0;
    bool parallel = false, reasoning = true;
    (void)json_as_bool(json_get(format, "parallel"), &parallel);
    (void)json_as_bool(json_get(format, "reasoning"), &reasoning);
    int rc = read_tools(b, format, calls, &n);
    if (rc == 0 && format__is_optional(format))
        *ret = among_text(b, spaced_call(b, calls, n), parallel, reasoning, open_thought);
    else if (rc == 0)
        *ret = written(b, any_call(b, calls, n, text(b, "{\"name\": "), text(b, "}")), parallel);
    for (size_t i = 0; i < n; i++) buf_close(&calls[i].name);
    return rc;
}
