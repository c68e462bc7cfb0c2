/* What a part of a test writes to stdout or stderr. */
#ifndef FLOTILLA_TESTS_PRINTED_H
#define FLOTILLA_TESTS_PRINTED_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

struct printed {
    int fd, kept; /* where fd led before */
    FILE *to;
};

/* From here to printed_end what is written to fd, STDOUT_FILENO or STDERR_FILENO, is kept. */
static inline struct printed printed_begin(int fd)
{
    struct printed p = {.fd = fd, .to = tmpfile()};
    (void)fflush(stdout);
    p.kept = dup(fd);
    assert_true(p.to && p.kept >= 0 && dup2(fileno(p.to), fd) >= 0);
    return p;
}

/* As a string, cut to n - 1 bytes. */
static inline void printed_end(struct printed *p, char *ret, size_t n)
{
    (void)fflush(stdout);
    assert_true(dup2(p->kept, p->fd) >= 0);
    (void)close(p->kept);
    rewind(p->to);
    ret[fread(ret, 1, n - 1, p->to)] = 0;
    (void)fclose(p->to);
}

#endif
