#include "common/base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <time.h>

static const char *program = "flotilla";

void log_program(const char *name)
{
    program = name;
}

/* One write a line, so that lines of several processes do not mix. */
static void line(const char *level, const char *format, va_list args)
{
    char text[1024], stamp[32];
    struct timespec now;
    struct tm tm;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)gmtime_r(&now.tv_sec, &tm);
    (void)strftime(stamp, sizeof stamp, "%H:%M:%S", &tm);
    (void)vsnprintf(text, sizeof text, format, args);
    (void)fprintf(stderr, "%s.%03ld %s %s: %s\n", stamp, now.tv_nsec / 1000000, level, program,
                  text);
}

void log_info(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    line("info", format, args);
    va_end(args);
}

void log_error(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    line("error", format, args);
    va_end(args);
}
