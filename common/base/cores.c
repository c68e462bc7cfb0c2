#include "common/base/cores.h"

#include "common/base/mem.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define CORES_MAX 65536u /* eight times the most that Linux supports today */

/* cpu_set_t ends at 1,024 cores; this is the same with more words. */
struct set {
    unsigned long words[CORES_MAX / (8 * sizeof(unsigned long))];
};

/* Written once, before they are read. The kernel refuses a set with fewer bits than it has cores,
 * so that the size is found by trying. */
static struct set all;
static size_t n_bytes;
static unsigned n_cores;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static int *claims; /* a socket for each core, while they are claimed; else NULL */

static cpu_set_t *bits(struct set *s)
{
    return (cpu_set_t *)(void *)s->words;
}

static void find(void)
{
    int rc = EINVAL;
    for (size_t n = sizeof(cpu_set_t); rc == EINVAL && n <= sizeof all; n *= 2) {
        rc = pthread_getaffinity_np(pthread_self(), n, bits(&all));
        if (rc == 0) n_bytes = n;
    }
    if (rc == 0) n_cores = (unsigned)CPU_COUNT_S(n_bytes, bits(&all));
}

unsigned cores_count(void)
{
    (void)pthread_once(&once, find);
    return n_cores ? n_cores : 1;
}

int cores_number(unsigned idx)
{
    (void)pthread_once(&once, find);
    for (size_t c = 0; c < n_bytes * 8; c++)
        if (CPU_ISSET_S(c, n_bytes, bits(&all)) && idx-- == 0) return (int)c;
    return -1;
}

void cores_stay_on(unsigned idx)
{
    struct set one = {0}; /* a pool pins its threads where nothing may be allocated */
    int core = cores_number(idx);
    if (core < 0) return;
    CPU_SET_S((size_t)core, n_bytes, bits(&one));
    (void)pthread_setaffinity_np(pthread_self(), n_bytes, bits(&one));
}

void cores_roam(void)
{
    (void)pthread_once(&once, find);
    if (n_cores) (void)pthread_setaffinity_np(pthread_self(), n_bytes, bits(&all));
}

/* The socket, or -1. Its name lies in no file system and goes with the process. */
static int claim_one(int core)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int n = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "flotilla-core-%d", core);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    if (bind(fd, (const struct sockaddr *)(const void *)&name, size) == 0) return fd;
    (void)close(fd);
    return -1;
}

bool cores_claim(void)
{
    unsigned n = cores_count();
    if (claims) return false;
    claims = mem_alloc(n * sizeof *claims);
    for (unsigned i = 0; i < n; i++) claims[i] = -1;
    for (unsigned i = 0; i < n; i++) {
        int core = cores_number(i);
        claims[i] = core < 0 ? -1 : claim_one(core);
        if (claims[i] >= 0) continue;
        cores_release();
        return false;
    }
    return true;
}

void cores_release(void)
{
    for (unsigned i = 0; claims && i < cores_count(); i++)
        if (claims[i] >= 0) (void)close(claims[i]);
    mem_free(claims);
    claims = NULL;
}
