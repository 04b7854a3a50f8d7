// Products of quantised activations with packed weights. 32 outputs are computed together, two registers of 16; of
// each output, four consecutive weights lie side by side, as vpdpbusd multiplies them.
#pragma once
#include <utility>

#include "numbers.h"

enum Kind : int64_t { INT8 = 0, INT4 = 1 };
// registers are arrays: only a loop that is unrolled early keeps them out of memory
#define UNROLL _Pragma("GCC unroll 8")

constexpr int64_t TILE = 32, GROUP = 32;
constexpr int64_t INT4_BLOCK = TILE * GROUP / 2 + 4 * TILE;  // weights, 16-bit scales, 16-bit minima

// How one weight matrix [outputs, inputs] is kept.
struct Form {
    int64_t kind, outputs, inputs;
    const uint8_t* data;
    const float* scales;     // INT8: of each output
    const float* bias;       // or null
};

// Activations of some rows in the form that a kind of weights multiplies with.
struct Rows {
    int8_t* data;
    float* scales;  // INT8: one a row. INT4: one for each group of a row.
    float* sums;    // INT8: sum of a row. INT4: scale times sum of each group of a row.
};

static void quantise(const Form& form, float* x, int64_t row, const Rows& rows) {
    const int64_t k = form.inputs, groups = k / GROUP;
    if (form.kind == INT8) {
        rotate(x, k);
        quantise_group(x, k, rows.data + row * k, rows.scales + row, rows.sums + row);
    } else {
        for (int64_t g = 0; g < groups; g++) {
            float *scale = rows.scales + row * groups + g, *sum = rows.sums + row * groups + g;
            quantise_group(x + g * GROUP, GROUP, rows.data + row * k + g * GROUP, scale, sum);
            *sum *= *scale;
        }
    }
}

static inline __m512i broadcast4(const int8_t* p) { return _mm512_set1_epi32(*reinterpret_cast<const int32_t*>(p)); }

// sum += the products of w's bytes, which have no sign, with a's. The compiler's own function copies each sum twice.
static inline void dot(__m512i& sum, __m512i w, __m512i a) { asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(a)); }

// Weights of the next tile, which come from memory while the rows of this one are computed: at each line of weights
// `step` bytes more. 0: all rows are computed at once, and there is no time for it.
struct Next {
    const char* from;
    int64_t step;

    void fetch(int64_t line) const {
        if (step == 64) _mm_prefetch(from + line * 64, _MM_HINT_T1);  // into L1 there are too many at once
        else if (step) _mm_prefetch(from + line * step, _MM_HINT_T0);
    }
};

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

template <int R, class End>
static void tile_rows(const Form& form, int64_t tile, const Rows& rows, int64_t row, const Next& next,
                      const End& end) {
    __m512 out[R][2];
    if (form.kind == INT8) tile_int8<R>(form, tile, rows, row, next, out);
    else tile_int4<R>(form, tile, rows, row, out);
    for (int r = 0; r < R; r++) {
        if (form.bias)
            for (int h = 0; h < 2; h++)
                out[r][h] = _mm512_add_ps(out[r][h], _mm512_loadu_ps(form.bias + tile * TILE + 16 * h));
        end(row + r, tile, out[r][0], out[r][1]);
    }
}

template <int MOST, class End>
static inline void tile_up_to(int64_t n, const Form& form, int64_t tile, const Rows& rows, int64_t row,
                              const Next& next, const End& end) {
    if (n == MOST) return tile_rows<MOST>(form, tile, rows, row, next, end);
    if constexpr (MOST > 1) tile_up_to<MOST - 1>(n, form, tile, rows, row, next, end);
}

// A share of the tiles (all when none are listed) on each thread of the team, as many rows at once as registers hold.
template <class End>
static void product(const Form& form, const int64_t* tiles, int64_t num_tiles, const Rows& rows, int64_t num_rows,
                    const End& end) {
    const int64_t most = form.kind == INT8 ? 8 : 6, blocks = (num_rows + most - 1) / most;
    const int64_t size = TILE * form.inputs;  // INT8
#pragma omp for schedule(static)
    for (int64_t i = 0; i < num_tiles; i++) {
        const int64_t tile = tiles ? tiles[i] : i;
        for (int64_t b = 0; b < blocks; b++) {
            const int64_t row = b * num_rows / blocks, n = (b + 1) * num_rows / blocks - row;
            const auto* next = reinterpret_cast<const char*>(form.data + (tile + 1) * size + b * size / blocks);
            tile_up_to<8>(n, form, tile, rows, row, Next{next, blocks > 1 ? 128 / blocks : 0}, end);
        }
    }
}
