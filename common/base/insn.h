/* The few instructions that C has no words for, once for each instruction set that the tree is
 * built for. Intrinsics stand here and in the engine's kernel files, nowhere else. A prefetch needs
 * no place of its own: __builtin_prefetch(p, 0, 3) brings a line to L1, (p, 0, 2) to L2. */
#ifndef FLOTILLA_BASE_INSN_H
#define FLOTILLA_BASE_INSN_H

#include <stdbool.h>
#include <stdint.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#elif !defined(__aarch64__)
#error "flotilla is built for x86-64 and AArch64: insn.h needs a branch for this instruction set"
#endif

/* Tells the core that this thread spins, which saves power and leaves more to a sibling thread. */
static inline void insn_pause(void)
{
#if defined(__x86_64__)
    _mm_pause();
#else
    __asm__ volatile("yield");
#endif
}

/* Marks a function NAME_fma that is compiled for CPUs with AVX2 and its fused multiply-add, and
 * called only where insn_has_fma() says that this is one: vectors of 32 bytes, and fmaf as one
 * instruction where C alone calls the library. */
#if defined(__x86_64__)
#define INSN_FMA __attribute__((target("avx2,fma")))
#else
#define INSN_FMA
#endif

static inline bool insn_has_fma(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return true;
#endif
}

/* The calling thread's control register of floating-point arithmetic (MXCSR, FPCR), and the value
 * with which it rounds to nearest even, keeps denormals and traps nothing. */
#if defined(__x86_64__)
#define INSN_FLOAT_MODE UINT64_C(0x1F80)
#define INSN_FLOAT_MODE_BITS UINT64_C(0xFFC0) /* MXCSR's other bits are exception flags */
#else
#define INSN_FLOAT_MODE UINT64_C(0)
#define INSN_FLOAT_MODE_BITS UINT64_C(0xFFFFFFFF)
#endif

static inline uint64_t insn_float_mode(void)
{
    uint64_t mode;
#if defined(__x86_64__)
    mode = _mm_getcsr();
#else
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
#endif
    return mode & INSN_FLOAT_MODE_BITS;
}

static inline void insn_set_float_mode(uint64_t mode)
{
#if defined(__x86_64__)
    _mm_setcsr((unsigned)mode);
#else
    __asm__ volatile("msr fpcr, %0" : : "r"(mode) : "memory");
#endif
}

#endif
