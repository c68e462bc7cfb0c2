/* The page at /: front.html, put into the program when it is built. */
#ifndef FLOTILLA_GATEWAY_FRONT_H
#define FLOTILLA_GATEWAY_FRONT_H

#include <stddef.h>

extern const unsigned char front_page[];
extern const size_t front_page_bytes;

#endif
