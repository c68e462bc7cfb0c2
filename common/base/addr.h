/* Host names in endpoints. */
#ifndef FLOTILLA_BASE_ADDR_H
#define FLOTILLA_BASE_ADDR_H

#include <stdbool.h>
#include <string.h>

/* Whether a host is this machine's loopback; a scheme "tcp://" before it is skipped. */
static inline bool addr_is_loopback(const char *host)
{
    if (strncmp(host, "tcp://", 6) == 0) host += 6;
    return strncmp(host, "127.", 4) == 0 || strncmp(host, "localhost", 9) == 0 ||
           strncmp(host, "::1", 3) == 0 || strncmp(host, "[::1]", 5) == 0;
}

#endif
