#include "common/base/addr.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define SCHEME "tcp://"

/* The text is cut into host and port; what they may be is looked at later. */
struct parts {
    char host[ADDR_HOST_BYTES];
    bool brackets;
    const char *port; /* NULL: none */
    const char *why;  /* what is wrong, or NULL */
};

static void cut(const char *text, struct parts *p)
{
    *p = (struct parts){.why = NULL};
    const char *scheme = strstr(text, "://");
    if (strncmp(text, SCHEME, strlen(SCHEME)) == 0) {
        text += strlen(SCHEME);
    } else if (scheme) {
        p->why = "only tcp:// is served";
        return;
    }
    const char *colon = strchr(text, ':'), *last = strrchr(text, ':'), *end;
    if (*text == '[') {
        end = strchr(++text, ']');
        p->brackets = true;
        if (!end || (end[1] && end[1] != ':')) {
            p->why = "an IPv6 address stands as [ADDRESS] or [ADDRESS]:PORT";
            return;
        }
        p->port = end[1] ? end + 2 : NULL;
    } else {
        /* Two colons and no bracket: an IPv6 address alone. */
        end = colon && colon == last ? colon : text + strlen(text);
        p->port = colon && colon == last ? colon + 1 : NULL;
    }
    size_t n = (size_t)(end - text);
    if (n >= sizeof p->host)
        p->why = "the host is longer than 255 bytes";
    else
        memcpy(p->host, text, n);
}

static bool is_name(const char *s)
{
    for (; *s; s++)
        if (!isalnum((unsigned char)*s) && !strchr("-._", *s)) return false;
    return true;
}

/* Digits and dots only: an address that is wrong, and no name. */
static bool is_numeric(const char *s)
{
    return s[strspn(s, "0123456789.")] == 0;
}

static const char *read_host(const struct parts *p, struct addr *ret)
{
    unsigned char bytes[16];
    memcpy(ret->host, p->host, sizeof ret->host);
    if (!p->host[0]) return "it names no host";
    if (strcmp(p->host, "*") == 0)
        return "'*' is no host: 0.0.0.0 stands for every IPv4 address of this machine, [::] for "
               "IPv6 as well";
    if (inet_pton(AF_INET6, p->host, bytes) == 1) {
        ret->kind = ADDR_V6;
        return NULL;
    }
    if (p->brackets || strchr(p->host, ':')) return "it is no IPv6 address";
    if (inet_pton(AF_INET, p->host, bytes) == 1) {
        ret->kind = ADDR_V4;
        return NULL;
    }
    ret->kind = ADDR_NAME;
    if (is_numeric(p->host)) return "it is no IPv4 address";
    return is_name(p->host) ? NULL : "a host name has letters, digits, '-', '_' and '.'";
}

static const char *read_port(const char *s, struct addr *ret)
{
    uint32_t v = 0;
    size_t n = strlen(s);
    bool right = n > 0 && n <= 5;
    for (size_t i = 0; i < n && right; i++) {
        right = s[i] >= '0' && s[i] <= '9';
        v = v * 10 + (uint32_t)(s[i] - '0');
    }
    if (!right || v > 65535) return "the port is not a number in 0..65535";
    ret->has_port = true;
    ret->port = (uint16_t)v;
    return NULL;
}

static const char *parse(const char *text, struct addr *ret)
{
    struct parts p;
    *ret = (struct addr){.has_port = false};
    cut(text, &p);
    if (!p.why) p.why = read_host(&p, ret);
    if (!p.why && p.port) p.why = read_port(p.port, ret);
    return p.why;
}

int addr_parse(const char *text, struct addr *ret, struct errmsg *em)
{
    const char *why = parse(text, ret);
    return why ? err_set(em, ERR_CONF, "'%.300s': %s", text, why) : 0;
}

int addr_parse_port(const char *text, struct addr *ret, struct errmsg *em)
{
    int rc = addr_parse(text, ret, em);
    if (rc == 0 && (!ret->has_port || ret->port == 0))
        rc = err_set(em, ERR_CONF, "'%.300s' names no port: it is HOST:PORT", text);
    return rc;
}

bool addr_split(const char *text, struct addr *ret)
{
    struct parts p;
    *ret = (struct addr){.has_port = false};
    cut(text, &p);
    if (p.why || (p.host[0] && read_host(&p, ret))) return false;
    if (p.port && strcmp(p.port, "*") == 0)
        ret->has_port = true;
    else if (p.port && read_port(p.port, ret))
        return false;
    return p.host[0] || p.port;
}

void addr_format_host(const struct addr *a, char *ret, size_t size)
{
    bool v6 = a->kind == ADDR_V6;
    (void)snprintf(ret, size, "%s%s%s", v6 ? "[" : "", a->host, v6 ? "]" : "");
}

void addr_format(const struct addr *a, char *ret, size_t size)
{
    char host[ADDR_HOST_BYTES + 2], port[8] = "";
    addr_format_host(a, host, sizeof host);
    if (a->has_port) (void)snprintf(port, sizeof port, ":%u", a->port);
    (void)snprintf(ret, size, SCHEME "%s%s", host, port);
}

bool addr_is_loopback(const char *host)
{
    struct addr a;
    struct in_addr v4;
    struct in6_addr v6;
    if (parse(host, &a)) return false;
    if (a.kind == ADDR_V4)
        return inet_pton(AF_INET, a.host, &v4) == 1 && (ntohl(v4.s_addr) >> 24) == 127;
    if (a.kind == ADDR_V6)
        return inet_pton(AF_INET6, a.host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
    return strcmp(a.host, "localhost") == 0;
}

bool addr_is_any(const char *host)
{
    struct addr a;
    struct in6_addr v6;
    if (parse(host, &a)) return false;
    if (a.kind == ADDR_V4) return strcmp(a.host, "0.0.0.0") == 0;
    return a.kind == ADDR_V6 && inet_pton(AF_INET6, a.host, &v6) == 1 &&
           IN6_IS_ADDR_UNSPECIFIED(&v6);
}
