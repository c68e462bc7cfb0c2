#include "common/base/log.h"

#include "common/base/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct line {
    uint64_t lost_before; /* lines that found the queue full since the line before this one */
    size_t n;
    char text[LOG_LINE_BYTES];
};

/* One output. The queue is a ring; `lock` guards all but `fd` and `running`, which are set before
 * the thread starts. */
struct output {
    int fd;
    bool running;
    pthread_mutex_t lock;
    pthread_cond_t filled, emptied;
    uint32_t first, n; /* the first line stays in the ring while it is written */
    uint64_t lost;     /* since the last line that found room */
    struct line lines[LOG_LINES];
};

static struct output outputs[] = {
    {.fd = STDOUT_FILENO, .lock = PTHREAD_MUTEX_INITIALIZER},
    {.fd = STDERR_FILENO, .lock = PTHREAD_MUTEX_INITIALIZER},
};
#define TO_STDOUT (&outputs[0])
#define TO_STDERR (&outputs[1])

static const char *program = "flotilla";

void log_program(const char *name)
{
    program = name;
}

/* False: the output failed, and what is left of the text is lost. */
static bool write_all(int fd, const char *text, size_t n)
{
    while (n) {
        ssize_t done = write(fd, text, n);
        if (done >= 0) {
            text += done;
            n -= (size_t)done;
        } else if (errno == EAGAIN) { /* another process made the shared pipe non-blocking */
            struct pollfd p = {.fd = fd, .events = POLLOUT};
            (void)poll(&p, 1, -1);
        } else if (errno != EINTR) {
            return false;
        }
    }
    return true;
}

static size_t put_stamp(char *to, size_t size, const char *level)
{
    char date[32];
    struct timespec now;
    struct tm tm;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)gmtime_r(&now.tv_sec, &tm);
    (void)strftime(date, sizeof date, "%Y-%m-%d %H:%M:%S", &tm);
    int n = snprintf(to, size, "%s.%03ld %s %.64s: ", date, now.tv_nsec / 1000000, level, program);
    return n > 0 ? (size_t)n : 0;
}

/* Appends `from` with control characters made visible, and a newline. `to` holds LOG_LINE_BYTES. */
static size_t put_text(char *to, size_t at, const char *from)
{
    static const char hex[] = "0123456789abcdef";
    for (; *from && at < LOG_LINE_BYTES - 5; from++) {
        unsigned char c = (unsigned char)*from;
        if (c >= 0x20 && c != 0x7f) {
            to[at++] = *from;
        } else {
            const char escape[] = {'\\', 'x', hex[c >> 4], hex[c & 15]};
            memcpy(to + at, escape, sizeof escape);
            at += sizeof escape;
        }
    }
    to[at++] = '\n';
    return at;
}

/* ---- writers ---- */

/* Lines on stdout are for scripts, so that what was dropped there is told in the log. */
static bool tell_lost(const struct output *o, uint64_t lost)
{
    char text[192];
    if (o == TO_STDOUT) {
        log_warn("%" PRIu64 " lines dropped: nobody reads stdout", lost);
        return true;
    }
    size_t at = put_stamp(text, sizeof text, "warn");
    int n = snprintf(text + at, sizeof text - at,
                     "%" PRIu64 " lines dropped: this log took none for a while\n", lost);
    return write_all(o->fd, text, at + (size_t)n);
}

/* *lost counts what was dropped and is not told yet. */
static bool write_line(const struct output *o, const struct line *l, uint64_t *lost)
{
    *lost += l->lost_before;
    if (*lost && !tell_lost(o, *lost)) return false;
    *lost = 0;
    return write_all(o->fd, l->text, l->n);
}

static void *writer_main(void *arg)
{
    struct output *o = arg;
    uint64_t failed = 0; /* lines that could not be written */
    (void)pthread_mutex_lock(&o->lock);
    for (;;) {
        while (o->n == 0 && o->lost == 0) {
            (void)pthread_cond_broadcast(&o->emptied);
            (void)pthread_cond_wait(&o->filled, &o->lock);
        }
        struct line *l = o->n ? &o->lines[o->first] : NULL;
        if (!l) { /* lines were dropped, and none came after them */
            failed += o->lost;
            o->lost = 0;
        }
        (void)pthread_mutex_unlock(&o->lock);
        if (l && !write_line(o, l, &failed)) failed++;
        if (!l && tell_lost(o, failed)) failed = 0;
        (void)pthread_mutex_lock(&o->lock);
        if (l) {
            o->first = (o->first + 1) % LOG_LINES;
            o->n--;
        }
    }
    return NULL;
}

/* The writer blocks all signals: they are for the threads that wait for them. */
static void start_writer(struct output *o)
{
    pthread_t thread;
    pthread_condattr_t attr;
    sigset_t all, before;
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&o->filled, &attr);
    (void)pthread_cond_init(&o->emptied, &attr);
    (void)pthread_condattr_destroy(&attr);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    o->running = pthread_create(&thread, NULL, writer_main, o) == 0;
    if (o->running) (void)pthread_detach(thread);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void log_open(void)
{
    start_writer(TO_STDOUT);
    start_writer(TO_STDERR);
}

void log_close(void)
{
    uint64_t end = clock_ns() + LOG_CLOSE_MS * NS_PER_MS;
    struct timespec until = {(time_t)(end / NS_PER_S), (long)(end % NS_PER_S)};
    for (size_t i = 0; i < sizeof outputs / sizeof outputs[0]; i++) {
        struct output *o = &outputs[i];
        if (!o->running) continue;
        (void)pthread_mutex_lock(&o->lock);
        while (o->n || o->lost)
            if (pthread_cond_timedwait(&o->emptied, &o->lock, &until) != 0) break;
        (void)pthread_mutex_unlock(&o->lock);
    }
}

/* ---- lines ---- */

static void put(struct output *o, const char *level, const char *format, va_list args)
{
    char text[LOG_LINE_BYTES], line[LOG_LINE_BYTES];
    (void)vsnprintf(text, sizeof text, format, args);
    size_t n = put_text(line, level ? put_stamp(line, sizeof line, level) : 0, text);
    if (!o->running) {
        (void)write_all(o->fd, line, n);
        return;
    }
    (void)pthread_mutex_lock(&o->lock);
    if (o->n == LOG_LINES) {
        o->lost++;
    } else {
        struct line *l = &o->lines[(o->first + o->n++) % LOG_LINES];
        l->lost_before = o->lost;
        l->n = n;
        memcpy(l->text, line, n);
        o->lost = 0;
        (void)pthread_cond_signal(&o->filled);
    }
    (void)pthread_mutex_unlock(&o->lock);
}

void log_info(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    put(TO_STDERR, "info", format, args);
    va_end(args);
}

void log_warn(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    put(TO_STDERR, "warn", format, args);
    va_end(args);
}

void log_error(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    put(TO_STDERR, "error", format, args);
    va_end(args);
}

void log_text(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    put(TO_STDERR, NULL, format, args);
    va_end(args);
}

void log_stdout(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    put(TO_STDOUT, NULL, format, args);
    va_end(args);
}
