/* What form an answer is to have, as clients ask for it, to a grammar (grammar.h). An object in
 * JSON with a `type`:
 *
 *   {"type": "text"}                                               any: no grammar
 *   {"type": "json_object"}                                        any JSON object
 *   {"type": "json_schema", "json_schema": {"schema": SCHEMA}}     schema.h says what schemas may
 * say
 *   {"type": "grammar", "grammar": TEXT}                           in GBNF
 *   {"type": "tool_calls", "tools": [...], "name": NAME, "parallel": true}
 *        calls of tools, which are in OpenAI's form: of the one that is named, or of any; several
 *        only where `parallel` says so
 *
 * Pure; any thread. */
#ifndef FLOTILLA_TEXT_FORMAT_H
#define FLOTILLA_TEXT_FORMAT_H

#include "common/base/buf.h"
#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>

#define FORMAT_CALLS_MAX 8u /* of one answer */

/* How a model writes its calls. */
enum format_calls {
    FORMAT_PLAIN,      /* {"name": "f", "arguments": {...}} */
    FORMAT_PARAMETERS, /* {"name": "f", "parameters": {...}}; several apart by ';' */
    FORMAT_TAGGED, /* <tool_call> {"name": "f", "arguments": {...}} </tool_call>, each in lines */
    FORMAT_LIST,   /* [{"name": "f", "arguments": {...}}, ...] */
};

/* The way that a chat template shows to its model. */
enum format_calls format_calls_of(const char *chat_template, size_t bytes);

/* Appends the grammar; nothing: the answer is free. thought: the answer begins within reasoning,
 * which ends with </think>; the form begins behind it. Errors say what is wrong with the format:
 * ERR_FORMAT, ERR_UNSUPPORTED, ERR_RANGE, ERR_LIMIT; ERR_NOMEM. */
int format_compile(const char *json, size_t bytes, enum format_calls calls, bool thought,
                   struct buf *ret, struct errmsg *em);

#endif
