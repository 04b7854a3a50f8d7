// Products of a tile of weights with a few rows, as many as registers hold. 32 outputs are computed together, two
// registers of 16; of each output, four consecutive weights lie side by side, as vpdpbusd multiplies them.
#pragma once
#include <utility>

#include "form.h"

static inline __m512i broadcast4(const int8_t* p) { return _mm512_set1_epi32(*reinterpret_cast<const int32_t*>(p)); }

// sum += the products of w's bytes, which have no sign, with a's. The compiler's own function copies each sum twice.
static inline void dot(__m512i& sum, __m512i w, __m512i a) { asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(a)); }

template <int R>
static inline void tile_int8(const Form& form, int64_t tile, const Rows& rows, int64_t row, const Next& next,
                             __m512 (*out)[2]) {
    const int64_t k = form.inputs;
    const uint8_t* w = form.data + tile * TILE * k;
    const int8_t* a = rows.data + row * k;
    __m512i sums[R][2];
    // the first factor has no sign: a weight is stored plus 128, which is taken off here for the whole row
    UNROLL for (int r = 0; r < R; r++)
        sums[r][0] = sums[r][1] = _mm512_set1_epi32(-128 * static_cast<int32_t>(rows.sums[row + r]));
    for (int64_t i = 0; i < k; i += 4, w += 128) {
        next.fetch(i / 4);
        _mm_prefetch(reinterpret_cast<const char*>(w + 2048), _MM_HINT_T0);
        _mm_prefetch(reinterpret_cast<const char*>(w + 2112), _MM_HINT_T0);
        const __m512i w0 = _mm512_loadu_si512(w), w1 = _mm512_loadu_si512(w + 64);
        UNROLL for (int r = 0; r < R; r++) {
            const __m512i four = broadcast4(a + r * k + i);
            dot(sums[r][0], w0, four);
            dot(sums[r][1], w1, four);
        }
    }
    UNROLL for (int r = 0; r < R; r++)
        for (int h = 0; h < 2; h++) {
            const __m512 scales = _mm512_loadu_ps(form.scales + tile * TILE + 16 * h);
            const __m512 scale = _mm512_mul_ps(scales, _mm512_set1_ps(rows.scales[row + r]));
            out[r][h] = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[r][h]), scale);
        }
}

template <int R>
static inline void tile_int4(const Form& form, int64_t tile, const Rows& rows, int64_t row, __m512 (*out)[2]) {
    const int64_t k = form.inputs, groups = k / GROUP;
    const uint8_t* w = form.data + tile * groups * INT4_BLOCK;
    const int8_t* a = rows.data + row * k;
    const float *scales = rows.scales + row * groups, *minima = rows.sums + row * groups;
    const __m512i low_half = _mm512_set1_epi8(15);
    UNROLL for (int r = 0; r < R; r++) out[r][0] = out[r][1] = _mm512_setzero_ps();
    for (int64_t g = 0; g < groups; g++, w += INT4_BLOCK) {
        for (int64_t line = 0; line < INT4_BLOCK; line += 64)
            _mm_prefetch(reinterpret_cast<const char*>(w + 2 * INT4_BLOCK + line), _MM_HINT_T0);
        __m512i sums[R][2];
        UNROLL for (int r = 0; r < R; r++) sums[r][0] = sums[r][1] = _mm512_setzero_si512();
        for (int i = 0; i < 4; i++)
            for (int h = 0; h < 2; h++) {
                const __m512i both = _mm512_loadu_si512(w + (2 * i + h) * 64);
                const __m512i low = _mm512_and_si512(both, low_half);
                const __m512i high = _mm512_and_si512(_mm512_srli_epi16(both, 4), low_half);
                UNROLL for (int r = 0; r < R; r++) {
                    const int8_t* from = a + r * k + g * GROUP + 4 * i;
                    sums[r][h] = _mm512_dpbusd_epi32(sums[r][h], low, broadcast4(from));
                    sums[r][h] = _mm512_dpbusd_epi32(sums[r][h], high, broadcast4(from + 16));
                }
            }
        for (int h = 0; h < 2; h++) {
            const auto* halves = reinterpret_cast<const __m256i*>(w + TILE * GROUP / 2 + 32 * h);
            const __m512 scale = _mm512_cvtph_ps(_mm256_loadu_si256(halves));
            const __m512 minimum = _mm512_cvtph_ps(_mm256_loadu_si256(halves + 2));
            UNROLL for (int r = 0; r < R; r++) {
                const __m512 s = _mm512_mul_ps(scale, _mm512_set1_ps(scales[r * groups + g]));
                out[r][h] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[r][h]), s, out[r][h]);
                out[r][h] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(minima[r * groups + g]), out[r][h]);
            }
        }
    }
}
