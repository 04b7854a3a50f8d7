// How weights and the rows that are multiplied with them are kept.
#pragma once
#include "numbers.h"

// registers are arrays: only a loop that is unrolled early keeps them out of memory
#define UNROLL _Pragma("GCC unroll 8")

enum Kind : int64_t { INT8 = 0, INT4 = 1 };

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
