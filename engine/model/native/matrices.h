// The products of product.h for many rows, on a CPU with AMX: 16 rows and 16 outputs in one instruction, which reads
// weights just as vpdpbusd does. The sums are integers, so they are the same ones.
#pragma once
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "form.h"

constexpr int64_t MATRIX = 16, DEPTH = 64;  // rows and outputs of a matrix register, and the bytes of its rows
constexpr int64_t MATRIX_ROWS = 2 * MATRIX;
constexpr int64_t LEAST_MATRIX_ROWS[] = {5, 13};  // INT8, INT4: for fewer, vpdpbusd is as fast

static bool has_matrices = false;

// Linux wants to be asked by each process, once: the registers make every thread's saved state 8 KB larger.
static bool request_matrices() {
    constexpr unsigned TILE_BIT = 1u << 24, INT8_BIT = 1u << 25;
    constexpr int REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;  // arch_prctl
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & TILE_BIT) && (d & INT8_BIT) &&
           syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

// The compiler's own functions do not say which memory they read.
template <int REGISTER>
static inline void load_matrix(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(REGISTER) : "memory");
}
template <int REGISTER>
static inline void store_matrix(void* to) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(int64_t{64}), "i"(REGISTER) : "memory");
}
template <int SUM, int ROWS, int WEIGHTS>
static inline void multiply_matrices() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUM), "i"(ROWS), "i"(WEIGHTS));
}
static inline void clear_matrices() {
    asm volatile("tilezero %tmm0\n tilezero %tmm1\n tilezero %tmm2\n tilezero %tmm3");
}
static inline void release_matrices() { asm volatile("tilerelease"); }

// Registers 0 to 3 hold sums of 32 rows with 32 outputs, 4 and 5 the rows, 6 and 7 weights of `depth` inputs.
static void configure_matrices(int64_t depth) {
    struct alignas(64) {
        uint8_t palette = 1, start = 0, reserved[14] = {};
        uint16_t bytes[16] = {};
        uint8_t rows[16] = {};
    } shapes;
    for (int i = 0; i < 8; i++) {
        shapes.rows[i] = i < 6 ? MATRIX : depth / 4;
        shapes.bytes[i] = i == 4 || i == 5 ? depth : 64;
    }
    asm volatile("ldtilecfg %0" ::"m"(shapes));
}

// One step in depth, of 16 rows or 32.
static inline void multiply_step(const uint8_t* weights, const int8_t* rows, int64_t stride, bool is_double) {
    load_matrix<6>(weights, 4 * TILE);
    load_matrix<7>(weights + 64, 4 * TILE);
    load_matrix<4>(rows, stride);
    multiply_matrices<0, 4, 6>();
    multiply_matrices<1, 4, 7>();
    if (!is_double) return;
    load_matrix<5>(rows + MATRIX * stride, stride);
    multiply_matrices<2, 5, 6>();
    multiply_matrices<3, 5, 7>();
}

// What has been summed up, by halves of the outputs.
struct Sums {
    alignas(64) int32_t of[2][MATRIX_ROWS][MATRIX];

    void store(bool is_double) {
        store_matrix<0>(of[0][0]);
        store_matrix<1>(of[1][0]);
        if (!is_double) return;
        store_matrix<2>(of[0][MATRIX]);
        store_matrix<3>(of[1][MATRIX]);
    }
};

// Rows are read 16 at a time, also where there are fewer: there must be memory.
static void matrix_int8(const Form& form, int64_t tile, const Rows& rows, int64_t row, int64_t n, const Next& next,
                        __m512 (*out)[2]) {
    const int64_t k = form.inputs;
    const uint8_t* w = form.data + tile * TILE * k;
    clear_matrices();
    for (int64_t i = 0; i < k; i += DEPTH) {
        for (int64_t line = 0; line < DEPTH / 4; line++) next.fetch(i / 4 + line);
        for (int64_t byte = 0; byte < DEPTH * TILE; byte += 64)
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
    clear_matrices();
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
