/* The AVX2 + FMA + F16C level. Each function mirrors the one of the same name in kern_scalar.c;
 * what is said here is only how it is done. 16 rows of a tile are two ymm of 8 rows.
 *
 * Integer dots use maddubs (u8 x s8 -> s16): 4-bit weights may add eight products (30,480) before
 * they are widened; 8-bit ones are taken as |w| with the sign moved to the activation (32,512).
 *
 * Decode reads weights strictly forwards with two prefetches a line, a far one to L2 and a near one
 * to L1: one alone is slower than none, both together give 90 % of the memory's read rate. */
#include "common/engine/kern_vec.h"

#define LOAD(p) _mm256_loadu_si256((const __m256i *)(const void *)(p))

VEC_INLINE __m256 half8(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

VEC_INLINE __m256i low_nibbles(__m256i w)
{
    return _mm256_and_si256(w, _mm256_set1_epi8(15));
}

VEC_INLINE __m256i high_nibbles(__m256i w)
{
    return _mm256_and_si256(_mm256_srli_epi16(w, 4), _mm256_set1_epi8(15));
}

VEC_INLINE __m256i four(const int8_t *q, int group)
{
    return _mm256_set1_epi32(four_at(q, group));
}

/* ---- one token: straight from the tiles ---- */

VEC_INLINE void decode_4bit(const uint8_t *t, uint32_t n_blocks, bool has_min, int bias,
                            const int8_t *q, const float *x, const float *y, const int32_t *s,
                            float *out)
{
    const size_t tile_bytes = has_min ? 320 : 288;
    const __m256i one = _mm256_set1_epi16(1);
    __m256 dot[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    __m256 off[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (uint32_t b = 0; b < n_blocks; b++, t += tile_bytes, q += 32) {
        prefetch(t, tile_bytes);
        __m256 scale = _mm256_set1_ps(x[b]);
        for (int h = 0; h < 2; h++) {
            __m256i u = _mm256_setzero_si256(), v = u;
            for (int j = 0; j < 4; j++) {
                __m256i w = LOAD(t + 64 * j + 32 * h);
                u = _mm256_add_epi16(u, _mm256_maddubs_epi16(low_nibbles(w), four(q, 2 * j)));
                v = _mm256_add_epi16(v, _mm256_maddubs_epi16(high_nibbles(w), four(q, 2 * j + 1)));
            }
            __m256i i = _mm256_madd_epi16(_mm256_add_epi16(u, v), one);
            if (bias) i = _mm256_sub_epi32(i, _mm256_set1_epi32(bias * s[b]));
            dot[h] = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(i), half8(t + 256 + 16 * h)),
                                     scale, dot[h]);
            if (has_min)
                off[h] = _mm256_fmadd_ps(half8(t + 288 + 16 * h), _mm256_set1_ps(y[b]), off[h]);
        }
    }
    for (int h = 0; h < 2; h++)
        _mm256_storeu_ps(out + 8 * h, has_min ? _mm256_add_ps(dot[h], off[h]) : dot[h]);
}

VEC_INLINE __m256i dot_8bit(__m256i w, __m256i x)
{
    return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w)),
                             _mm256_set1_epi16(1));
}

VEC_INLINE void decode_8bit(const uint8_t *t, uint32_t n_blocks, const int8_t *q, const float *x,
                            float *out)
{
    __m256 dot[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (uint32_t b = 0; b < n_blocks; b++, t += 544, q += 32) {
        prefetch(t, 544);
        __m256 scale = _mm256_set1_ps(x[b]);
        for (int h = 0; h < 2; h++) {
            __m256i i = _mm256_setzero_si256();
            for (int g = 0; g < 8; g++)
                i = _mm256_add_epi32(i, dot_8bit(LOAD(t + 64 * g + 32 * h), four(q, g)));
            dot[h] = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(i), half8(t + 512 + 16 * h)),
                                     scale, dot[h]);
        }
    }
    for (int h = 0; h < 2; h++) _mm256_storeu_ps(out + 8 * h, dot[h]);
}

