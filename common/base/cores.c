#include "common/base/cores.h"

#include <pthread.h>
#include <sched.h>
#include <stddef.h>

static cpu_set_t all; /* written once, before it is read */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void find(void)
{
    CPU_ZERO(&all);
    (void)pthread_getaffinity_np(pthread_self(), sizeof all, &all);
}

unsigned cores_count(void)
{
    (void)pthread_once(&once, find);
    unsigned n = (unsigned)CPU_COUNT(&all);
    return n ? n : 1;
}

int cores_number(unsigned idx)
{
    (void)pthread_once(&once, find);
    for (size_t c = 0; c < CPU_SETSIZE; c++)
        if (CPU_ISSET(c, &all) && idx-- == 0) return (int)c;
    return -1;
}

void cores_stay_on(unsigned idx)
{
    int core = cores_number(idx);
    if (core < 0) return;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((size_t)core, &one);
    (void)pthread_setaffinity_np(pthread_self(), sizeof one, &one);
}

void cores_roam(void)
{
    (void)pthread_once(&once, find);
    if (CPU_COUNT(&all)) (void)pthread_setaffinity_np(pthread_self(), sizeof all, &all);
}
