#include "coordinator/cli/line.h"

#include "common/base/mem.h"
#include "common/base/utf8.h"

#include <errno.h>
#include <histedit.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>
#include <wchar.h>

#define HISTORY_LINES 1000
#define BLOCK_BYTES 65536

struct line_reader {
    int interrupts;
    size_t bytes_max;
    bool interrupted, too_long; /* of the present line */
    /* At a terminal. */
    EditLine *editor; /* NULL: it is none */
    History *history;
    char *prompt;
    mbstate_t half;   /* of a character that comes byte by byte */
    sigset_t waiting; /* the signals that are blocked while it waits for a key */
    bool pastes;      /* the terminal is asked to say where a pasted block begins and ends */
    /* From a file. */
    struct buf rest; /* what was read and is not taken */
    bool ended;
};

/* Waits for input; at a terminal signals are taken here alone. False: it was interrupted, or there
 * is no waiting for it. */
static bool wait_input(struct line_reader *r)
{
    struct pollfd fds[] = {{.fd = STDIN_FILENO, .events = POLLIN},
                           {.fd = r->interrupts, .events = POLLIN}};
    struct signalfd_siginfo s;
    while (ppoll(fds, 2, NULL, r->editor ? &r->waiting : NULL) < 0)
        if (errno != EINTR) return false;
    while (fds[1].revents && read(r->interrupts, &s, sizeof s) == (ssize_t)sizeof s)
        r->interrupted = true;
    if (r->interrupted) errno = EINTR;
    return !r->interrupted;
}

/* ---- at a terminal ---- */

/* For libedit: 1, or 0 at the end, -1 where there is none. Bytes that are no character are left
 * out. */
static int get_char(EditLine *e, wchar_t *ret)
{
    struct line_reader *r;
    char byte;
    (void)el_get(e, EL_CLIENTDATA, &r);
    for (;;) {
        if (!wait_input(r)) return -1;
        ssize_t n = read(STDIN_FILENO, &byte, 1);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (n <= 0) return (int)n;
        size_t len = mbrtowc(ret, &byte, 1, &r->half);
        if (len != (size_t)-1 && len != (size_t)-2) return 1;
        if (len == (size_t)-1) r->half = (mbstate_t){0};
    }
}

static char *get_prompt(EditLine *e)
{
    struct line_reader *r;
    (void)el_get(e, EL_CLIENTDATA, &r);
    return r->prompt;
}

/* A terminal that was asked to puts a pasted block between two marks. This is bound to the first:
 * newlines up to the second are text, and do not end the line. */
static unsigned char take_paste(EditLine *e, wint_t c)
{
    static const wchar_t end[] = L"\033[201~";
    const size_t n_end = sizeof end / sizeof end[0] - 1;
    struct line_reader *r;
    struct buf text = {0};
    wchar_t w;
    bool ended = false;
    (void)c;
    (void)el_get(e, EL_CLIENTDATA, &r);
    while (!ended && el_wgetc(e, &w) == 1) {
        if (w == L'\r') w = L'\n';
        if (text.len / sizeof w > r->bytes_max) { /* its end is still to be found */
            r->too_long = true;
            buf_drop(&text, text.len - n_end * sizeof w);
        }
        (void)buf_append(&text, &w, sizeof w);
        size_t n = text.len / sizeof w;
        const wchar_t *all = (const wchar_t *)(const void *)text.data;
        ended = n >= n_end && wmemcmp(all + n - n_end, end, n_end) == 0;
    }
    wchar_t *all = (wchar_t *)(void *)text.data;
    size_t n = text.len / sizeof w - (ended ? n_end : 0);
    while (n && all[n - 1] == L'\n') n--;
    if (n && ended && !r->too_long) {
        all[n] = 0;
        (void)el_winsertstr(e, all);
    }
    buf_close(&text);
    return CC_REFRESH;
}

static int open_editor(struct line_reader *r, struct errmsg *em)
{
    HistEvent event;
    const char *term = getenv("TERM");
    /* Characters are those of the environment, or UTF-8, which the model's texts are. */
    if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1) (void)setlocale(LC_CTYPE, "C.UTF-8");
    r->editor = el_init("flotilla", stdin, stdout, stderr);
    r->history = history_init();
    if (!r->editor || !r->history) return err_set(em, ERR_NOMEM, "no line editor");
    r->pastes = term && strcmp(term, "dumb") != 0;
    (void)history(r->history, &event, H_SETSIZE, HISTORY_LINES);
    (void)history(r->history, &event, H_SETUNIQUE, 1);
    (void)el_set(r->editor, EL_CLIENTDATA, r);
    (void)el_set(r->editor, EL_PROMPT, get_prompt);
    (void)el_set(r->editor, EL_EDITOR, "emacs");
    (void)el_set(r->editor, EL_SIGNAL,
                 1); /* the terminal is left in order, whatever signal comes */
    (void)el_set(r->editor, EL_HIST, history, r->history);
    (void)el_set(r->editor, EL_GETCFN, get_char);
    (void)el_set(r->editor, EL_ADDFN, "paste", "Take a pasted block", take_paste);
    (void)el_set(r->editor, EL_BIND, "\\e[200~", "paste", NULL);
    (void)el_set(r->editor, EL_BIND, "^R", "em-inc-search-prev", NULL);
    return 0;
}

