/* A process is in one group of each hierarchy: /proc/self/cgroup names it, /proc/self/mountinfo
 * says where the hierarchy is mounted. A limit counts for a group and all below it, so all groups
 * up to the hierarchy's top are looked at. In a container the name in /proc/self/cgroup may begin
 * with the mount's root, which is then cut off, or lie outside of it: then only the mounted folder
 * itself is seen. */
#include "common/base/machine.h"

#include "common/base/hash.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_BYTES 2048
#define LINE_BYTES 8192
#define NO_LIMIT ((uint64_t)1 << 60) /* version 1 writes "none" as a very large number */

static FILE *open_at(const char *root, const char *path)
{
    char full[2 * PATH_BYTES];
    int n = snprintf(full, sizeof full, "%s%s", root, path);
    return n > 0 && (size_t)n < sizeof full ? fopen(full, "re") : NULL;
}

/* The beginning of a file as text. False: it is empty or cannot be read. */
static bool read_text(const char *root, const char *path, char *ret, size_t size)
{
    FILE *f = open_at(root, path);
    size_t n = f ? fread(ret, 1, size - 1, f) : 0;
    ret[n] = 0;
    if (f) (void)fclose(f);
    return n > 0;
}

/* The number after a name at the beginning of a line: "MemAvailable:  12 kB", "inactive_file 34".
 */
static bool read_field(const char *root, const char *path, const char *name, uint64_t *ret)
{
    char line[LINE_BYTES];
    size_t n = strlen(name);
    bool found = false;
    FILE *f = open_at(root, path);
    while (f && !found && fgets(line, sizeof line, f)) {
        if (strncmp(line, name, n) != 0 || (line[n] != ':' && line[n] != ' ')) continue;
        *ret = strtoull(line + n + 1, NULL, 10);
        found = true;
    }
    if (f) (void)fclose(f);
    return found;
}

/* ---- groups ---- */

struct group {
    bool found, v2;
    char dir[PATH_BYTES]; /* as seen from the root */
    size_t top;           /* length of the part of it that is the hierarchy's top */
};

/* Whether a list "a,b,c" has the word. */
static bool has_word(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = list; (at = strstr(at, word)); at += n)
        if ((at == list || at[-1] == ',') && (at[n] == ',' || at[n] == 0)) return true;
    return false;
}

/* The group's name in a controller's hierarchy: in the controller's own, if it has one (version 1),
 * else in the one that all share (version 2). */
static bool find_name(const char *root, const char *controller, bool *ret_v2, char *ret)
{
    char line[LINE_BYTES];
    bool found = false, mine = false;
    FILE *f = open_at(root, "/proc/self/cgroup");
    while (f && !mine && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        char *list = strchr(line, ':'), *name = list ? strchr(list + 1, ':') : NULL;
        if (!name || strlen(name) >= PATH_BYTES) continue;
        *name++ = 0;
        mine = has_word(list + 1, controller);
        if (!mine && list[1]) continue;
        found = true;
        *ret_v2 = !mine;
        (void)snprintf(ret, PATH_BYTES, "%s", name);
    }
    if (f) (void)fclose(f);
    return found;
}

/* Where a hierarchy is mounted, and which of its folders is the mount's root. */
static bool find_mount(const char *root, const char *controller, bool v2, char *ret_top,
                       char *ret_at)
{
    char line[LINE_BYTES], type[32], options[1024];
    bool found = false;
    FILE *f = open_at(root, "/proc/self/mountinfo");
    while (f && !found && fgets(line, sizeof line, f)) {
        const char *rest = strstr(line, " - ");
        if (!rest || sscanf(rest, " - %31s %*s %1023s", type, options) != 2) continue;
        if (strcmp(type, v2 ? "cgroup2" : "cgroup") != 0) continue;
        if (!v2 && !has_word(options, controller)) continue;
        found = sscanf(line, "%*s %*s %*s %1023s %1023s", ret_top, ret_at) == 2;
    }
    if (f) (void)fclose(f);
    return found;
}

static struct group find_group(const char *root, const char *controller)
{
    struct group g = {.found = false};
    char name[PATH_BYTES], top[1024], at[1024];
    if (!find_name(root, controller, &g.v2, name)) return g;
    if (!find_mount(root, controller, g.v2, top, at)) return g;
    size_t n = strcmp(top, "/") == 0 ? 0 : strlen(top);
    bool inside = strncmp(name, top, n) == 0 && (name[n] == '/' || name[n] == 0);
    const char *below = inside && !strstr(name, "/..") ? name + n : "";
    if (strcmp(below, "/") == 0) below = "";
    g.top = strlen(at);
    g.found = snprintf(g.dir, sizeof g.dir, "%s%s", at, below) < (int)sizeof g.dir;
    return g;
}

/* To the group above; false: this was the top. */
static bool go_up(struct group *g)
{
    if (strlen(g->dir) <= g->top) return false;
    *strrchr(g->dir, '/') = 0;
    return true;
}

