/* What is left of memory and processors, read from folders that look like /proc and /sys/fs/cgroup
 * of several machines. */
#include "common/base/machine.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define GIB ((uint64_t)1 << 30)
#define MIB ((uint64_t)1 << 20)

static char root[64];

static int make_root(void **state)
{
    (void)state;
    (void)snprintf(root, sizeof root, "/tmp/flotilla-machine-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    (void)state;
    char command[128];
    (void)snprintf(command, sizeof command, "rm -r %s", root);
    return system(command);
}

/* Writes a file below the root, with the folders that it lies in. */
static void put(const char *path, const char *text)
{
    char full[256];
    (void)snprintf(full, sizeof full, "%s%s", root, path);
    for (char *at = full + strlen(root) + 1; (at = strchr(at, '/')); *at++ = '/') {
        *at = 0;
        if (mkdir(full, 0755) != 0 && errno != EEXIST) fail_msg("%s", full);
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void put_machine(const char *boot, const char *kib)
{
    char text[256];
    put("/proc/sys/kernel/random/boot_id", boot);
    (void)snprintf(text, sizeof text,
                   "MemTotal:       16000000 kB\nMemFree: 1 kB\nMemAvailable:   %s kB\n", kib);
    put("/proc/meminfo", text);
}

static void test_nothing_to_read(void **state)
{
    (void)state;
    struct machine_memory m = machine_memory(root);
    assert_true(m.machine == 0 && m.group == 0 && m.own == 0);
    assert_true(machine_free(&m) == UINT64_MAX);
    assert_int_equal(machine_threads(root, 6), 6);
}

static void test_no_groups(void **state)
{
    (void)state;
    put_machine("one\n", "8388608");
    put("/proc/self/statm", "5000 300 100 1 0 200 0\n");
    struct machine_memory m = machine_memory(root), again = machine_memory(root);
    assert_true(m.machine != 0 && m.machine == again.machine && m.group == 0);
    assert_true(m.machine_free == 8 * GIB && machine_free(&m) == 8 * GIB);
    assert_true(m.own == 200 * (uint64_t)sysconf(_SC_PAGESIZE));
    put_machine("two\n", "8388608");
    assert_true(machine_memory(root).machine != m.machine);
}

/* The limit of a group above counts where it leaves less than the group's own. */
static void test_version_2(void **state)
{
    (void)state;
    put_machine("one\n", "8388608");
    put("/proc/self/cgroup", "0::/pods/a\n");
    put("/proc/self/mountinfo",
        "22 1 8:1 / / rw - ext4 /dev/root rw\n"
        "30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");
    put("/sys/fs/cgroup/pods/a/memory.max", "1073741824\n");
    put("/sys/fs/cgroup/pods/a/memory.high", "max\n");
    put("/sys/fs/cgroup/pods/a/memory.current", "629145600\n");
    put("/sys/fs/cgroup/pods/a/memory.stat",
        "anon 100\nfile 5\ninactive_file 104857600\nactive_file 10485760\n");
    put("/sys/fs/cgroup/pods/memory.max", "max\n");
    struct machine_memory m = machine_memory(root);
    assert_true(m.group != 0 && m.group != m.machine);
    assert_true(m.group_free == 1024 * MIB - (600 - 110) * MIB);
    assert_true(machine_free(&m) == m.group_free && m.machine_free == 8 * GIB);
    uint64_t leaf = m.group;

    put("/sys/fs/cgroup/pods/a/memory.high", "943718400\n"); /* 900 MiB: slowed down above */
    assert_true(machine_memory(root).group_free == 900 * MIB - 490 * MIB);
    put("/sys/fs/cgroup/pods/memory.max", "2147483648\n");
    put("/sys/fs/cgroup/pods/memory.current", "2040109466\n");
    m = machine_memory(root);
    assert_true(m.group_free == 2147483648u - 2040109466u && m.group != leaf);
    /* The limit may be set below what is used already. */
    put("/sys/fs/cgroup/pods/memory.current", "3000000000\n");
    assert_true(machine_memory(root).group_free == 0);
}

/* Each controller has a hierarchy of its own, of which a container sees the part below its own
 * group. */
static void test_version_1(void **state)
{
    (void)state;
    put_machine("one\n", "8388608");
    put("/proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/docker/0a1b/sub\n0::/\n");
    put("/proc/self/mountinfo",
        "31 22 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
        "32 22 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "33 22 0:29 /docker/0a1b /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
    put("/sys/fs/cgroup/memory/sub/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n");
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "209715200\n");
    put("/sys/fs/cgroup/memory/memory.stat",
        "inactive_file 1\ntotal_inactive_file 52428800\ntotal_active_file 52428800\n");
    struct machine_memory m = machine_memory(root);
    assert_true(m.group_free == 412 * MIB);
    /* A group outside of what is mounted: only the mount's own folder can be read. */
    put("/proc/self/cgroup", "4:memory:/../other\n");
    struct machine_memory top = machine_memory(root);
    assert_true(top.group_free == 412 * MIB && top.group == m.group);
}

static void expect_threads(const char *max, unsigned cores, unsigned want)
{
    put("/sys/fs/cgroup/a/cpu.max", max);
    unsigned got = machine_threads(root, cores);
    if (got != want) fail_msg("%s of %u cores: %u threads, not %u", max, cores, got, want);
}

static void test_processors(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "0::/a\n");
    put("/proc/self/mountinfo", "30 22 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    expect_threads("max 100000\n", 8, 8);
    expect_threads("20000 100000\n", 2, 1);
    expect_threads("199999 100000\n", 8, 1);
    expect_threads("200000 100000\n", 8, 2);
    expect_threads("750000 100000\n", 8, 7);
    expect_threads("6400000 100000\n", 8, 8);
    put("/sys/fs/cgroup/cpu.max", "300000 100000\n"); /* the group above */
    expect_threads("max 100000\n", 8, 3);
    put("/proc/self/cgroup", "3:cpuacct,cpu:/x\n");
    put("/proc/self/mountinfo",
        "30 22 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpuacct,cpu\n");
    put("/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n");
    assert_int_equal(machine_threads(root, 8), 8);
    put("/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "400000\n");
    assert_int_equal(machine_threads(root, 8), 4);
}

static void test_reserve(void **state)
{
    (void)state;
    assert_true(machine_reserve(0) == 32 * MIB && machine_reserve(1 * GIB) == 256 * MIB);
    assert_true(machine_reserve(24 * GIB) == 6 * GIB && machine_reserve(512 * GIB) == 8 * GIB);
}

#define IN_ROOT(test) cmocka_unit_test_setup_teardown(test, make_root, remove_root)

int main(void)
{
    const struct CMUnitTest tests[] = {IN_ROOT(test_nothing_to_read), IN_ROOT(test_no_groups),
                                       IN_ROOT(test_version_2),       IN_ROOT(test_version_1),
                                       IN_ROOT(test_processors),      IN_ROOT(test_reserve)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