static void decode(enum qtype type, const uint8_t *panel, const struct act *a, float *out)
{
    uint32_t nb = a->k / ACT_BLOCK;
    switch (type) {
    case QTYPE_Q4_0: decode_4bit(panel, nb, false, 8, a->q, a->x, a->y, a->s, out); break;
    case QTYPE_Q4_1: decode_4bit(panel, nb, true, 0, a->q, a->x, a->y, a->s, out); break;
    case QTYPE_Q8_0: decode_8bit(panel, nb, a->q, a->x, out); break;
    default: break;
    }
}

/* ---- many tokens: a panel is unpacked once, then shared by two kernels ---- */

/* w: 4-bit types as bytes [k/4][16 rows][4]; Q8_0 as int16 [k/2][16 rows][2].
 * d, m: [block][16 rows]. */
static void unpack_panel(enum qtype type, const uint8_t *t, uint32_t n_blocks, uint8_t *w, float *d,
                         float *m)
{
    for (uint32_t b = 0; b < n_blocks; b++, d += 16, m += 16) {
        if (type == QTYPE_Q8_0) {
            for (int i = 0; i < 32; i++, t += 16, w += 32) {
                /* 16 bytes = 4 rows x 4 weights; pairs of weights go to separate vectors. */
                __m256i v = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)t));
                v = _mm256_permute4x64_epi64(_mm256_shuffle_epi32(v, 0xd8), 0xd8);
                uint8_t *group = w - (i & 3) * 32;
                _mm_storeu_si128((__m128i *)(void *)(group + (i & 3) * 16),
                                 _mm256_castsi256_si128(v));
                _mm_storeu_si128((__m128i *)(void *)(group + 64 + (i & 3) * 16),
                                 _mm256_extracti128_si256(v, 1));
            }
        } else {
            for (int j = 0; j < 4; j++, t += 64, w += 128)
                for (int h = 0; h < 64; h += 32) {
                    STORE(w + h, low_nibbles(LOAD(t + h)));
                    STORE(w + 64 + h, high_nibbles(LOAD(t + h)));
                }
        }
        vec_store(d, vec_half((const uint16_t *)(const void *)t));
        t += 32;
        if (type == QTYPE_Q4_1) {
            vec_store(m, vec_half((const uint16_t *)(const void *)t));
            t += 32;
        }
    }
}

/* 16 rows x n tokens of 4-bit weights; n is a constant 1 or 2. */
VEC_INLINE void many_4bit(const struct panel *p, struct tokens a, int n, bool has_min, float *out,
                          size_t ldo)
{
    const __m256i one = _mm256_set1_epi16(1);
    __m256 dot[2][2], off[2][2];
    for (int t = 0; t < n; t++)
        for (int h = 0; h < 2; h++) dot[t][h] = off[t][h] = _mm256_setzero_ps();
    const uint8_t *w = p->w;
    const float *d = p->d, *m = p->m;
    for (uint32_t b = 0; b < p->n_blocks; b++, d += 16, m += 16) {
        __m256i s[2][2];
        for (int t = 0; t < n; t++) s[t][0] = s[t][1] = _mm256_setzero_si256();
#pragma GCC unroll 4
        for (int g = 0; g < 8; g++, w += 64) {
            __m256i w0 = LOAD(w), w1 = LOAD(w + 32);
            for (int t = 0; t < n; t++) {
                __m256i x = four(a.q + 32 * t, g);
                s[t][0] = _mm256_add_epi16(s[t][0], _mm256_maddubs_epi16(w0, x));
                s[t][1] = _mm256_add_epi16(s[t][1], _mm256_maddubs_epi16(w1, x));
            }
        }
        for (int h = 0; h < 2; h++) {
            __m256 dh = _mm256_loadu_ps(d + 8 * h);
            for (int t = 0; t < n; t++) {
                __m256i i = _mm256_madd_epi16(s[t][h], one);
                if (!has_min) i = _mm256_sub_epi32(i, _mm256_set1_epi32(p->bias * a.s[t]));
                dot[t][h] = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(i), dh),
                                            _mm256_broadcast_ss(a.x + t), dot[t][h]);
                if (has_min)
                    off[t][h] = _mm256_fmadd_ps(_mm256_loadu_ps(m + 8 * h),
                                                _mm256_broadcast_ss(a.y + t), off[t][h]);
            }
        }
        a.q += 32 * a.group;
        a.x += a.group;
        a.y += a.group;
        a.s += a.group;
    }
    for (int t = 0; t < n; t++)
        for (int h = 0; h < 2; h++)
            _mm256_storeu_ps(out + (size_t)t * ldo + 8 * h,
                             has_min ? _mm256_add_ps(dot[t][h], off[t][h]) : dot[t][h]);
}

