// Products of quantised activations with packed weights.
#pragma once
#include "matrices.h"
#include "vectors.h"

// What is done with the 32 outputs of a row.
struct Store {  // out[row, output] =
    float* out;
    int64_t stride;
    void operator()(int64_t row, int64_t tile, __m512 a, __m512 b) const {
        _mm512_storeu_ps(out + row * stride + tile * TILE, a);
        _mm512_storeu_ps(out + row * stride + tile * TILE + 16, b);
    }
};

struct Add {  // out[row, output] +=
    float* out;
    int64_t stride;
    void operator()(int64_t row, int64_t tile, __m512 a, __m512 b) const {
        float* to = out + row * stride + tile * TILE;
        _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), a));
        _mm512_storeu_ps(to + 16, _mm512_add_ps(_mm512_loadu_ps(to + 16), b));
    }
};

struct Gate {  // 16 gates and their 16 partners lie in one tile
    float* out;
    int64_t stride;
    void operator()(int64_t row, int64_t tile, __m512 gate, __m512 up) const {
        _mm512_storeu_ps(out + row * stride + tile * 16, _mm512_mul_ps(silu(gate), up));
    }
};

// Of each row the largest output and the sum of all exponentials, for each of 16 lanes by itself; of the outputs
// themselves nothing is kept but for the rows that have a place. Each thread has its own lanes.
struct Best {
    float *most, *sum;  // [rows, 16]
    int32_t* at;        // [rows, 16]: which output the largest is, of equals the first
    int64_t num_outputs;
    float* const* places;  // [rows], null for most

    void clear(int64_t num_rows) const {
        std::fill(most, most + 16 * num_rows, -1e30f);
        std::fill(sum, sum + 16 * num_rows, 0.0f);
        std::fill(at, at + 16 * num_rows, 0);
    }
    void operator()(int64_t row, int64_t tile, __m512 a, __m512 b) const {
        take(16 * row, tile * TILE, a);
        take(16 * row, tile * TILE + 16, b);
        if (places[row]) Store{places[row], 0}(0, tile, a, b);
    }
    void take(int64_t lanes, int64_t first, __m512 v) const {
        const int64_t count = std::clamp(num_outputs - first, int64_t{0}, int64_t{16});
        v = _mm512_mask_mov_ps(_mm512_set1_ps(-2e30f), static_cast<__mmask16>((1u << count) - 1), v);
        __m512 m = _mm512_loadu_ps(most + lanes), s = _mm512_loadu_ps(sum + lanes);
        const __mmask16 is_more = _mm512_cmp_ps_mask(v, m, _CMP_GT_OQ);
        if (is_more) {
            const __m512 more = _mm512_mask_mov_ps(m, is_more, v);
            s = _mm512_mul_ps(s, exp_of(_mm512_sub_ps(m, more)));
            m = more;
            const __m512i numbers = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            _mm512_mask_storeu_epi32(at + lanes, is_more, _mm512_add_epi32(numbers, _mm512_set1_epi32(first)));
            _mm512_storeu_ps(most + lanes, m);
        }
        _mm512_storeu_ps(sum + lanes, _mm512_add_ps(s, exp_of(_mm512_sub_ps(v, m))));
    }
};

// The 32 outputs of a row, but for the bias.
template <class End>
static inline void finish(const Form& form, int64_t tile, int64_t row, const __m512 (&out)[2], const End& end) {
    __m512 biased[2] = {out[0], out[1]};
    for (int h = 0; h < 2 && form.bias; h++)
        biased[h] = _mm512_add_ps(out[h], _mm512_loadu_ps(form.bias + tile * TILE + 16 * h));
    end(row, tile, biased[0], biased[1]);
}

template <int R, class End>
static void few_rows(const Form& form, int64_t tile, const Rows& rows, int64_t row, const Next& next, const End& end) {
    __m512 out[R][2];
    if (form.kind == INT8) tile_int8<R>(form, tile, rows, row, next, out);
    else tile_int4<R>(form, tile, rows, row, out);
    for (int r = 0; r < R; r++) finish(form, tile, row + r, out[r], end);
}

template <int MOST, class End>
static inline void up_to(int64_t n, const Form& form, int64_t tile, const Rows& rows, int64_t row, const Next& next,
                         const End& end) {
    if (n == MOST) return few_rows<MOST>(form, tile, rows, row, next, end);
    if constexpr (MOST > 1) up_to<MOST - 1>(n, form, tile, rows, row, next, end);
}

template <class End>
static void many_rows(const Form& form, int64_t tile, const Rows& rows, int64_t row, int64_t n, const Next& next,
                      const End& end) {
    __m512 out[MATRIX_ROWS][2];
    if (form.kind == INT8) matrix_int8(form, tile, rows, row, n, next, out);
    else matrix_int4(form, tile, rows, row, n, out);
    for (int64_t r = 0; r < n; r++) finish(form, tile, row + r, out[r], end);
}

// A share of the tiles (all when none are listed) on each thread of the team, as many rows at once as registers hold.
template <class End>
static void product(const Form& form, const int64_t* tiles, int64_t num_tiles, const Rows& rows, int64_t num_rows,
                    const End& end) {
    const bool is_matrix = has_matrices && num_rows >= LEAST_MATRIX_ROWS[form.kind];
    const int64_t most = is_matrix ? MATRIX_ROWS : form.kind == INT8 ? 8 : 6;
    const int64_t blocks = (num_rows + most - 1) / most, size = TILE * form.inputs;  // INT8
    if (is_matrix) configure_products(form.kind == INT8 ? DEPTH : GROUP);
#pragma omp for schedule(static)
    for (int64_t i = 0; i < num_tiles; i++) {
        const int64_t tile = tiles ? tiles[i] : i;
        for (int64_t b = 0; b < blocks; b++) {
            const auto* from = reinterpret_cast<const char*>(form.data + (tile + 1) * size + b * size / blocks);
            const Next next{from, blocks > 1 ? 128 / blocks : 0};
            if (is_matrix) {
                many_rows(form, tile, rows, b * most, std::min(most, num_rows - b * most), next, end);
            } else {  // all blocks as long, but for one row
                const int64_t row = b * num_rows / blocks, n = (b + 1) * num_rows / blocks - row;
                up_to<8>(n, form, tile, rows, row, next, end);
            }
        }
    }
    if (is_matrix) release_matrices();
}
