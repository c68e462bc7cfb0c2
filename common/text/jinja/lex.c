#include "common/text/jinja/lex.h"

#include "common/base/utf8.h"
#include "common/text/jinja/unicode.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define BRACES_MAX 256

struct lexer {
    const char *s; /* the template, its newlines made one kind; NUL-terminated */
    size_t n, at;
    size_t counted; /* bytes whose newlines are in `line` */
    uint32_t line;
    bool line_starts; /* what was taken last ended with a newline, or nothing was */
    struct arena *arena;
    struct lex_tokens *tokens;
    struct lex_token lost; /* one for which there is no memory */
    struct errmsg *em;
    int rc;
    char braces[BRACES_MAX]; /* those that are open in this tag */
    size_t n_braces;
};

static bool fail(struct lexer *x, int code, const char *why)
{
    if (x->rc == 0) x->rc = err_set(x->em, code, "line %" PRIu32 ": %s", x->line, why);
    return false;
}

static void *get(struct lexer *x, size_t bytes)
{
    void *p = arena_alloc(x->arena, bytes);
    if (!p && x->arena->starved) (void)fail(x, ERR_NOMEM, "out of memory");
    if (!p) (void)fail(x, ERR_LIMIT, "the template needs too much memory");
    return p;
}

/* The line of byte `to`, which never decreases. */
static void count_to(struct lexer *x, size_t to)
{
    for (; x->counted < to; x->counted++) x->line += x->s[x->counted] == '\n';
}

static struct lex_token *push(struct lexer *x, enum token_kind kind, const char *text, size_t len)
{
    struct lex_tokens *t = x->tokens;
    if (t->n == t->cap) {
        size_t cap = t->cap ? 2 * t->cap : 256;
        struct lex_token *more = get(x, cap * sizeof *more);
        if (!more) return &x->lost;
        if (t->n) memcpy(more, t->at, t->n * sizeof *more);
        t->at = more;
        t->cap = cap;
    }
    t->at[t->n] = (struct lex_token){.kind = kind, .line = x->line, .text = text, .len = len};
    return &t->at[t->n++];
}

static bool is_at(const struct lexer *x, size_t at, const char *what)
{
    size_t n = strlen(what);
    return x->n - at >= n && memcmp(x->s + at, what, n) == 0;
}

/* The bytes of white space from `at` on. */
static size_t skip_space(const struct lexer *x, size_t at)
{
    int32_t c;
    for (size_t n; at < x->n && (n = utf8_char(x->s + at, x->n - at, &c)) && unicode_space(c);)
        at += n;
    return at;
}

/* Where the text [from, to) ends without the white space at its end. */
static size_t strip_end(const struct lexer *x, size_t from, size_t to)
{
    while (to > from) {
        size_t at = to - 1;
        int32_t c;
        while (at > from && ((uint8_t)x->s[at] & 0xc0) == 0x80) at--;
        if (!utf8_char(x->s + at, to - at, &c) || !unicode_space(c)) break;
        to = at;
    }
    return to;
}

/* The text before a tag. sign: that of the tag, '-', '+' or 0; lstrip: white space between the
 * beginning of the tag's line and the tag goes. */
static void push_text(struct lexer *x, size_t from, size_t to, char sign, bool lstrip)
{
    size_t end = to;
    if (sign == '-') {
        end = strip_end(x, from, to);
    } else if (sign != '+' && lstrip) {
        size_t line = to;
        while (line > from && x->s[line - 1] != '\n') line--;
        if ((line > from || x->line_starts) && skip_space(x, line) >= to) end = line;
    }
    count_to(x, from);
    if (end > from) (void)push(x, T_TEXT, x->s + from, end - from);
    count_to(x, to);
}

/* The end of a tag, `close` being its two characters: where it ends, or 0 where there is none at
 * `at`. With trim, one newline behind it goes. */
static size_t tag_end(const struct lexer *x, size_t at, const char *close, bool plus, bool trim)
{
    if (x->s[at] == '-' && is_at(x, at + 1, close)) return skip_space(x, at + 3);
    if (plus && x->s[at] == '+' && is_at(x, at + 1, close)) return at + 3;
    if (!is_at(x, at, close)) return 0;
    return at + 2 + (trim && x->s[at + 2] == '\n');
}

