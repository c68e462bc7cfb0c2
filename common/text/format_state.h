/* What the parts of `format` share: format.c (which format it is) and format_calls.c (calls of
 * tools, and reasoning). */
#ifndef FLOTILLA_TEXT_FORMAT_STATE_H
#define FLOTILLA_TEXT_FORMAT_STATE_H

#include "common/text/format.h"
#include "common/text/schema_state.h"

/* Which tools' arguments are held to their schemas; those of others are any object. Strict tools'
 * always are. */
enum format_hold {
    FORMAT_HOLD_ALL,
    FORMAT_HOLD_POSSIBLE, /* whose schemas are supported */
    FORMAT_HOLD_STRICT,
};

struct format_builder {
    struct grammar_tree *t;
    struct schema *schema;
    enum format_calls calls;
    enum format_hold hold;
    struct errmsg *em;
};

/* The string at `key`, borrowed from the object; NULL: there is none. */
const char *format__string(const struct json *object, const char *key, size_t *ret_n);

/* The whole answer where a tool must be called, without what may stand before it; or, where calls
 * are optional, all of it. */
int format__calls(struct format_builder *b, const struct json *format, bool open_thought,
                  gnode *ret);
/* Whether calls of tools may be left out. */
bool format__is_optional(const struct json *format);
/* Any text up to </think>, line ends, and then this. */
gnode format__behind_thought(struct format_builder *b, gnode then);

#endif
