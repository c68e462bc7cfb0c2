/* Log lines of programs (libraries do not log): "TIME LEVEL program: text" on stderr. */
#ifndef FLOTILLA_BASE_LOG_H
#define FLOTILLA_BASE_LOG_H

/* Set once at the start; borrowed. */
void log_program(const char *name);

void log_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