static void go_to(struct lexer *x, size_t at)
{
    count_to(x, at);
    x->line_starts = at > 0 && x->s[at - 1] == '\n';
    x->at = at;
}

static char sign_at(const struct lexer *x, size_t at)
{
    return x->s[at] == '-' || x->s[at] == '+' ? x->s[at] : 0;
}

/* Behind "{%- word " of a tag that begins at `at`, where `word` is its name; 0: it is not. */
static size_t tag_named(const struct lexer *x, size_t at, const char *word)
{
    if (!is_at(x, at, "{%")) return 0;
    at = skip_space(x, at + 2 + (sign_at(x, at + 2) != 0));
    return is_at(x, at, word) ? skip_space(x, at + strlen(word)) : 0;
}

/* A raw tag at `at`; false: it is none. */
static bool raw(struct lexer *x, size_t from, size_t at)
{
    size_t body = tag_named(x, at, "raw");
    body = body ? tag_end(x, body, "%}", false, false) : 0;
    if (!body) return false;
    push_text(x, from, at, sign_at(x, at + 2), true);
    go_to(x, body);
    for (size_t end = body; end < x->n; end++) {
        size_t close = tag_named(x, end, "endraw");
        close = close ? tag_end(x, close, "%}", true, true) : 0;
        if (!close) continue;
        push_text(x, body, end, sign_at(x, end + 2), true);
        go_to(x, close);
        return true;
    }
    return fail(x, ERR_FORMAT, "Missing end of raw directive"), true;
}

static bool comment(struct lexer *x, size_t from)
{
    for (size_t at = from; at < x->n; at++) {
        size_t end = tag_end(x, at, "#}", true, true);
        if (!end) continue;
        go_to(x, end);
        return true;
    }
    return fail(x, ERR_FORMAT, "Missing end of comment tag");
}

/* ---- inside tags ---- */

static int digit_of(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : 99;
}

/* The end of digits of a base, with single underscores between them. */
static size_t digits(const struct lexer *x, size_t at, int base)
{
    size_t begin = at;
    while (digit_of(x->s[at]) < base ||
           (at > begin && x->s[at] == '_' && digit_of(x->s[at + 1]) < base))
        at++;
    return at;
}

/* The end of a floating-point number at `at`; 0: there is none. */
static size_t float_end(const struct lexer *x, size_t at)
{
    size_t begin = at;
    if (at > 0 && x->s[at - 1] == '.') return 0;
    at = digits(x, at, 10);
    if (at == begin) return 0;
    size_t whole = at;
    if (x->s[at] == '.' && digits(x, at + 1, 10) > at + 1) at = digits(x, at + 1, 10);
    size_t point = at;
    if (x->s[at] == 'e' || x->s[at] == 'E') {
        size_t exponent = at + 1 + (x->s[at + 1] == '-' || x->s[at + 1] == '+');
        if (digits(x, exponent, 10) > exponent) at = digits(x, exponent, 10);
    }
    return at > whole || point > whole ? at : 0;
}

/* Digits without their underscores. */
static bool plain_digits(struct lexer *x, size_t from, size_t to, char out[64])
{
    size_t n = 0;
    for (size_t i = from; i < to; i++) {
        if (x->s[i] == '_') continue;
        if (n + 1 == 64) return fail(x, ERR_UNSUPPORTED, "a number is too long");
        out[n++] = x->s[i];
    }
    out[n] = 0;
    return true;
}

static bool number(struct lexer *x)
{
    char plain[64];
    size_t end = float_end(x, x->at), from = x->at;
    if (end) {
        if (!plain_digits(x, from, end, plain)) return true;
        struct lex_token *t = push(x, T_FLOAT, x->s + from, end - from);
        t->real = strtod(plain, NULL);
        go_to(x, end);
        return true;
    }
    if (digit_of(x->s[from]) > 9) return false;
    char kind = (char)(x->s[from + 1] | 0x20);
    int base = x->s[from] != '0' ? 10 : kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 1;
    if (base < 10 || base == 16) { /* "0" alone has digits of base 1: zeros */
        size_t first = from + 2 + (x->s[from + 2] == '_');
        end = base > 1 ? digits(x, first, base) : 0;
        if (base > 1 && end > first) {
            from = first;
        } else {
            base = 10;
            end = digits(x, from, 1);
        }
    } else {
        end = digits(x, from, 10);
    }
    if (!plain_digits(x, from, end, plain)) return true;
    errno = 0;
    int64_t v = strtoll(plain, NULL, base);
    if (errno) return fail(x, ERR_UNSUPPORTED, "an integer is beyond 64 bits"), true;
    push(x, T_INT, x->s + x->at, end - x->at)->integer = v;
    go_to(x, end);
    return true;
}

