// The matrix registers of a CPU with AMX: 8 of up to 16 rows of 64 bytes. Each thread says what shapes it works with.
#pragma once
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

constexpr int64_t MATRIX = 16;  // rows of a register, and 32-bit numbers of a row

static bool has_matrices = false;

// Linux wants to be asked by each process, once: the registers make every thread's saved state 8 KB larger.
static bool request_matrices() {
    constexpr unsigned BF16 = 1u << 22, TILE = 1u << 24, INT8 = 1u << 25, ALL = BF16 | TILE | INT8;
    constexpr int REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;  // arch_prctl
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & ALL) == ALL &&
           syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

struct alignas(64) MatrixShapes {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};

    void set(int number, int64_t num_rows, int64_t num_bytes) {
        rows[number] = static_cast<uint8_t>(num_rows);
        bytes[number] = static_cast<uint16_t>(num_bytes);
    }
    void use() const { asm volatile("ldtilecfg %0" ::"m"(*this)); }
};

static inline void release_matrices() { asm volatile("tilerelease"); }

// The compiler's own functions do not say which memory they read.
template <int REGISTER>
static inline void load_matrix(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(REGISTER) : "memory");
}
template <int REGISTER>
static inline void store_matrix(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(REGISTER) : "memory");
}

// Registers 0 to 3, which hold what is summed up everywhere; in memory their rows lie side by side.
static inline void clear_sums() {
    asm volatile("tilezero %tmm0\n tilezero %tmm1\n tilezero %tmm2\n tilezero %tmm3");
}
static inline void load_sums(const float* from, int64_t stride) {
    load_matrix<0>(from, stride);
    load_matrix<1>(from + MATRIX, stride);
    load_matrix<2>(from + 2 * MATRIX, stride);
    load_matrix<3>(from + 3 * MATRIX, stride);
}
static inline void store_sums(float* to, int64_t stride) {
    store_matrix<0>(to, stride);
    store_matrix<1>(to + MATRIX, stride);
    store_matrix<2>(to + 2 * MATRIX, stride);
    store_matrix<3>(to + 3 * MATRIX, stride);
}

// SUM += A times B, of which two (bfloat16) or four (bytes) rows lie side by side.
template <int SUM, int A, int B>
static inline void multiply_int8() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUM), "i"(A), "i"(B));
}
template <int SUM, int A, int B>
static inline void multiply_bf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUM), "i"(A), "i"(B));
}