/* 16 rows x n tokens of 8-bit weights widened to int16. */
VEC_INLINE void many_8bit(const struct panel *p, struct tokens a, int n, float *out, size_t ldo)
{
    __m256 dot[2][2];
    for (int t = 0; t < n; t++) dot[t][0] = dot[t][1] = _mm256_setzero_ps();
    const uint8_t *w = p->w;
    const float *d = p->d;
    for (uint32_t b = 0; b < p->n_blocks; b++, d += 16) {
        __m256i s[2][2];
        for (int t = 0; t < n; t++) s[t][0] = s[t][1] = _mm256_setzero_si256();
#pragma GCC unroll 2
        for (int g = 0; g < 8; g++, w += 128) {
            for (int t = 0; t < n; t++) {
                __m128i wide = _mm_cvtepi8_epi16(_mm_cvtsi32_si128(four_at(a.q + 32 * t, g)));
                __m256i x0 = _mm256_broadcastd_epi32(wide);
                __m256i x1 = _mm256_broadcastd_epi32(_mm_srli_epi64(wide, 32));
                for (int h = 0; h < 2; h++) {
                    s[t][h] = _mm256_add_epi32(s[t][h], _mm256_madd_epi16(LOAD(w + 32 * h), x0));
                    s[t][h] =
                        _mm256_add_epi32(s[t][h], _mm256_madd_epi16(LOAD(w + 64 + 32 * h), x1));
                }
            }
        }
        for (int h = 0; h < 2; h++)
            for (int t = 0; t < n; t++)
                dot[t][h] = _mm256_fmadd_ps(
                    _mm256_mul_ps(_mm256_cvtepi32_ps(s[t][h]), _mm256_loadu_ps(d + 8 * h)),
                    _mm256_broadcast_ss(a.x + t), dot[t][h]);
        a.q += 32 * a.group;
        a.x += a.group;
    }
    for (int t = 0; t < n; t++)
        for (int h = 0; h < 2; h++) _mm256_storeu_ps(out + (size_t)t * ldo + 8 * h, dot[t][h]);
}

static __attribute__((noinline)) void many(enum qtype type, const struct panel *p,
                                           const struct tokens *a, uint32_t n, float *out,
                                           size_t ldo)
{
    switch (type) {
    case QTYPE_Q4_0:
        n == 2 ? many_4bit(p, *a, 2, false, out, ldo) : many_4bit(p, *a, 1, false, out, ldo);
        break;
    case QTYPE_Q4_1:
        n == 2 ? many_4bit(p, *a, 2, true, out, ldo) : many_4bit(p, *a, 1, true, out, ldo);
        break;
    case QTYPE_Q8_0: n == 2 ? many_8bit(p, *a, 2, out, ldo) : many_8bit(p, *a, 1, out, ldo); break;
    default: break;
    }
}

static void panel_many(enum qtype type, const uint8_t *tiles, const struct act *a, float *out,
                       size_t ldo, uint8_t *scratch)
{
    uint32_t nb = a->k / ACT_BLOCK;
    float *d = (float *)(void *)(scratch + (size_t)a->k * TILE_ROWS * 2), *m = d + nb * 16;
    unpack_panel(type, tiles, nb, scratch, d, m);
    struct panel p = {scratch, d, m, nb, qtype_info((uint32_t)type)->bias};
    for (uint32_t t = 0, n; t < a->n_tokens; t += n) {
        struct tokens tok = tokens_at(a, t, 2, &n);
        many(type, &p, &tok, n, out + t * ldo, ldo);
    }
}

const struct kern kern_avx2 = {
    .name = "avx2",
    .quantise = quantise,
    .linear = linear,
    .rmsnorm = rmsnorm,
    .silu_mul = silu_mul,
    .rope = rope,
    .kv_store = kv_store,
    .attn_span = attn_span,
};
