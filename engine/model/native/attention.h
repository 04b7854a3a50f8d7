// Causal attention of grouped queries over keys and values in blocks of 16 tokens, 64 keys at a time (Dao et al.,
// FlashAttention, 2022). A row's result does not depend on the rows that are computed beside it, so with AMX all use it.
//
// Of a block and a head, keys are [D / 2, 16 tokens] pairs of neighbouring dimensions, values [8, D] pairs of
// neighbouring tokens: as vdpbf16ps multiplies them, so that nothing is moved before it is computed with.
#pragma once
#include <limits>

#include "amx.h"
#include "numbers.h"

constexpr int64_t BLOCK = 16, KEYS = 64, MOST_QUERIES = 112, NUM_BLOCKS = KEYS / BLOCK;

// Keys or values of one layer and one head: block b is at data + b * stride, in pairs.
struct Stored {
    const int32_t* data;
    int64_t stride;
};

// Queries of one head of keys: row r's head g is at data + r * stride + g * D. All in bfloat16.
struct Queries {
    const bf16* data;
    int64_t stride, num_rows, per_row, first_position;
};

template <int D>
struct Scratch {
    alignas(64) float scores[MATRIX][KEYS];
    alignas(64) bf16 weights[MOST_QUERIES][KEYS];
    alignas(64) bf16 queries[MOST_QUERIES][D];
    alignas(64) float out[MOST_QUERIES][D];
    float most[MOST_QUERIES], sum[MOST_QUERIES];
    int64_t positions[MOST_QUERIES];
};

static inline __m512bh as_bf16(__m512i v) { return reinterpret_cast<__m512bh>(v); }

static inline void fetch(const int32_t* line) { _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T0); }

// Where 64 tokens lie, from `first` on. Those from `end` on may be anything finite: their weights are 0.
struct Tokens {
    int64_t first, end;
    const int32_t *keys[NUM_BLOCKS], *values[NUM_BLOCKS];

    Tokens(const Stored& stored_keys, const Stored& stored_values, const int64_t* blocks, int64_t first, int64_t end)
        : first(first), end(end) {
        for (int64_t i = 0; i < NUM_BLOCKS; i++) {
            const int64_t block = blocks[std::min(first + i * BLOCK, end - 1) / BLOCK];
            keys[i] = stored_keys.data + block * stored_keys.stride;
            values[i] = stored_values.data + block * stored_values.stride;
        }
    }
};

// Scores of four queries (or the last ones) with 64 keys. `next` comes from memory meanwhile, a line of each block at
// each step: blocks lie all over the memory, so no hardware would guess them. Here as below, what is summed up stays in
// registers only as long as nothing but constants index it.
template <int D, int R, bool FETCHES>
static void score(int64_t query, const Tokens& tokens, const Tokens& next, Scratch<D>& s) {
    const int32_t* from[R];
    __m512 sums[R][4];
    for (int r = 0; r < R; r++) {
        from[r] = reinterpret_cast<const int32_t*>(s.queries[query + r]);
        for (int j = 0; j < 4; j++) sums[r][j] = _mm512_setzero_ps();
    }
    for (int d = 0; d < D / 2; d++) {
        for (int j = 0; j < 4 && FETCHES; j++) fetch(next.keys[j] + 16 * d);
        for (int j = 0; j < 4; j++) {
            const __m512bh k = as_bf16(_mm512_loadu_si512(tokens.keys[j] + 16 * d));
            for (int r = 0; r < R; r++)
                sums[r][j] = _mm512_dpbf16_ps(sums[r][j], as_bf16(_mm512_set1_epi32(from[r][d])), k);
        }
    }
    for (int r = 0; r < R; r++)
        for (int j = 0; j < 4; j++) _mm512_store_ps(s.scores[r] + 16 * j, sums[r][j]);
}

