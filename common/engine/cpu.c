#include "common/engine/cpu.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Levels that other builds have, or that are planned: known by name. */
static const char *const known[] = {"avx2", "avx512", "amx"};

#define N_KNOWN (sizeof known / sizeof known[0])

#if defined(__x86_64__)

#include <cpuid.h>

/* CPUID says what the CPU can; XCR0 says whether the kernel saves the registers. */
static uint64_t xcr0(void)
{
    uint32_t a, d;
    __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return (uint64_t)d << 32 | a;
}

#define XCR0_AVX 0x06u    /* SSE and AVX state */
#define XCR0_AVX512 0xe6u /* and mask registers, upper halves, registers 16..31 */

enum leaf { LEAF1_C, LEAF7_B, LEAF7_C, N_LEAVES };

struct cpu {
    uint32_t bits[N_LEAVES];
    uint64_t xcr0; /* 0: the kernel does not use xsave */
};

struct feature {
    const char *name;
    enum leaf leaf;
    unsigned bit;
};

static const struct feature avx2_needs[] = {
    {"FMA", LEAF1_C, 12}, {"F16C", LEAF1_C, 29}, {"AVX2", LEAF7_B, 5}, {NULL, N_LEAVES, 0}};
static const struct feature avx512_needs[] = {
    {"AVX512F", LEAF7_B, 16},  {"AVX512DQ", LEAF7_B, 17},    {"AVX512BW", LEAF7_B, 30},
    {"AVX512VL", LEAF7_B, 31}, {"AVX512_VNNI", LEAF7_C, 11}, {NULL, N_LEAVES, 0}};

/* From the best down: the first that the CPU can run is the one that it should. */
static const struct level {
    const struct kern *kern;
    uint64_t xcr0;
    const struct feature *needs[2];
} levels[] = {
    {&kern_avx512, XCR0_AVX512, {avx2_needs, avx512_needs}},
    {&kern_avx2, XCR0_AVX, {avx2_needs, NULL}},
    {&kern_scalar, 0, {NULL, NULL}},
};

static struct cpu detect(void)
{
    struct cpu r = {0};
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return r;
    r.bits[LEAF1_C] = c;
    if (c >> 27 & 1) r.xcr0 = xcr0();
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        r.bits[LEAF7_B] = b;
        r.bits[LEAF7_C] = c;
    }
    return r;
}

/* What the level needs and the CPU (or its kernel) lacks; NULL: nothing. */
static const char *missing(const struct level *l)
{
    struct cpu cpu = detect();
    for (int i = 0; i < 2; i++)
        for (const struct feature *f = l->needs[i]; f && f->name; f++)
            if (!(cpu.bits[f->leaf] >> f->bit & 1)) return f->name;
    return (cpu.xcr0 & l->xcr0) == l->xcr0 ? NULL : "the kernel's support of the registers";
}

#else

/* No vector level is written for this instruction set yet. */
static const struct level {
    const struct kern *kern;
} levels[] = {{&kern_scalar}};

static const char *missing(const struct level *l)
{
    (void)l;
    return NULL;
}

#endif

#define N_LEVELS (sizeof levels / sizeof levels[0])

static int refuse(const char *isa, struct errmsg *em)
{
    for (size_t i = 0; i < N_KNOWN; i++)
        if (strcmp(isa, known[i]) == 0)
            return err_set(em, ERR_UNSUPPORTED, "isa %s: this build has no kernels for it", isa);
    return err_set(em, ERR_UNSUPPORTED, "isa '%s' is unknown (scalar, avx2, avx512)", isa);
}

int cpu_kern(const char *isa, const struct kern **ret_kern, struct errmsg *em)
{
    bool any = !isa || !isa[0];
    for (size_t i = 0; i < N_LEVELS; i++) {
        if (!any && strcmp(isa, levels[i].kern->name) != 0) continue;
        const char *lacks = missing(&levels[i]);
        if (lacks && any) continue;
        if (lacks) return err_set(em, ERR_UNSUPPORTED, "isa %s: this CPU lacks %s", isa, lacks);
        *ret_kern = levels[i].kern;
        return 0;
    }
    return refuse(isa, em);
}
