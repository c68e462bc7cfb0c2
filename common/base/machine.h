/* What this machine, and the control groups that this process is in, leave it of memory and of
 * processor time. Reads files below /proc and /sys/fs/cgroup, of both versions of control groups.
 *
 * `root` is a folder that stands for /: "" in service, a made-up tree in tests. What cannot be read
 * counts as unlimited. */
#ifndef FLOTILLA_BASE_MACHINE_H
#define FLOTILLA_BASE_MACHINE_H

#include <stdint.h>

/* Two processes with the same `machine` share machine_free; two with the same `group` share
 * group_free. Neither counts what this process has already. */
struct machine_memory {
    uint64_t machine;      /* names this boot of this machine; 0: unknown, and so is machine_free */
    uint64_t machine_free; /* bytes that can be had without swapping, as the kernel estimates */
    uint64_t group;        /* names the memory group with the least left; 0: none has a limit */
    uint64_t group_free;   /* bytes below its limit; cached files count as free */
    uint64_t own;          /* bytes that this process has in memory, pages of files apart */
};

struct machine_memory machine_memory(const char *root);

/* Bytes that one process may still take; UINT64_MAX: unknown. */
static inline uint64_t machine_free(const struct machine_memory *m)
{
    uint64_t n = m->machine ? m->machine_free : UINT64_MAX;
    return m->group && m->group_free < n ? m->group_free : n;
}

/* How many of `bytes` stay free when this program chooses the size of a KV pool: a quarter (within
 * 32 MiB and 8 GiB), for the cached model file, other programs and what this one needs later. Half
 * of that is enough where a user has named the size, or the pool is there already. */
static inline uint64_t machine_reserve(uint64_t bytes)
{
    const uint64_t least = (uint64_t)32 << 20, most = (uint64_t)8 << 30;
    return bytes / 4 < least ? least : bytes / 4 > most ? most : bytes / 4;
}

/* How many threads can have a processor each: `cores`, or the quota of the process's group in whole
 * processors if that is less; at least 1. More threads would lose time: one that waits for another
 * that is held up spends the quota that both share. */
unsigned machine_threads(const char *root, unsigned cores);

#endif