// The r-th row of scores, that of query i, to weights; what was summed up before is scaled to the new largest score.
template <int D>
static void weigh(int r, int64_t i, int64_t num_visible, Scratch<D>& s) {
    const __m512 scale = _mm512_set1_ps(LOG2_E / std::sqrt(static_cast<float>(D)));
    const __m512 hidden = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
    __m512 scores[4], most = _mm512_set1_ps(s.most[i]), sum = _mm512_setzero_ps();
    for (int j = 0; j < 4; j++) {
        const int64_t count = std::clamp(num_visible - 16 * j, int64_t{0}, int64_t{16});
        const auto is_visible = static_cast<__mmask16>((1u << count) - 1);
        scores[j] = _mm512_mask_mul_ps(hidden, is_visible, _mm512_load_ps(s.scores[r] + 16 * j), scale);
        most = _mm512_max_ps(most, scores[j]);
    }
    const float new_most = _mm512_reduce_max_ps(most);
    for (int j = 0; j < 4; j++) {
        const __m512 weight = power_of_two(_mm512_sub_ps(scores[j], _mm512_set1_ps(new_most)));
        sum = _mm512_add_ps(sum, weight);
        store_bf16(s.weights[i] + 16 * j, weight);
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

// The weighted sum of 64 dimensions of the values, from d on, to what four queries (or the last ones) have of it.
template <int D, int R, bool FETCHES>
static void add_values(int64_t query, int d, const Tokens& tokens, const Tokens& next, Scratch<D>& s) {
    const int num_tokens = static_cast<int>(std::min(tokens.end - tokens.first, KEYS));
    __m512 out[R][4];
    for (int r = 0; r < R; r++)
        for (int j = 0; j < 4; j++) out[r][j] = _mm512_load_ps(s.out[query + r] + d + 16 * j);
    for (int t = 0; 2 * t < num_tokens; t++) {
        const int32_t* line = tokens.values[t / 8] + t % 8 * D + d;
        for (int j = 0; j < 4 && FETCHES; j++) fetch(next.values[j] + (t + d / 2) * 16);
        for (int j = 0; j < 4; j++) {
            const __m512bh v = as_bf16(_mm512_loadu_si512(line + 16 * j));
            for (int r = 0; r < R; r++) {
                const __m512i pair = _mm512_set1_epi32(reinterpret_cast<const int32_t*>(s.weights[query + r])[t]);
                out[r][j] = _mm512_dpbf16_ps(out[r][j], as_bf16(pair), v);
            }
        }
    }
    for (int r = 0; r < R; r++)
        for (int j = 0; j < 4; j++) _mm512_store_ps(s.out[query + r] + d + 16 * j, out[r][j]);
}

template <int D, int R>
static void attend_keys(int64_t query, const Tokens& tokens, const Tokens& next, Scratch<D>& s) {
    const bool fetches = query == 0;  // the first queries fetch for all
    fetches ? score<D, R, true>(query, tokens, next, s) : score<D, R, false>(query, tokens, next, s);
    for (int r = 0; r < R; r++) weigh<D>(r, query + r, s.positions[query + r] - tokens.first + 1, s);
    for (int d = 0; d < D; d += 64)
        fetches ? add_values<D, R, true>(query, d, tokens, next, s) : add_values<D, R, false>(query, d, tokens, next, s);
}

template <int D>
static void attend_by_vectors(int64_t num_queries, const Tokens& tokens, const Tokens& next, Scratch<D>& s) {
    for (int64_t i = 0; i < num_queries; i += 4) {
        switch (num_queries - i) {
            case 1: attend_keys<D, 1>(i, tokens, next, s); break;
            case 2: attend_keys<D, 2>(i, tokens, next, s); break;
            case 3: attend_keys<D, 3>(i, tokens, next, s); break;
            default: attend_keys<D, 4>(i, tokens, next, s);
        }
    }
}

// Registers 0 to 3 hold scores of 16 queries with 16 keys each, or what 16 queries have of 16 dimensions each; 4 and 5
// queries and keys, 6 and 7 weights and values of a block.
static void configure_attention() {
    MatrixShapes shapes;
    for (int i = 0; i < 6; i++) shapes.set(i, MATRIX, 64);
    shapes.set(6, MATRIX, 2 * BLOCK);
    shapes.set(7, BLOCK / 2, 64);
    shapes.use();
}

template <int D, int J>
static inline void score_block(int d, const Tokens& tokens, const Tokens& next, bool fetches) {
    const int64_t at = 16 * MATRIX * d;
    for (int line = 0; line < MATRIX && fetches; line++) fetch(next.keys[J] + at + 16 * line);
    load_matrix<5>(tokens.keys[J] + at, 64);
    multiply_bf16<J, 4, 5>();
}

// What `score` does, for 16 queries; where there are fewer, what the others give is never read.
template <int D>
static void score_matrix(int64_t query, const Tokens& tokens, const Tokens& next, bool fetches, Scratch<D>& s) {
    clear_sums();
    for (int d = 0; d < D / 32; d++) {
        load_matrix<4>(s.queries[query] + 32 * d, 2 * D);
        score_block<D, 0>(d, tokens, next, fetches);
        score_block<D, 1>(d, tokens, next, fetches);
        score_block<D, 2>(d, tokens, next, fetches);
        score_block<D, 3>(d, tokens, next, fetches);
    }
    store_sums(s.scores[0], 4 * KEYS);
}

template <int D, int J>
static inline void add_block(const int32_t* values) {
    load_matrix<7>(values + 16 * J, 4 * D);
    multiply_bf16<J, 6, 7>();
}

// What `add_values` does, for 16 queries.
template <int D>
static void add_values_matrix(int64_t query, int d, const Tokens& tokens, const Tokens& next, bool fetches,
                              Scratch<D>& s) {
    float* out = s.out[query] + d;
    load_sums(out, 4 * D);
    for (int64_t b = 0; b < NUM_BLOCKS && tokens.first + b * BLOCK < tokens.end; b++) {
        for (int line = 0; line < 4 * BLOCK / 2 && fetches; line++)
            fetch(next.values[b] + line / 4 * D + d + line % 4 * 16);
        load_matrix<6>(s.weights[query] + b * BLOCK, 2 * KEYS);
        add_block<D, 0>(tokens.values[b] + d);
        add_block<D, 1>(tokens.values[b] + d);
        add_block<D, 2>(tokens.values[b] + d);
        add_block<D, 3>(tokens.values[b] + d);
    }
    store_sums(out, 4 * D);
}

template <int D>
static void attend_by_matrices(int64_t num_queries, const Tokens& tokens, const Tokens& next, Scratch<D>& s) {
    for (int64_t i = 0; i < num_queries; i += MATRIX) {
        score_matrix<D>(i, tokens, next, i == 0, s);
        for (int64_t r = 0; r < std::min(MATRIX, num_queries - i); r++)
            weigh<D>(r, i + r, s.positions[i + r] - tokens.first + 1, s);
    }
    // not at once: what was just stored row by row is not yet there for a matrix
    for (int64_t i = 0; i < num_queries; i += MATRIX)
        for (int d = 0; d < D; d += 64) add_values_matrix<D>(i, d, tokens, next, i == 0, s);
}

// At most MOST_QUERIES queries; writes float32 [rows, heads of these keys, D] with the rows `out_stride` apart.
template <int D>
static void attend(const Queries& q, const Stored& keys, const Stored& values, const int64_t* blocks, float* out,
                   int64_t out_stride, Scratch<D>& s) {
    const int64_t num_queries = q.num_rows * q.per_row, end = q.first_position + q.num_rows;
    for (int64_t i = 0; i < num_queries; i++) {
        const bf16* from = q.data + i / q.per_row * q.stride + i % q.per_row * D;
        std::copy(from, from + D, s.queries[i]);
        s.positions[i] = q.first_position + i / q.per_row;
        s.most[i] = -1e30f;
        s.sum[i] = 0.0f;
        std::fill(s.out[i], s.out[i] + D, 0.0f);
    }
    Tokens tokens(keys, values, blocks, 0, end);
    while (tokens.first < end) {
        const Tokens next(keys, values, blocks, tokens.first + KEYS, end);
        has_matrices ? attend_by_matrices<D>(num_queries, tokens, next, s)
                     : attend_by_vectors<D>(num_queries, tokens, next, s);
        tokens = next;
    }
    for (int64_t i = 0; i < num_queries; i++) {
        float* to = out + i / q.per_row * out_stride + i % q.per_row * D;
        const __m512 inverse = _mm512_set1_ps(1.0f / s.sum[i]);
        for (int d = 0; d < D; d += 16) _mm512_storeu_ps(to + d, _mm512_mul_ps(_mm512_load_ps(s.out[i] + d), inverse));
    }
}
