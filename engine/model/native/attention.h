// Causal attention of grouped queries over keys and values in blocks of 16 tokens, 64 keys at a time (Dao et al.,
// FlashAttention, 2022). A row's result does not depend on the rows that are computed beside it.
#pragma once
#include <limits>

#include "numbers.h"

constexpr int64_t BLOCK = 16, KEYS = 64, MOST_QUERIES = 224;

// Keys or values of one layer and one head: token t of block b is at data + (b * BLOCK + t) * stride.
struct Stored {
    const bf16* data;
    int64_t stride;
};

// Queries of one head of keys: row r's head g is at data + r * stride + g * D. All in bfloat16.
struct Queries {
    const bf16* data;
    int64_t stride, num_rows, per_row, first_position;
};

template <int D>
struct Scratch {
    alignas(64) int32_t keys[D / 2][KEYS];  // two neighbouring dimensions of 64 tokens
    alignas(64) int32_t values[KEYS / 2][D];  // two neighbouring tokens
    alignas(64) float scores[4][KEYS];
    alignas(64) bf16 weights[4][KEYS];
    alignas(64) float out[MOST_QUERIES][D];
    float most[MOST_QUERIES], sum[MOST_QUERIES];
    const int32_t* queries[MOST_QUERIES];  // pairs of neighbouring dimensions
    int64_t positions[MOST_QUERIES];
};

static inline __m512bh as_bf16(__m512i v) { return reinterpret_cast<__m512bh>(v); }

// 16 registers of 16 numbers to their transpose.
static inline void transpose(__m512i (&r)[16]) {
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; j++) {
            r[i + 2 * j] = _mm512_unpacklo_epi64(t[i + j], t[i + j + 2]);
            r[i + 2 * j + 1] = _mm512_unpackhi_epi64(t[i + j], t[i + j + 2]);
        }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xDD);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xDD);
    }
    for (int i = 0; i < 8; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xDD);
    }
}

// The 64 tokens from `first` on, those from `end` on as zeros: what lies there was never written.
template <int D>
static void gather(const Stored& keys, const Stored& values, const int64_t* blocks, int64_t first, int64_t end, Scratch<D>& s) {
    // pairs of the lower 16 numbers of two registers, and of the upper
    const __m512i lower = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8,  //
                                           39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i upper = _mm512_add_epi16(lower, _mm512_set1_epi16(16));
    for (int64_t start = 0; start < KEYS; start += BLOCK) {
        const int64_t count = std::clamp(end - first - start, int64_t{0}, BLOCK);
        const int64_t at = count ? blocks[(first + start) / BLOCK] * BLOCK : 0;
        const auto line = [&](const Stored& stored, int64_t token, int64_t offset) {
            if (token >= count) return _mm512_setzero_si512();
            return _mm512_loadu_si512(stored.data + (at + token) * stored.stride + offset);
        };
        for (int64_t d = 0; d < D; d += 32) {
            __m512i r[16];
            for (int i = 0; i < 16; i++) r[i] = line(keys, i, d);
            transpose(r);
            for (int i = 0; i < 16; i++) _mm512_store_si512(&s.keys[d / 2 + i][start], r[i]);
            for (int i = 0; i < 16; i += 2) {
                const __m512i a = line(values, i, d), b = line(values, i + 1, d);
                _mm512_store_si512(&s.values[(start + i) / 2][d], _mm512_permutex2var_epi16(a, lower, b));
                _mm512_store_si512(&s.values[(start + i) / 2][d + 16], _mm512_permutex2var_epi16(a, upper, b));
            }
        }
    }
}

// Keys or values that are wanted soon: they come from memory while others are computed with, a few lines at each step.
// Blocks are pages all over the memory, so no hardware would guess them.
struct Ahead {
    const Stored& stored;
    const int64_t* blocks;
    int64_t first, end;  // tokens

    template <int D>
    void fetch(int64_t step) const {
        constexpr int64_t TOKENS = 128 / D;  // of the 64 there are, in each of D / 2 steps
        for (int64_t token = first + step * TOKENS; token < std::min(first + (step + 1) * TOKENS, end); token++) {
            const bf16* from = stored.data + (blocks[token / BLOCK] * BLOCK + token % BLOCK) * stored.stride;
            for (int d = 0; d < D; d += 32) _mm_prefetch(reinterpret_cast<const char*>(from + d), _MM_HINT_T0);
        }
    }
};

