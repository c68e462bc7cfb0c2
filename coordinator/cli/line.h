/* Lines that a person types at a terminal, with editing and a history, or that come from a file or
 * a pipe. The only module that knows libedit. One thread; one reader in a process, since there is
 * one terminal. */
#ifndef FLOTILLA_CLI_LINE_H
#define FLOTILLA_CLI_LINE_H

#include "common/base/buf.h"
#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>

struct line_reader;

enum line_kind {
    LINE_TEXT,
    LINE_END,         /* of the file; at a terminal ^D */
    LINE_INTERRUPTED, /* ^C: what was typed is dropped */
};

/* interrupts: a signalfd for SIGINT, which is blocked; borrowed. bytes_max: of a line. ERR_NOMEM.
 */
int line_open(int interrupts, size_t bytes_max, struct line_reader **ret, struct errmsg *em);
/* NULL is allowed. */
void line_close(struct line_reader *r);
/* stdin and stdout are one: lines are edited, and prompts shown. */
bool line_is_edited(const struct line_reader *r);

/* Appends the next line, without its newline; a block that is pasted at a terminal is one line with
 * newlines in it. ERR_LIMIT: it is too long, ERR_RANGE: it is no text; the next one can be read
 * after both. ERR_IO. */
int line_read(struct line_reader *r, const char *prompt, struct buf *to, enum line_kind *ret,
              struct errmsg *em);
/* For the history. */
void line_remember(struct line_reader *r, const char *text);

#endif