static void say_to_terminal(const struct line_reader *r, const char *text)
{
    if (r->pastes) (void)fputs(text, stdout);
    (void)fflush(stdout);
}

/* What libedit has handlers for is taken while a key is waited for, and never in the middle of a
 * write to the terminal: that would break off, and the rest of what it was to show were lost. */
static void hold_signals(struct line_reader *r)
{
    static const int signals[] = {SIGTSTP, SIGQUIT, SIGHUP, SIGTERM, SIGCONT, SIGWINCH};
    sigset_t set;
    (void)sigemptyset(&set);
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        (void)sigaddset(&set, signals[i]);
    (void)pthread_sigmask(SIG_BLOCK, &set, &r->waiting);
}

static int read_edited(struct line_reader *r, const char *prompt, struct buf *to,
                       enum line_kind *ret, struct errmsg *em)
{
    int n = 0;
    mem_free(r->prompt);
    r->prompt = mem_strdup(prompt);
    hold_signals(r);
    /* Before the prompt, behind which libedit would do it: a ^D that comes between the two is read
     * as a NUL, and lost. */
    (void)el_set(r->editor, EL_PREP_TERM, 1);
    say_to_terminal(r, "\033[?2004h");
    const char *text = el_gets(r->editor, &n);
    say_to_terminal(r, "\033[?2004l");
    (void)pthread_sigmask(SIG_SETMASK, &r->waiting, NULL);
    *ret = r->interrupted ? LINE_INTERRUPTED : text && n > 0 ? LINE_TEXT : LINE_END;
    if (*ret != LINE_TEXT) (void)fputs("\n", stdout);
    if (*ret == LINE_END && n < 0) return err_set(em, ERR_IO, "stdin: %s", strerror(errno));
    if (*ret != LINE_TEXT) return 0;
    return buf_append(to, text, (size_t)n - (text[n - 1] == '\n'));
}

/* ---- from a file ---- */

static int take_rest(struct line_reader *r, size_t n, struct buf *to)
{
    int rc = buf_append(to, r->rest.data, n);
    buf_drop(&r->rest, n < r->rest.len ? n + 1 : n);
    return rc;
}

static int read_plain(struct line_reader *r, struct buf *to, enum line_kind *ret, struct errmsg *em)
{
    char block[BLOCK_BYTES];
    for (;;) {
        const char *end = r->rest.len ? memchr(r->rest.data, '\n', r->rest.len) : NULL;
        *ret = LINE_TEXT;
        if (end) return take_rest(r, (size_t)(end - r->rest.data), to);
        if (r->ended && r->rest.len) return take_rest(r, r->rest.len, to);
        *ret = r->ended ? LINE_END : LINE_INTERRUPTED;
        if (r->ended) return 0;
        if (r->rest.len > r->bytes_max) { /* the rest of it is not worth reading */
            r->ended = r->too_long = true;
            buf_close(&r->rest);
            return 0;
        }
        if (!wait_input(r)) return r->interrupted ? 0 : err_set(em, ERR_IO, "stdin: no waiting");
        ssize_t n = read(STDIN_FILENO, block, sizeof block);
        if (n < 0 && errno != EINTR && errno != EAGAIN)
            return err_set(em, ERR_IO, "stdin: %s", strerror(errno));
        if (n == 0) r->ended = true;
        if (n > 0) (void)buf_append(&r->rest, block, (size_t)n);
    }
}

/* ---- both ---- */

static bool is_text(const char *text, size_t n)
{
    size_t len;
    int32_t c;
    for (size_t i = 0; i < n; i += len)
        if (!text[i] || utf8_decode(text + i, n - i, &len, &c) != UTF8_WHOLE) return false;
    return true;
}

int line_read(struct line_reader *r, const char *prompt, struct buf *to, enum line_kind *ret,
              struct errmsg *em)
{
    size_t before = to->len;
    r->interrupted = r->too_long = false;
    int rc = r->editor ? read_edited(r, prompt, to, ret, em) : read_plain(r, to, ret, em);
    size_t n = to->len - before;
    if (rc == ERR_LIMIT || (rc == 0 && (r->too_long || n > r->bytes_max)))
        return err_set(em, ERR_LIMIT, "a line has more than %zu bytes", r->bytes_max);
    if (rc == 0 && n && !is_text(to->data + before, n))
        return err_set(em, ERR_RANGE, "a line is not UTF-8, or has a NUL");
    return rc;
}

void line_remember(struct line_reader *r, const char *text)
{
    HistEvent event;
    if (r->history) (void)history(r->history, &event, H_ENTER, text);
}

bool line_is_edited(const struct line_reader *r)
{
    return r->editor != NULL;
}

int line_open(int interrupts, size_t bytes_max, struct line_reader **ret, struct errmsg *em)
{
    struct line_reader *r = mem_zalloc(sizeof *r);
    r->interrupts = interrupts;
    r->bytes_max = bytes_max;
    int rc = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) ? open_editor(r, em) : 0;
    if (rc < 0)
        line_close(r);
    else
        *ret = r;
    return rc;
}

void line_close(struct line_reader *r)
{
    if (!r) return;
    if (r->editor) el_end(r->editor);
    if (r->history) history_end(r->history);
    mem_free(r->prompt);
    buf_close(&r->rest);
    mem_free(r);
}
