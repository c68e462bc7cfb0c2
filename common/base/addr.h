/* Host names in endpoints. */
#ifndef FLOTILLA_BASE_ADDR_H
#define FLOTILLA_BASE_ADDR_H

#include <arpa/inet.h>
#include <stdbool.h>
#include <string.h>

/* Whether a host is this machine's loopback: 127.x.y.z, ::1 or localhost, with or without "tcp://"
 * before and ":PORT" behind it. A name that only begins like one is not. */
static inline bool addr_is_loopback(const char *host)
{
    char name[64];
    struct in_addr v4;
    if (strncmp(host, "tcp://", 6) == 0) host += 6;
    if (strcmp(host, "::1") == 0 || strncmp(host, "[::1]", 5) == 0) return true;
    size_t n = strcspn(host, ":");
    if (n >= sizeof name) return false;
    memcpy(name, host, n);
    name[n] = 0;
    return strcmp(name, "localhost") == 0 ||
           (inet_pton(AF_INET, name, &v4) == 1 && (ntohl(v4.s_addr) >> 24) == 127);
}

#endif
