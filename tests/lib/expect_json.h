/* What a JSON value must be, as the text that is written of it. Included behind cmocka.h. */
#ifndef FLOTILLA_TESTS_EXPECT_JSON_H
#define FLOTILLA_TESTS_EXPECT_JSON_H

#include "common/base/buf.h"
#include "common/text/json.h"

/* Frees j. */
static inline void expect_json(struct json *j, const char *text)
{
    struct buf b = {0};
    json_write(j, &b);
    assert_string_equal(b.data, text);
    buf_close(&b);
    json_free(j);
}

#endif
