// A decoder layer on a CPU with AVX-512 VNNI and BF16 instructions. Plain C interface; see structs.py for its other side.
// Nothing is allocated here, and a row's result does not depend on the rows that are computed beside it.
#include "attention.h"
#include "product.h"

extern "C" int omp_get_thread_num();

struct Shape {
    int64_t hidden, num_heads, num_kv_heads, head_dim, ffn;
    float eps;
};

struct Layer {
    Form qkv, output, gate_up, down;
    const float *attn_norm, *ffn_norm;
};

struct Sequence {
    int64_t first_row, num_rows, first_position;
    const int64_t* blocks;
};

struct Workspace {
    int8_t* activations;    // [rows, most inputs]
    float *scales, *sums;   // [rows, most inputs / 32]
    float *heads, *attended, *gated;  // [rows, heads + 2 kv heads, head_dim], [rows, heads, head_dim], [rows, ffn]
    bf16* queries;          // [rows, heads, head_dim]
    float* scratch;         // [threads, most inputs]
};

struct Pass {
    int64_t num_rows, num_sequences, num_threads, most_inputs;
    const Sequence* sequences;
    const int64_t *positions, *storage_rows;  // [rows]
    const float *cos, *sin;                   // [positions, head_dim / 2]
    Workspace work;
};

// Activations of every row, normalised first if there is a weight for it.
static void quantise_rows(const Form& form, const Pass& pass, const float* x, const float* norm, float eps) {
    const Rows rows{pass.work.activations, pass.work.scales, pass.work.sums};
    float* scratch = pass.work.scratch + omp_get_thread_num() * pass.most_inputs;
#pragma omp for schedule(static)
    for (int64_t row = 0; row < pass.num_rows; row++) {
        const float* from = x + row * form.inputs;
        if (norm) rms_norm(from, norm, form.inputs, eps, scratch);
        else std::copy(from, from + form.inputs, scratch);
        quantise(form, scratch, row, rows);
    }
}

template <class End>
static void multiply(const Form& form, const Pass& pass, const End& end) {
    const Rows rows{pass.work.activations, pass.work.scales, pass.work.sums};
    product(form, nullptr, form.outputs / TILE, rows, pass.num_rows, end);
}

// Turn pairs of dimensions by their position's angle (Su et al., RoFormer, 2021).
static inline void turn(const float* x, const float* cos, const float* sin, int64_t half, bf16* out) {
    for (int64_t d = 0; d < half; d += 16) {
        const __m512 a = _mm512_loadu_ps(x + d), b = _mm512_loadu_ps(x + half + d);
        const __m512 c = _mm512_loadu_ps(cos + d), s = _mm512_loadu_ps(sin + d);
        store_bf16(out + d, _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)));
        store_bf16(out + half + d, _mm512_fmadd_ps(b, c, _mm512_mul_ps(a, s)));
    }
}

// Numbers i, i + 1 … of a token to the place in its block that attention.h wants: of values every second.
static inline void place_value(__m512 v, int64_t token, int32_t* pairs) {
    const __m512i wide = _mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v)));
    if (token % 2) _mm512_mask_storeu_epi16(pairs, 0xAAAAAAAA, _mm512_slli_epi32(wide, 16));
    else _mm512_mask_storeu_epi16(pairs, 0x55555555, wide);
}

