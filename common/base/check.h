/* CHECK: promises that this code makes to itself.
 *
 * CHECK(expression) is on in every build. When the expression is false it writes file, line,
 * function, expression and a stack trace to stderr and aborts the process: state that contradicts
 * itself must not be served from. It is never for what comes from outside (files, messages,
 * configuration, memory that may run out): that gets an error. The expression has no side effect
 * that anybody needs. */
#ifndef FLOTILLA_COMMON_BASE_CHECK_H
#define FLOTILLA_COMMON_BASE_CHECK_H

#define CHECK(expression)                                                                          \
    (__builtin_expect(!(expression), 0) ? check_failed(__FILE__, __LINE__, __func__, #expression)  \
                                        : (void)0)

/* May be called from any thread. */
_Noreturn void check_failed(const char *file, int line, const char *function,
                            const char *expression) __attribute__((cold));

#endif
