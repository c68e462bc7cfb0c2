/* The metrics port: each input is what one connection sends before it stops sending. What comes
 * back, if anything, is HTTP; and a scrape after it is answered in full. */
#include "common/io/http.h"
#include "tests/fuzz/fuzz.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static const char body[] = "flotilla_ready 1\n";
static uint32_t port;

static void text(void *arg, struct buf *out)
{
    (void)arg;
    (void)buf_append(out, body, sizeof body - 1);
}

/* A connection to the server. The system keeps the ports of closed ones for a minute: so that they
 * do not run out, each comes from another of the addresses 127.1.0.0 to 127.1.255.255. libFuzzer's
 * alarm may interrupt it; then another one is made. */
static int dial(void)
{
    static uint32_t count;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (;;) {
        struct sockaddr_in from = {.sin_family = AF_INET};
        from.sin_addr.s_addr = htonl(UINT32_C(127) << 24 | 1 << 16 | (count++ & 0xffff));
        int s = socket(AF_INET, SOCK_STREAM, 0);
        fuzz_check(s >= 0 && bind(s, (struct sockaddr *)&from, sizeof from) == 0);
        if (connect(s, (struct sockaddr *)&at, sizeof at) == 0) return s;
        fuzz_check(errno == EINTR);
        (void)close(s);
    }
}

/* Sends a request, and reads the reply until the server closes; returns its bytes. */
static size_t talk(const void *data, size_t size, char *reply, size_t room)
{
    struct timeval most = {.tv_sec = 20};
    size_t n = 0;
    ssize_t got;
    int s = dial();
    (void)setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    for (size_t sent = 0; sent < size;) {
        ssize_t k = send(s, (const char *)data + sent, size - sent, MSG_NOSIGNAL);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) break; /* it has seen enough and closed */
        sent += (size_t)k;
    }
    (void)shutdown(s, SHUT_WR);
    while (n + 1 < room &&
           ((got = recv(s, reply + n, room - 1 - n, 0)) > 0 || (got < 0 && errno == EINTR)))
        n += got > 0 ? (size_t)got : 0;
    reply[n] = 0;
    (void)close(s);
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char scrape[] = "GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    static struct http *h;
    static char reply[65536];
    static unsigned count;
    struct errmsg em;
    if (!h)
        fuzz_check(
            http_open("127.0.0.1", 0, "/metrics", "text/plain", text, NULL, &h, &port, &em) == 0);
    if (talk(data, size, reply, sizeof reply)) fuzz_check(strncmp(reply, "HTTP/1.", 7) == 0);
    if (count++ % 64) return 0;
    (void)talk(scrape, sizeof scrape - 1, reply, sizeof reply);
    fuzz_check(strncmp(reply, "HTTP/1.1 200", 12) == 0 && strstr(reply, body));
    return 0;
}