static bool read_here(const char *root, const struct group *g, const char *file, char *ret,
                      size_t size)
{
    char path[PATH_BYTES + 64];
    (void)snprintf(path, sizeof path, "%s/%s", g->dir, file);
    return read_text(root, path, ret, size);
}

/* NO_LIMIT where the file is missing or says "max". */
static uint64_t number_here(const char *root, const struct group *g, const char *file)
{
    char text[64];
    if (!read_here(root, g, file, text, sizeof text) || text[0] < '0' || text[0] > '9')
        return NO_LIMIT;
    uint64_t n = strtoull(text, NULL, 10);
    return n < NO_LIMIT ? n : NO_LIMIT;
}

static uint64_t stat_here(const char *root, const struct group *g, const char *name)
{
    char path[PATH_BYTES + 64];
    uint64_t n = 0;
    (void)snprintf(path, sizeof path, "%s/memory.stat", g->dir);
    (void)read_field(root, path, name, &n);
    return n;
}

/* ---- memory ---- */

/* Bytes below the limit of one group; NO_LIMIT where it has none. */
static uint64_t left_here(const char *root, const struct group *g)
{
    uint64_t limit = number_here(root, g, g->v2 ? "memory.max" : "memory.limit_in_bytes");
    uint64_t high =
        g->v2 ? number_here(root, g, "memory.high") : NO_LIMIT; /* above it, all is slow */
    if (high < limit) limit = high;
    if (limit == NO_LIMIT) return NO_LIMIT;
    uint64_t used = number_here(root, g, g->v2 ? "memory.current" : "memory.usage_in_bytes");
    uint64_t files = stat_here(root, g, g->v2 ? "inactive_file" : "total_inactive_file") +
                     stat_here(root, g, g->v2 ? "active_file" : "total_active_file");
    if (used == NO_LIMIT) used = 0;
    used = used > files ? used - files : 0;
    return limit > used ? limit - used : 0;
}

/* A group's folder has the same number for all who see it, from inside a container or outside. */
static uint64_t name_here(const char *root, const struct group *g, uint64_t machine)
{
    char path[2 * PATH_BYTES];
    struct stat s = {.st_ino = 0};
    (void)snprintf(path, sizeof path, "%s%s", root, g->dir);
    (void)stat(path, &s);
    uint64_t parts[] = {machine, (uint64_t)s.st_ino};
    uint64_t name = hash_bytes(parts, sizeof parts, 0);
    return name ? name : 1;
}

/* Pages of this process that are no file's. */
static uint64_t own_bytes(const char *root)
{
    char text[128];
    unsigned long long total, resident = 0, files = 0;
    if (!read_text(root, "/proc/self/statm", text, sizeof text)) return 0;
    if (sscanf(text, "%llu %llu %llu", &total, &resident, &files) != 3 || files > resident)
        return 0;
    return (uint64_t)(resident - files) * (uint64_t)sysconf(_SC_PAGESIZE);
}

struct machine_memory machine_memory(const char *root)
{
    struct machine_memory m = {.own = own_bytes(root)};
    char boot[64];
    uint64_t kib;
    if (read_text(root, "/proc/sys/kernel/random/boot_id", boot, sizeof boot) &&
        read_field(root, "/proc/meminfo", "MemAvailable", &kib)) {
        m.machine = hash_bytes(boot, strlen(boot), 0);
        if (m.machine == 0) m.machine = 1;
        m.machine_free = kib * 1024;
    }
    struct group g = find_group(root, "memory");
    for (bool more = g.found; more; more = go_up(&g)) {
        uint64_t left = left_here(root, &g);
        if (left == NO_LIMIT || (m.group && left >= m.group_free)) continue;
        m.group = name_here(root, &g, m.machine);
        m.group_free = left;
    }
    return m;
}

/* ---- processors ---- */

/* Thousandths of a processor that one group may use; NO_LIMIT where it has no quota. */
static uint64_t quota_here(const char *root, const struct group *g)
{
    char text[64];
    unsigned long long quota, period = 0;
    if (g->v2) {
        if (!read_here(root, g, "cpu.max", text, sizeof text) ||
            sscanf(text, "%llu %llu", &quota, &period) != 2)
            return NO_LIMIT;
    } else {
        quota = number_here(root, g, "cpu.cfs_quota_us"); /* -1: none */
        period = number_here(root, g, "cpu.cfs_period_us");
    }
    if (quota >= NO_LIMIT / 1000 || period == 0 || period >= NO_LIMIT) return NO_LIMIT;
    return quota * 1000 / period;
}

unsigned machine_threads(const char *root, unsigned cores)
{
    uint64_t most = (uint64_t)cores * 1000;
    struct group g = find_group(root, "cpu");
    for (bool more = g.found; more; more = go_up(&g)) {
        uint64_t quota = quota_here(root, &g);
        if (quota < most) most = quota;
    }
    return most < 2000 ? 1 : (unsigned)(most / 1000);
}
