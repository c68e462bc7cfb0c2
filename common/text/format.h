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
 *   {"type": "tool_calls", "tools": [...], "parallel": true, "optional": true, "reasoning": true}
 *        any text, in which whatever begins as a call is a call of one of the tools, behind the
 *        reasoning (between <think> and </think> at its beginning), unless `reasoning` is false:
 *        then all is text. Only where the model's way of calling is FORMAT_TAGGED; others begin as
 *        answers do, and are left free
 *
 * Arguments are valid by their tool's `parameters`. Where calls are optional, a schema that is not
 * supported, or too large together with the others, is an error only of a tool with `strict`:
 * true; the arguments of another are then any object.
 *
 * Pure; any thread. */
#ifndef FLOTILLA_TEXT_FORMAT_H
#define FLOTILLA_TEXT_FORMAT_H

#include "common/base/buf.h"
#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>

#define FORMAT_CALLS_MAX 8u    /* of one answer, where one must be called */
#define FORMAT_BLANKS_MAX 256u /* before the reasoning; behind more, <think> is text */

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
