/* Log lines of programs (libraries do not log): "DATE TIME LEVEL program: text" on stderr, the time
 * in UTC, and lines for scripts on stdout.
 *
 * Before log_open a line is written by the caller, who waits for the reader of stderr. After it the
 * caller never waits: lines go into two queues of LOG_LINES each, one for stdout and one for
 * stderr, and a thread behind each queue writes them. What finds the queue full, or cannot be
 * written, is dropped; as soon as the output works again a line says how many there were. Any
 * thread may log.
 *
 * A control character in a line (from a file's name or a peer's message) is written as \xHH, so
 * that one call is one line. */
#ifndef FLOTILLA_BASE_LOG_H
#define FLOTILLA_BASE_LOG_H

#define LOG_LINES 256
#define LOG_LINE_BYTES 1400 /* a longer line is cut */
#define LOG_CLOSE_MS 500

/* Set once at the start; borrowed. */
void log_program(const char *name);
/* Starts the two writers. Once, and after any fork that does not exec. Where a thread cannot be
 * had, lines go on being written by the caller. */
void log_open(void);
/* Waits until what is queued has been written, at most LOG_CLOSE_MS. */
void log_close(void);

void log_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Something was lost that comes back by itself: a worker, a generation. */
void log_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A line without date, level and program, on stderr or on stdout. */
void log_text(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_stdout(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