/* Reads up to `most` digits of a base. False: there are fewer than `least`. */
static bool escape_digits(const struct lexer *x, size_t *at, int base, size_t least, size_t most,
                          int32_t *ret)
{
    size_t n = 0;
    int64_t c = 0;
    for (; n < most && digit_of(x->s[*at]) < base; n++, ++*at) c = c * base + digit_of(x->s[*at]);
    *ret = c > 0x10ffff ? 0x110000 : (int32_t)c;
    return n >= least;
}

/* One escape sequence; *at is behind the backslash. What is none stays as it is written. */
static size_t escape(struct lexer *x, size_t *at, char *to)
{
    static const char simple[] = "\\\\''\"\"a\ab\bf\fn\nr\rt\tv\v";
    char c = x->s[*at];
    int32_t code = 0;
    bool right = true;
    for (size_t i = 0; simple[i]; i += 2)
        if (c == simple[i]) {
            ++*at;
            *to = simple[i + 1];
            return 1;
        }
    if (c >= '0' && c <= '7') {
        right = escape_digits(x, at, 8, 1, 3, &code);
    } else if (c == 'x' || c == 'u' || c == 'U') {
        size_t n = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        ++*at;
        right = escape_digits(x, at, 16, n, n, &code);
    } else if (c == '\n') {
        ++*at;
        return 0;
    } else if (c == 'N') {
        (void)fail(x, ERR_UNSUPPORTED, "\\N in a string is not supported");
        return 0;
    } else {
        *to = '\\';
        return 1;
    }
    if (!right || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) {
        (void)fail(x, ERR_FORMAT, "a string has an escape sequence that is no character");
        return 0;
    }
    return unicode_encode(code, to);
}

static bool string(struct lexer *x)
{
    char quote = x->s[x->at];
    size_t end = x->at + 1, n = 0;
    while (end < x->n && x->s[end] != quote) end += x->s[end] == '\\' ? 2 : 1;
    if (end >= x->n) return false;
    char *text = get(x, end - x->at + 4);
    if (!text) return true;
    for (size_t i = x->at + 1; i < end;) {
        if (x->s[i] != '\\') {
            text[n++] = x->s[i++];
            continue;
        }
        i++;
        n += escape(x, &i, text + n);
        if (x->rc < 0) return true;
    }
    (void)push(x, T_STRING, text, n);
    go_to(x, end + 1);
    return true;
}

static bool name(struct lexer *x)
{
    size_t at = x->at;
    int32_t c;
    for (size_t n; at < x->n && (n = utf8_char(x->s + at, x->n - at, &c)); at += n)
        if (!(at == x->at ? unicode_name_start(c) : unicode_name_part(c))) break;
    if (at == x->at) return false;
    (void)push(x, T_NAME, x->s + x->at, at - x->at);
    go_to(x, at);
    return true;
}

static bool balance(struct lexer *x, enum token_kind kind, char c)
{
    static const char pairs[] = "()[]{}";
    const char *which = c ? strchr(pairs, c) : NULL;
    if (!which || kind < T_LBRACKET || kind > T_RBRACE) return true;
    if ((which - pairs) % 2 == 0) {
        if (x->n_braces == BRACES_MAX) return fail(x, ERR_LIMIT, "brackets nest too deeply");
        x->braces[x->n_braces++] = which[1];
        return true;
    }
    if (x->n_braces == 0 || x->braces[--x->n_braces] != c)
        return fail(x, ERR_FORMAT, "a closing bracket that nothing opened");
    return true;
}