static void place_heads(const Shape& shape, const Pass& pass, int32_t* keys, int32_t* values) {
    const int64_t dim = shape.head_dim, half = dim / 2, kv = shape.num_kv_heads;
#pragma omp for schedule(static)
    for (int64_t row = 0; row < pass.num_rows; row++) {
        const float* from = pass.work.heads + row * (shape.num_heads + 2 * kv) * dim;
        const float *cos = pass.cos + pass.positions[row] * half, *sin = pass.sin + pass.positions[row] * half;
        bf16* queries = pass.work.queries + row * shape.num_heads * dim;
        for (int64_t h = 0; h < shape.num_heads; h++, from += dim) turn(from, cos, sin, half, queries + h * dim);
        const int64_t token = pass.storage_rows[row] % BLOCK;
        const int64_t at = pass.storage_rows[row] / BLOCK * kv * dim * BLOCK / 2;
        alignas(64) int32_t turned[64];
        for (int64_t h = 0; h < kv; h++, from += dim) {
            turn(from, cos, sin, half, reinterpret_cast<bf16*>(turned));
            for (int64_t i = 0; i < half; i++) keys[at + (h * half + i) * BLOCK + token] = turned[i];
        }
        for (int64_t h = 0; h < kv; h++, from += dim)
            for (int64_t d = 0; d < dim; d += 16)
                place_value(_mm512_loadu_ps(from + d), token, values + at + (h * BLOCK + token) / 2 * dim + d);
    }
}

template <int D>
static void attend_heads(const Shape& shape, const Pass& pass, const int32_t* keys, const int32_t* values) {
    const int64_t per_row = shape.num_heads / shape.num_kv_heads, most_rows = MOST_QUERIES / per_row;
    const int64_t width = shape.num_heads * D;
    const int64_t block = D * BLOCK / 2, stride = shape.num_kv_heads * block;
    if (has_matrices) configure_attention();
    for (int64_t i = 0; i < pass.num_sequences; i++) {
        const Sequence& sequence = pass.sequences[i];
        const int64_t parts = (sequence.num_rows + most_rows - 1) / most_rows;
#pragma omp for schedule(dynamic) nowait
        for (int64_t item = 0; item < parts * shape.num_kv_heads; item++) {
            // the last rows see the most keys: they begin
            const int64_t head = item % shape.num_kv_heads, part = parts - 1 - item / shape.num_kv_heads;
            const int64_t first = part * sequence.num_rows / parts, end = (part + 1) * sequence.num_rows / parts;
            const int64_t row = sequence.first_row + first, column = head * per_row * D;
            const Queries queries{pass.work.queries + row * width + column, width, end - first, per_row,
                                  sequence.first_position + first};
            Scratch<D> scratch;
            attend<D>(queries, {keys + head * block, stride}, {values + head * block, stride}, sequence.blocks,
                      pass.work.attended + row * width + column, width, scratch);
        }
    }
    if (has_matrices) release_matrices();
#pragma omp barrier
}

static void attend_all(const Shape& shape, const Pass& pass, const int32_t* keys, const int32_t* values) {
    if (shape.head_dim == 64) attend_heads<64>(shape, pass, keys, values);
    else attend_heads<128>(shape, pass, keys, values);
}

