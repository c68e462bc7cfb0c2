#include "common/engine/cpu.h"

#include <cpuid.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

struct cpu_bits {
    bool avx2, fma, f16c;
};

/* CPUID says what the CPU can; XCR0 says whether the kernel saves the registers. */
static uint64_t xcr0(void)
{
    uint32_t a, d;
    __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return (uint64_t)d << 32 | a;
}

static struct cpu_bits detect(void)
{
    struct cpu_bits r = {0};
    uint32_t a, b, c, d, b7 = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return r;
    bool osxsave = c >> 27 & 1;
    if (!osxsave || (xcr0() & 6) != 6) return r;
    r.fma = c >> 12 & 1;
    r.f16c = c >> 29 & 1;
    uint32_t a7, c7, d7;
    if (__get_cpuid_count(7, 0, &a7, &b7, &c7, &d7)) r.avx2 = b7 >> 5 & 1;
    return r;
}

int cpu_kern(const char *isa, const struct kern **ret_kern, struct errmsg *em)
{
    struct cpu_bits cpu = detect();
    const char *missing = !cpu.avx2 ? "AVX2" : !cpu.fma ? "FMA" : !cpu.f16c ? "F16C" : NULL;
    bool any = !isa || !isa[0];
    if (!any && strcmp(isa, "scalar") == 0) {
        *ret_kern = &kern_scalar;
    } else if (any || strcmp(isa, "avx2") == 0) {
        if (missing && !any)
            return err_set(em, ERR_UNSUPPORTED, "isa avx2: this CPU (or its kernel) lacks %s",
                           missing);
        *ret_kern = missing ? &kern_scalar : &kern_avx2;
    } else if (strcmp(isa, "avx512") == 0 || strcmp(isa, "amx") == 0) {
        return err_set(em, ERR_UNSUPPORTED, "isa %s: this build has no kernels for it", isa);
    } else {
        return err_set(em, ERR_UNSUPPORTED, "isa '%s' is unknown (scalar, avx2)", isa);
    }
    return 0;
}
