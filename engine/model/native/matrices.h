// The products of product.h for many rows, on a CPU with AMX: 16 rows and 16 outputs in one instruction, which reads
// weights just as vpdpbusd does. The sums are integers, so they are the same ones.
#pragma once
#include "amx.h"
#include "form.h"

constexpr int64_t DEPTH = 64;  // inputs in a row of a register
constexpr int64_t MATRIX_ROWS = 2 * MATRIX;
constexpr int64_t LEAST_MATRIX_ROWS[] = {5, 13};  // INT8, INT4: for fewer, vpdpbusd is as fast

// Registers 0 to 3 hold sums of 32 rows with 32 outputs, 4 and 5 the rows, 6 and 7 weights of `depth` inputs.
static void configure_products(int64_t depth) {
    MatrixShapes shapes;
    for (int i = 0; i < 4; i++) shapes.set(i, MATRIX, 64);
    for (int i = 4; i < 6; i++) shapes.set(i, MATRIX, depth);
    for (int i = 6; i < 8; i++) shapes.set(i, depth / 4, 64);
    shapes.use();
}

// One step in depth, of 16 rows or 32.
static inline void multiply_step(const uint8_t* weights, const int8_t* rows, int64_t stride, bool is_double) {
    load_matrix<6>(weights, 4 * TILE);
    load_matrix<7>(weights + 64, 4 * TILE);
    load_matrix<4>(rows, stride);
    multiply_int8<0, 4, 6>();
    multiply_int8<1, 4, 7>();
    if (!is_double) return;
    load_matrix<5>(rows + MATRIX * stride, stride);
    multiply_int8<2, 5, 6>();
    multiply_int8<3, 5, 7>();
}

// What has been summed up, by halves of the outputs.
struct Sums {
    alignas(64) int32_t of[2][MATRIX_ROWS][MATRIX];

    void store(bool is_double) {
        store_matrix<0>(of[0][0], 64);
        store_matrix<1>(of[1][0], 64);
        if (!is_double) return;
        store_matrix<2>(of[0][MATRIX], 64);
        store_matrix<3>(of[1][MATRIX], 64);
    }
};

// Rows are read 16 at a time, also where there are fewer: there must be memory.
static void matrix_int8(const Form& form, int64_t tile, const Rows& rows, int64_t row, int64_t n, const Next& next,
                        __m512 (*out)[2]) {
    const int64_t k = form.inputs;
    const uint8_t* w = form.data + tile * TILE * k;
    clear_sums();
    for (int64_t i = 0; i < k; i += DEPTH) {
        for (int64_t line = 0; line < DEPTH / 4; line++) next.fetch(i / 4 + line);
        // with all rows at once there is no time to fetch the next tile, but there is for this one, two steps ahead
        for (int64_t byte = 0; !next.step && byte < DEPTH * TILE; byte += 64)
            _mm_prefetch(reinterpret_cast<const char*>(w + (i + 2 * DEPTH) * TILE + byte), _MM_HINT_T0);
        multiply_step(w + i * TILE, rows.data + row * k + i, k, n > MATRIX);
    }
    Sums sums;
    sums.store(n > MATRIX);
    for (int64_t r = 0; r < n; r++)
        for (int h = 0; h < 2; h++) {
            // the weights have no sign: 128 is taken off here for the whole row
            const __m512i offset = _mm512_set1_epi32(-128 * static_cast<int32_t>(rows.sums[row + r]));
            const __m512 scales = _mm512_loadu_ps(form.scales + tile * TILE + 16 * h);
            const __m512 scale = _mm512_mul_ps(scales, _mm512_set1_ps(rows.scales[row + r]));
            out[r][h] = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_load_si512(sums.of[h][r]), offset)), scale);
        }
}

// Of one group: weights in 4 bits are laid out as int8 weights first.
static void sum_group(const uint8_t* w, const int8_t* rows, int64_t stride, bool is_double, Sums& sums) {
    alignas(64) uint8_t bytes[GROUP * TILE];
    const __m512i low_half = _mm512_set1_epi8(15);
    UNROLL for (int line = 0; line < 8; line++) {
        const __m512i both = _mm512_loadu_si512(w + 64 * line);
        _mm512_store_si512(bytes + 64 * line, _mm512_and_si512(both, low_half));
        _mm512_store_si512(bytes + 64 * (line + 8), _mm512_and_si512(_mm512_srli_epi16(both, 4), low_half));
    }
    clear_sums();
    multiply_step(bytes, rows, stride, is_double);
    sums.store(is_double);
}

// As above, but each group has a scale, and so a sum of its own: that of the next is computed beside the scaling.
static void matrix_int4(const Form& form, int64_t tile, const Rows& rows, int64_t row, int64_t n, __m512 (*out)[2]) {
    const int64_t k = form.inputs, groups = k / GROUP;
    const uint8_t* w = form.data + tile * groups * INT4_BLOCK;
    const int8_t* a = rows.data + row * k;
    const float *scales = rows.scales + row * groups, *minima = rows.sums + row * groups;
    for (int64_t r = 0; r < n; r++) out[r][0] = out[r][1] = _mm512_setzero_ps();
    Sums sums[2];
    sum_group(w, a, k, n > MATRIX, sums[0]);
    for (int64_t g = 0; g < groups; g++, w += INT4_BLOCK) {
        if (g + 1 < groups) sum_group(w + INT4_BLOCK, a + (g + 1) * GROUP, k, n > MATRIX, sums[(g + 1) % 2]);
        __m512 scale[2], minimum[2];
        for (int h = 0; h < 2; h++) {
            const auto* halves = reinterpret_cast<const __m256i*>(w + TILE * GROUP / 2 + 32 * h);
            scale[h] = _mm512_cvtph_ps(_mm256_loadu_si256(halves));
            minimum[h] = _mm512_cvtph_ps(_mm256_loadu_si256(halves + 2));
        }
        for (int64_t r = 0; r < n; r++) {
            const __m512 own = _mm512_set1_ps(scales[r * groups + g]), least = _mm512_set1_ps(minima[r * groups + g]);
            UNROLL for (int h = 0; h < 2; h++) {
                const __m512 sum = _mm512_cvtepi32_ps(_mm512_load_si512(sums[g % 2].of[h][r]));
                const __m512 scaled = _mm512_fmadd_ps(sum, _mm512_mul_ps(scale[h], own), out[r][h]);
                out[r][h] = _mm512_fmadd_ps(minimum[h], least, scaled);
            }
        }
    }
}
