/* Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as
 * 1, 2, 3", SC'11). A draw is a pure function of key and counter, so that a token's noise does not
 * depend on what was drawn before it, on the batch, or on the machine. */
#ifndef FLOTILLA_BASE_RNG_H
#define FLOTILLA_BASE_RNG_H

#include <stdint.h>

struct philox {
    uint32_t v[4];
};

static inline struct philox philox(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t x0 = c0, x1 = c1, x2 = c2, x3 = c3;
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * x0, p1 = (uint64_t)0xCD9E8D57u * x2;
        uint32_t y0 = (uint32_t)(p1 >> 32) ^ x1 ^ k0, y2 = (uint32_t)(p0 >> 32) ^ x3 ^ k1;
        x1 = (uint32_t)p1;
        x3 = (uint32_t)p0;
        x0 = y0;
        x2 = y2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (struct philox){{x0, x1, x2, x3}};
}

/* A small sequential generator (splitmix64) for tests and the simulator. */
struct rng {
    uint64_t s;
};

static inline uint64_t rng_u64(struct rng *r)
{
    uint64_t z = (r->s += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Uniform in [0, n); n > 0. The bias of the modulo is below n / 2^64. */
static inline uint64_t rng_below(struct rng *r, uint64_t n)
{
    return rng_u64(r) % n;
}

#endif