static bool operator(struct lexer *x)
{
    static const struct {
        char text[3];
        enum token_kind kind;
    } all[] = {
        {"//", T_FLOORDIV}, {"**", T_POW},   {"==", T_EQ},      {"!=", T_NE},      {">=", T_GE},
        {"<=", T_LE},       {"+", T_ADD},    {"-", T_SUB},      {"/", T_DIV},      {"*", T_MUL},
        {"%", T_MOD},       {"~", T_TILDE},  {"[", T_LBRACKET}, {"]", T_RBRACKET}, {"(", T_LPAREN},
        {")", T_RPAREN},    {"{", T_LBRACE}, {"}", T_RBRACE},   {">", T_GT},       {"<", T_LT},
        {"=", T_ASSIGN},    {".", T_DOT},    {":", T_COLON},    {"|", T_PIPE},     {",", T_COMMA},
        {";", T_SEMICOLON},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (!is_at(x, x->at, all[i].text)) continue;
        if (!balance(x, all[i].kind, x->s[x->at])) return true;
        size_t n = strlen(all[i].text);
        (void)push(x, all[i].kind, x->s + x->at, n);
        go_to(x, x->at + n);
        return true;
    }
    return false;
}

/* From behind "{%" or "{{" to behind its end. */
static void inside_tag(struct lexer *x, bool print)
{
    x->n_braces = 0;
    while (x->rc == 0 && x->at < x->n) {
        size_t end = 0;
        if (x->n_braces == 0)
            end =
                print ? tag_end(x, x->at, "}}", false, false) : tag_end(x, x->at, "%}", true, true);
        if (end) {
            (void)push(x, print ? T_PRINT_END : T_TAG_END, x->s + x->at, 2);
            go_to(x, end);
            return;
        }
        size_t space = skip_space(x, x->at);
        char c = x->s[x->at];
        if (space > x->at)
            go_to(x, space);
        else if (!number(x) && !name(x) && !((c == '\'' || c == '"') && string(x)) && !operator(x))
            (void)fail(x, ERR_FORMAT, "an unexpected character in a tag");
    }
}

/* The next "{%", "{{" or "{#" from `at` on, or the end. */
static size_t next_tag(const struct lexer *x, size_t at)
{
    for (; at < x->n; at++) {
        const char *p = memchr(x->s + at, '{', x->n - at);
        if (!p) return x->n;
        at = (size_t)(p - x->s);
        if (p[1] == '%' || p[1] == '{' || p[1] == '#') return at;
    }
    return x->n;
}

static void all(struct lexer *x)
{
    while (x->rc == 0 && x->at < x->n) {
        size_t from = x->at, at = next_tag(x, from);
        if (at == x->n) {
            (void)push(x, T_TEXT, x->s + from, at - from);
            x->at = at;
            break;
        }
        char kind = x->s[at + 1], sign = sign_at(x, at + 2);
        if (kind == '%' && raw(x, from, at)) continue;
        push_text(x, from, at, sign, kind != '{');
        go_to(x, at + 2 + (sign != 0));
        if (kind == '#') {
            (void)comment(x, x->at);
            continue;
        }
        (void)push(x, kind == '%' ? T_TAG_BEGIN : T_PRINT_BEGIN, x->s + at, 2);
        inside_tag(x, kind == '{');
    }
    count_to(x, x->n);
    (void)push(x, T_EOF, x->s + x->n, 0);
}

/* One kind of newline; one at the end of the template is not text. */
static bool normalise(struct lexer *x, const char *text, size_t bytes)
{
    char *s = get(x, bytes + 8); /* NULs behind, so that looking ahead needs no check */
    size_t n = 0;
    if (!s) return false;
    for (size_t i = 0; i < bytes;) {
        size_t len = utf8_char(text + i, bytes - i, NULL);
        if (len == 0) return fail(x, ERR_FORMAT, "the template is not UTF-8");
        x->line += text[i] == '\n';
        if (text[i] == '\r') {
            s[n++] = '\n';
            i += i + 1 < bytes && text[i + 1] == '\n' ? 2 : 1;
            continue;
        }
        for (size_t k = 0; k < len; k++) s[n++] = text[i++];
    }
    if (n > 0 && s[n - 1] == '\n') n--;
    memset(s + n, 0, 8);
    x->s = s;
    x->n = n;
    x->line = 1;
    return true;
}

int lex_template(const char *text, size_t bytes, struct arena *arena, struct lex_tokens *ret,
                 struct errmsg *em)
{
    struct lexer x = {.arena = arena, .tokens = ret, .em = em, .line = 1, .line_starts = true};
    *ret = (struct lex_tokens){0};
    if (normalise(&x, text, bytes)) all(&x);
    return x.rc;
}
