/* Properties and cases of characters, as Python's strings see them. */
#ifndef FLOTILLA_TEXT_JINJA_UNICODE_H
#define FLOTILLA_TEXT_JINJA_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Characters that a case mapping makes of one. */
#define UNICODE_CASE_MAX 3

bool unicode_space(int32_t c);     /* str.isspace, what strip and split take, \s */
bool unicode_printable(int32_t c); /* what repr shows as it is */
bool unicode_alpha(int32_t c);
bool unicode_decimal(int32_t c); /* a digit of some script: of category Nd */
bool unicode_numeric(int32_t c);
bool unicode_word(int32_t c); /* \w */
bool unicode_upper(int32_t c);
bool unicode_lower(int32_t c);
bool unicode_title(int32_t c);
bool unicode_line_end(int32_t c); /* str.splitlines cuts here */
bool unicode_name_start(int32_t c);
bool unicode_name_part(int32_t c);

/* Each returns how many characters it wrote to `to`, which has room for UNICODE_CASE_MAX. */
size_t unicode_to_upper(int32_t c, int32_t *to);
size_t unicode_to_lower(int32_t c, int32_t *to);
size_t unicode_to_title(int32_t c, int32_t *to);

/* Writes the character's UTF-8 and returns how many bytes it has. */
size_t unicode_encode(int32_t c, char to[4]);

#endif
