// Rows of numbers: normalisation, rotation and rounding of activations.
#pragma once
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>

using bf16 = uint16_t;

static inline float sum_of_squares(const float* x, int64_t n) {
    __m512 sum = _mm512_setzero_ps();
    for (int64_t i = 0; i < n; i += 16) {
        const __m512 v = _mm512_loadu_ps(x + i);
        sum = _mm512_fmadd_ps(v, v, sum);
    }
    return _mm512_reduce_add_ps(sum);
}

// x / rms(x) * weight (Zhang and Sennrich, 2019).
static void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* out) {
    const __m512 inverse = _mm512_set1_ps(1.0f / std::sqrt(sum_of_squares(x, n) / n + eps));
    for (int64_t i = 0; i < n; i += 16) {
        const __m512 v = _mm512_mul_ps(_mm512_loadu_ps(x + i), inverse);
        _mm512_storeu_ps(out + i, _mm512_mul_ps(v, _mm512_loadu_ps(weight + i)));
    }
}

// One butterfly between elements of one register: `swapped` holds each element's partner, `signs` is -1 for the second.
static inline __m512 butterfly(__m512 v, __m512 swapped, __mmask16 is_second) {
    const __m512 signs = _mm512_mask_mov_ps(_mm512_set1_ps(1.0f), is_second, _mm512_set1_ps(-1.0f));
    return _mm512_fmadd_ps(v, signs, swapped);
}

static inline __m512 butterflies(__m512 v) {
    v = butterfly(v, _mm512_permute_ps(v, 0xB1), 0xAAAA);
    v = butterfly(v, _mm512_permute_ps(v, 0x4E), 0xCCCC);
    v = butterfly(v, _mm512_shuffle_f32x4(v, v, 0xB1), 0xF0F0);
    return butterfly(v, _mm512_shuffle_f32x4(v, v, 0x4E), 0xFF00);
}

// Each 64 numbers times the orthogonal 64 x 64 Hadamard matrix, in place.
static void rotate(float* x, int64_t n) {
    const __m512 norm = _mm512_set1_ps(0.125f);
    for (int64_t i = 0; i < n; i += 64) {
        __m512 v[4];
        for (int j = 0; j < 4; j++) v[j] = butterflies(_mm512_mul_ps(_mm512_loadu_ps(x + i + 16 * j), norm));
        const __m512 a = _mm512_add_ps(v[0], v[1]), b = _mm512_sub_ps(v[0], v[1]);
        const __m512 c = _mm512_add_ps(v[2], v[3]), d = _mm512_sub_ps(v[2], v[3]);
        _mm512_storeu_ps(x + i, _mm512_add_ps(a, c));
        _mm512_storeu_ps(x + i + 16, _mm512_add_ps(b, d));
        _mm512_storeu_ps(x + i + 32, _mm512_sub_ps(a, c));
        _mm512_storeu_ps(x + i + 48, _mm512_sub_ps(b, d));
    }
}

static inline float largest(const float* x, int64_t n) {
    __m512 most = _mm512_set1_ps(1e-20f);
    for (int64_t i = 0; i < n; i += 16) most = _mm512_max_ps(most, _mm512_abs_ps(_mm512_loadu_ps(x + i)));
    return _mm512_reduce_max_ps(most);
}

static inline __m512i rounded(const float* x, __m512 factor) {
    return _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), factor));
}

// Numbers to int8 with one scale for all; the sum is that of the integers.
static void quantise_group(const float* x, int64_t n, int8_t* out, float* scale, float* sum) {
    const float most = largest(x, n);
    const __m512 factor = _mm512_set1_ps(127.0f / most);
    __m512i total = _mm512_setzero_si512();
    for (int64_t i = 0; i < n; i += 16) {
        const __m512i v = rounded(x + i, factor);
        total = _mm512_add_epi32(total, v);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), _mm512_cvtsepi32_epi8(v));
    }
    *scale = most / 127.0f;
    *sum = static_cast<float>(_mm512_reduce_add_epi32(total));
}

static inline void store_bf16(bf16* out, __m512 v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v)));
}

constexpr float LOG2_E = 1.44269504f;

// 2 to the x for x <= 0, to 3 millionths of it: the polynomial on +-1/2 with the least relative error that is 1 at 0.
static inline __m512 power_of_two(__m512 x) {
    x = _mm512_max_ps(x, _mm512_set1_ps(-200.0f));
    const __m512 whole = _mm512_roundscale_ps(x, 0), r = _mm512_sub_ps(x, whole);
    __m512 p = _mm512_set1_ps(0.009582853f);
    for (float c : {0.055906427f, 0.240240986f, 0.693124193f, 1.0f}) p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c));
    return _mm512_scalef_ps(p, whole);
}

// e to the x for x <= 0: the power of two times a polynomial on +-ln(2)/2, to 2 units in the last place.
static inline __m512 exp_of(__m512 x) {
    const __m512 scaled = _mm512_mul_ps(x, _mm512_set1_ps(1.44269504f));
    const __m512 whole = _mm512_roundscale_ps(_mm512_max_ps(scaled, _mm512_set1_ps(-200.0f)), 0);
    const __m512 r = _mm512_fnmadd_ps(whole, _mm512_set1_ps(-2.12194440e-4f),
                                      _mm512_fnmadd_ps(whole, _mm512_set1_ps(0.693359375f), _mm512_max_ps(x, _mm512_set1_ps(-138.0f))));
    __m512 p = _mm512_set1_ps(1.3981999507e-3f);
    for (float c : {8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f, 1.0f, 1.0f})
        p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c));
    return _mm512_scalef_ps(p, whole);
}

static inline __m512 silu(__m512 x) {
    const __m512 e = exp_of(_mm512_sub_ps(_mm512_setzero_ps(), _mm512_abs_ps(x)));
    const __m512 one = _mm512_set1_ps(1.0f);
    const __m512 sigmoid = _mm512_div_ps(one, _mm512_add_ps(one, e));
    const __mmask16 is_negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
    return _mm512_mul_ps(x, _mm512_mask_mul_ps(sigmoid, is_negative, sigmoid, e));
}