// Four queries (or the last ones) against the 64 keys from `first` on.
template <int D, int R>
static void attend_keys(int64_t query, int64_t first, const Ahead& keys, const Ahead& values, Scratch<D>& s) {
    const int32_t* from[R];
    __m512 scores[R][4];
    for (int r = 0; r < R; r++) {
        from[r] = s.queries[query + r];
        for (int j = 0; j < 4; j++) scores[r][j] = _mm512_setzero_ps();
    }
    for (int d = 0; d < D / 2; d++) {
        keys.fetch<D>(d);
        for (int j = 0; j < 4; j++) {
            const __m512bh k = as_bf16(_mm512_load_si512(&s.keys[d][16 * j]));
            for (int r = 0; r < R; r++) {
                const __m512i pair = _mm512_set1_epi32(from[r][d]);
                scores[r][j] = _mm512_dpbf16_ps(scores[r][j], as_bf16(pair), k);
            }
        }
    }
    const __m512 scale = _mm512_set1_ps(LOG2_E / std::sqrt(static_cast<float>(D)));
    const __m512 hidden = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
    for (int r = 0; r < R; r++) {
        const int64_t i = query + r, visible = s.positions[i] - first + 1;
        __m512 most = _mm512_set1_ps(s.most[i]);
        for (int j = 0; j < 4; j++) {
            const int64_t count = std::clamp(visible - 16 * j, int64_t{0}, int64_t{16});
            const auto is_visible = static_cast<__mmask16>((1u << count) - 1);
            scores[r][j] = _mm512_mask_mul_ps(hidden, is_visible, scores[r][j], scale);
            most = _mm512_max_ps(most, scores[r][j]);
        }
        const float new_most = _mm512_reduce_max_ps(most);
        __m512 sum = _mm512_setzero_ps();
        for (int j = 0; j < 4; j++) {
            const __m512 weight = power_of_two(_mm512_sub_ps(scores[r][j], _mm512_set1_ps(new_most)));
            sum = _mm512_add_ps(sum, weight);
            store_bf16(s.weights[r] + 16 * j, weight);
        }
        if (new_most != s.most[i]) {  // seldom, once the first keys are seen
            const __m512 kept = power_of_two(_mm512_set1_ps(s.most[i] - new_most));
            s.sum[i] *= _mm512_cvtss_f32(kept);
            s.most[i] = new_most;
            for (int d = 0; d < D; d += 16)
                _mm512_store_ps(s.out[i] + d, _mm512_mul_ps(_mm512_load_ps(s.out[i] + d), kept));
        }
        s.sum[i] += _mm512_reduce_add_ps(sum);
    }
    for (int d = 0; d < D; d += 64) {
        __m512 out[R][4];
        for (int r = 0; r < R; r++)
            for (int j = 0; j < 4; j++) out[r][j] = _mm512_load_ps(s.out[query + r] + d + 16 * j);
        for (int t = 0; t < KEYS / 2; t++) {
            values.fetch<D>(t + d / 2);
            for (int j = 0; j < 4; j++) {
                const __m512bh v = as_bf16(_mm512_load_si512(&s.values[t][d + 16 * j]));
                for (int r = 0; r < R; r++) {
                    const __m512i pair = _mm512_set1_epi32(reinterpret_cast<const int32_t*>(s.weights[r])[t]);
                    out[r][j] = _mm512_dpbf16_ps(out[r][j], as_bf16(pair), v);
                }
            }
        }
        for (int r = 0; r < R; r++)
            for (int j = 0; j < 4; j++) _mm512_store_ps(s.out[query + r] + d + 16 * j, out[r][j]);
    }
}

// At most MOST_QUERIES queries; writes float32 [rows, heads of these keys, D] with the rows `out_stride` apart.
template <int D>
static void attend(const Queries& q, const Stored& keys, const Stored& values, const int64_t* blocks, float* out,
                   int64_t out_stride, Scratch<D>& s) {
    const int64_t num_queries = q.num_rows * q.per_row, end = q.first_position + q.num_rows;
    for (int64_t i = 0; i < num_queries; i++) {
        s.queries[i] = reinterpret_cast<const int32_t*>(q.data + i / q.per_row * q.stride + i % q.per_row * D);
        s.positions[i] = q.first_position + i / q.per_row;
        s.most[i] = -1e30f;
        s.sum[i] = 0.0f;
        std::fill(s.out[i], s.out[i] + D, 0.0f);
    }
    for (int64_t first = 0; first < end; first += KEYS) {
        gather<D>(keys, values, blocks, first, end, s);
        for (int64_t i = 0; i < num_queries; i += 4) {
            const int64_t last = i ? 0 : end;  // the first queries fetch for all
            const Ahead next_keys{keys, blocks, first + KEYS, last}, next_values{values, blocks, first + KEYS, last};
            switch (num_queries - i) {
                case 1: attend_keys<D, 1>(i, first, next_keys, next_values, s); break;
                case 2: attend_keys<D, 2>(i, first, next_keys, next_values, s); break;
                case 3: attend_keys<D, 3>(i, first, next_keys, next_values, s); break;
                default: attend_keys<D, 4>(i, first, next_keys, next_values, s);
            }
        }
    }
    for (int64_t i = 0; i < num_queries; i++) {
        float* to = out + i / q.per_row * out_stride + i % q.per_row * D;
        const __m512 inverse = _mm512_set1_ps(1.0f / s.sum[i]);
        for (int d = 0; d < D; d += 16) _mm512_storeu_ps(to + d, _mm512_mul_ps(_mm512_load_ps(s.out[i] + d), inverse));
    }
}