extern "C" {

// Whether products of many rows use AMX from now on: if that is wanted, and there is any.
int64_t midline_use_matrices(int64_t is_wanted) {
    has_matrices = is_wanted && request_matrices();
    return has_matrices;
}

// x[rows, hidden] through one layer; writes the rows' keys and values.
void midline_layer(const Shape* shape, const Layer* layer, const Pass* pass, float* x, int32_t* keys,
                   int32_t* values) {
    const int64_t heads = shape->num_heads + 2 * shape->num_kv_heads;
    const Workspace& work = pass->work;
#pragma omp parallel num_threads(pass->num_threads)
    {
        quantise_rows(layer->qkv, *pass, x, layer->attn_norm, shape->eps);
        multiply(layer->qkv, *pass, Store{work.heads, heads * shape->head_dim});
        place_heads(*shape, *pass, keys, values);
        attend_all(*shape, *pass, keys, values);
        quantise_rows(layer->output, *pass, work.attended, nullptr, 0);
        multiply(layer->output, *pass, Add{x, shape->hidden});
        quantise_rows(layer->gate_up, *pass, x, layer->ffn_norm, shape->eps);
        multiply(layer->gate_up, *pass, Gate{work.gated, shape->ffn});
        quantise_rows(layer->down, *pass, work.gated, nullptr, 0);
        multiply(layer->down, *pass, Add{x, shape->hidden});
    }
}

// The attention of one layer alone, for measuring.
void midline_attention(const Shape* shape, const Pass* pass, const int32_t* keys, const int32_t* values) {
#pragma omp parallel num_threads(pass->num_threads)
    attend_all(*shape, *pass, keys, values);
}

// The product alone: x[rows, inputs], normalised first if there is a weight for it, to out[rows, outputs]; of the
// outputs only the tiles of 32 that are listed.
void midline_product(const Form* form, const Pass* pass, const float* x, const float* norm, float eps, float* out,
                     const int64_t* tiles, int64_t num_tiles) {
#pragma omp parallel num_threads(pass->num_threads)
    {
        quantise_rows(*form, *pass, x, norm, eps);
        const Rows rows{pass->work.activations, pass->work.scales, pass->work.sums};
        product(*form, tiles, num_tiles, rows, pass->num_rows, Store{out, form->outputs});
    }
}

// Of the product's first `num_outputs` outputs the largest one's number, of equals the first, and the logarithm of its
// share of all exponentials. The outputs themselves are in memory only for rows that have a place for them.
// `partial` is float32 [threads, 3, rows, 16].
void midline_best(const Form* form, const Pass* pass, const float* x, const float* norm, float eps, int64_t num_outputs,
                  float* partial, float* const* places, int64_t* best, float* logprobs) {
    const int64_t num_rows = pass->num_rows, lanes = 16 * num_rows;
    const auto part_of = [&](int64_t thread) {
        float* own = partial + thread * 3 * lanes;
        return Best{own, own + lanes, reinterpret_cast<int32_t*>(own + 2 * lanes), num_outputs, places};
    };
#pragma omp parallel num_threads(pass->num_threads)
    {
#pragma omp for schedule(static)
        for (int64_t thread = 0; thread < pass->num_threads; thread++) part_of(thread).clear(num_rows);
        quantise_rows(*form, *pass, x, norm, eps);
        const Rows rows{pass->work.activations, pass->work.scales, pass->work.sums};
        product(*form, nullptr, (num_outputs + TILE - 1) / TILE, rows, num_rows, part_of(omp_get_thread_num()));
#pragma omp for schedule(static)
        for (int64_t row = 0; row < num_rows; row++) {
            float most = -1e30f, sum = 0.0f;
            int64_t at = 0;
            for (int64_t i = 0; i < 16 * pass->num_threads; i++) {
                const Best part = part_of(i / 16);
                const int64_t lane = 16 * row + i % 16;
                if (part.most[lane] > most || (part.most[lane] == most && part.at[lane] < at)) {
                    sum = sum * std::exp(most - part.most[lane]) + part.sum[lane];
                    most = part.most[lane];
                    at = part.at[lane];
                } else {
                    sum += part.sum[lane] * std::exp(part.most[lane] - most);
                }
            }
            best[row] = at;
            logprobs[row] = -std::log(sum);
        }
    }
}

// Rotates, rounds and lays out float32 [outputs, inputs], both multiples of a tile and of 64, which it overwrites.
void midline_pack_int8(float* weight, int64_t outputs, int64_t inputs, uint8_t* data, float* scales) {
    for (int64_t output = 0; output < outputs; output++) {
        float* from = weight + output * inputs;
        rotate(from, inputs);
        scales[output] = largest(from, inputs) / 127.0f;
        const __m512 factor = _mm512_set1_ps(1.0f / scales[output]);
        const __m512i offset = _mm512_set1_epi32(128);
        uint8_t* to = data + output / TILE * TILE * inputs + output % TILE * 4;
        for (int64_t i = 0; i < inputs; i += 16) {
            alignas(16) uint8_t bytes[16];
            const __m512i v = _mm512_add_epi32(rounded(from + i, factor), offset);
            _mm_store_si128(reinterpret_cast<__m128i*>(bytes), _mm512_cvtusepi32_epi8(v));
            for (int j = 0; j < 16; j += 4) std::copy(bytes + j, bytes + j + 4, to + (i + j) * TILE);
        }
    }
}

}  // extern "C"
