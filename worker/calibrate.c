/* Kept figures are a file of 64-bit little-endian numbers:
 *
 *   magic | key | n layer | n head | layer bytes | depth | ps of a position |
 *   rows, ns of each point | XXH3 of all before
 *
 * The key is a hash of all that they depend on. It names the file, so that a folder never has more
 * than KEPT_MAX of them. */
#include "worker/calibrate.h"

#include "common/base/hash.h"
#include "common/base/machine.h"
#include "common/engine/cpu.h"
#include "common/engine/measure.h"
#include "common/text/chooser.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAGIC UINT64_C(0x32706c6163746c66) /* "fltcalp2" */
#define KEPT_MAX 64u
#define KEPT_S 86400 /* for a day: what was measured on a busy machine is not for ever */

_Static_assert(MEASURE_POINTS <= LIMIT_SPEED_POINTS, "all points fit a message");

/* ---- keeping ---- */

enum word { W_MAGIC, W_KEY, W_LAYERS, W_HEADS, W_BYTES, W_DEPTH, W_POSITION, W_POINTS };
#define N_WORDS (W_POINTS + 4u * LIMIT_SPEED_POINTS + 1u)

/* The line of /proc/cpuinfo that names the CPU, or "". */
static void cpu_name(char *ret, size_t size)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "re");
    ret[0] = 0;
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "model name", 10) == 0) {
            (void)snprintf(ret, size, "%s", line);
            break;
        }
    if (f) (void)fclose(f);
}

/* Of the model, and of all here that its speed depends on: folders may be on a disk that several
 * machines share. */
static uint64_t key_of(const struct calibrate_options *o)
{
    char cpu[256], text[1024];
    char host[65] = "";
    const struct kern *kern = NULL;
    struct errmsg none;
    (void)cpu_kern(o->isa, &kern, &none);
    cpu_name(cpu, sizeof cpu);
    (void)gethostname(host, sizeof host - 1);
    int n = snprintf(text, sizeof text, "%016" PRIx64 " %" PRIu32 " %u %s %.64s %.255s",
                     o->header_digest, o->kv_type, o->threads, kern ? kern->name : "", host, cpu);
    return hash_bytes(text, (size_t)n, MAGIC);
}

static void name_of(const struct calibrate_options *o, uint64_t key, char *ret, size_t size)
{
    (void)snprintf(ret, size, "%s/%02" PRIu64 ".speed", o->folder, key % KEPT_MAX);
}

static void put_points(const struct msg_speed_point *list, uint64_t *words)
{
    for (uint32_t i = 0; i < LIMIT_SPEED_POINTS; i++) {
        words[2 * i] = list[i].rows;
        words[2 * i + 1] = list[i].ns;
    }
}

static void take_points(const uint64_t *words, struct msg_speed_point *list)
{
    for (uint32_t i = 0; i < LIMIT_SPEED_POINTS; i++)
        list[i] = (struct msg_speed_point){(uint32_t)words[2 * i], words[2 * i + 1]};
}

static uint64_t checksum(const uint64_t *words)
{
    return hash_bytes(words, (N_WORDS - 1) * sizeof *words, MAGIC);
}

static bool find_kept(const struct calibrate_options *o, struct msg_speed *ret)
{
    char name[4096];
    uint64_t words[N_WORDS], key = key_of(o);
    if (!o->folder) return false;
    name_of(o, key, name, sizeof name);
    FILE *f = fopen(name, "rbe");
    if (!f) return false;
    struct stat st;
    bool right = fread(words, sizeof *words, N_WORDS, f) == N_WORDS && fgetc(f) == EOF &&
                 fstat(fileno(f), &st) == 0 && time(NULL) - st.st_mtime < KEPT_S;
    (void)fclose(f);
    if (!right || words[W_MAGIC] != MAGIC || words[W_KEY] != key ||
        words[N_WORDS - 1] != checksum(words) || words[W_LAYERS] == 0 ||
        words[W_LAYERS] > LIMIT_SPEED_POINTS || words[W_HEADS] == 0 ||
        words[W_HEADS] > LIMIT_SPEED_POINTS)
        return false;
    ret->n_layer = (uint32_t)words[W_LAYERS];
    ret->n_head = (uint32_t)words[W_HEADS];
    ret->layer_bytes = words[W_BYTES];
    ret->depth = (uint32_t)words[W_DEPTH];
    ret->position_ps = words[W_POSITION];
    take_points(words + W_POINTS, ret->layer);
    take_points(words + W_POINTS + 2 * LIMIT_SPEED_POINTS, ret->head);
    return true;
}

/* The folder and those above it; what cannot be made is noticed when a file is. */
static void make_folder(const char *folder)
{
    char path[4096];
    if (snprintf(path, sizeof path, "%s/", folder) >= (int)sizeof path) return;
    for (char *at = strchr(path + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = 0;
        (void)mkdir(path, 0700);
        *at = '/';
    }
}

/* Written under another name first, so that no half of one is ever found. */
static void keep(const struct calibrate_options *o, const struct msg_speed *s)
{
    char name[4096], fresh[4096 + 16];
    uint64_t words[N_WORDS] = {[W_MAGIC] = MAGIC,
                               [W_KEY] = key_of(o),
                               [W_LAYERS] = s->n_layer,
                               [W_HEADS] = s->n_head,
                               [W_BYTES] = s->layer_bytes,
                               [W_DEPTH] = s->depth,
                               [W_POSITION] = s->position_ps};
    if (!o->folder) return;
    put_points(s->layer, words + W_POINTS);
    put_points(s->head, words + W_POINTS + 2 * LIMIT_SPEED_POINTS);
    words[N_WORDS - 1] = checksum(words);
    make_folder(o->folder);
    name_of(o, words[W_KEY], name, sizeof name);
    (void)snprintf(fresh, sizeof fresh, "%s.XXXXXX", name);
    int fd = mkstemp(fresh);
    if (fd < 0) return;
    bool whole = write(fd, words, sizeof words) == (ssize_t)sizeof words;
    if (close(fd) != 0 || !whole || rename(fresh, name) != 0) (void)unlink(fresh);
}

/* ---- measuring ---- */

struct calibration {
    const struct calibrate_options *o;
    struct chooser *chooser;
};

static void choose(void *arg, const float *logits)
{
    const struct calibration *c = arg;
    const struct sampling sampling = SAMPLING_PLAIN;
    const struct chooser_ask ask = {.sampling = &sampling, .logits = logits};
    struct chooser_choice choice;
    (void)chooser_choose(c->chooser, &ask, &choice);
}

static bool goes_on(void *arg)
{
    const struct calibration *c = arg;
    return c->o->goes_on(c->o->goes_on_arg);
}

static void put_measure(const struct measure *m, struct msg_speed *ret)
{
    ret->n_layer = m->n_layer;
    ret->n_head = m->n_head;
    ret->layer_bytes = m->layer_bytes;
    ret->depth = m->depth;
    ret->position_ps = m->position_ps;
    for (uint32_t i = 0; i < m->n_layer; i++)
        ret->layer[i] = (struct msg_speed_point){m->layer[i].rows, m->layer[i].ns};
    for (uint32_t i = 0; i < m->n_head; i++)
        ret->head[i] = (struct msg_speed_point){m->head[i].rows, m->head[i].ns};
}

static int measure_here(const struct calibrate_options *o, const struct weights *w,
                        struct msg_speed *ret, struct errmsg *em)
{
    struct calibration c = {.o = o};
    struct arch_dims dims;
    struct measure m;
    struct machine_memory memory = machine_memory("");
    uint64_t room = machine_free(&memory);
    if (o->kv_type >= KV_N_TYPES)
        return err_set(em, ERR_UNSUPPORTED, "KV type %" PRIu32 " is unknown", o->kv_type);
    int rc = arch_read(w, &dims, em);
    if (rc == 0) rc = chooser_open(dims.vocab, &c.chooser, em);
    const struct measure_options options = {.weights = w,
                                            .kv = (enum kv_type)o->kv_type,
                                            .threads = o->threads,
                                            .isa = o->isa,
                                            .room_bytes = room ? room : 1, /* 0 would mean any */
                                            .choose = choose,
                                            .goes_on = goes_on,
                                            .arg = &c,
                                            .moves = o->moves};
    if (rc == 0) rc = measure_model(&options, &m, em);
    if (rc == 0) put_measure(&m, ret);
    chooser_close(c.chooser);
    return rc;
}

int calibrate(const struct calibrate_options *o, struct msg_speed *ret, struct errmsg *em)
{
    struct weights *w;
    struct msg_speed s = {.header_digest = o->header_digest, .kv_type = o->kv_type};
    int rc = weights_open(o->path, &w, em);
    if (rc < 0) return rc;
    if (weights_digest(w) != o->header_digest)
        rc = err_set(em, ERR_FORMAT, "%s is not the coordinator's model", o->path);
    if (rc == 0 && !find_kept(o, &s)) {
        rc = measure_here(o, w, &s, em);
        if (rc == 0) keep(o, &s);
    }
    weights_close(w);
    if (rc == 0) *ret = s;
    return rc;
}
