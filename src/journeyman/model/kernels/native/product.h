// C = A W^T: bf16 in, float32 sums, each over the inputs in one fixed order.
//
// A tile of up to ROWS rows by PANEL vectors keeps its sums in registers over all inputs, so the
// order in which an output is summed depends on neither the number of rows, nor the place of the
// row among them, nor the threads: a row has the same bits alone and among thousands.
#pragma once

#include "matrix.h"
#if defined(__AMX_BF16__)
#include "product_amx.h"
#endif

namespace journeyman {

#if defined(__AMX_BF16__)
constexpr int ROWS = 16;
#elif defined(__AVX512F__)
constexpr int ROWS = 8;
#elif defined(__AVX2__)
constexpr int ROWS = 2;
#else
constexpr int ROWS = 1;
#endif
constexpr int TILE_STRIDE = PANEL * LANES;

// What to fetch into the second-level cache while a tile is computed: `rate` cache lines with each
// of the first `count` pairs of inputs. Weights come from main memory once a step; computing a panel for several tiles
// of rows takes longer than fetching the next panel, but only if the two overlap.
struct Ahead {
    const bf16* next;
    int64_t count, rate;
};

// sums [R][TILE_STRIDE] of R rows, `stride` apart, with the V vectors of one panel.
template <int R, int V>
void tile_product(const bf16* inputs, int64_t stride, const bf16* panel, int64_t pairs,
                  Ahead ahead, float* sums) {
    Floats sum[R][V];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 3
        for (int v = 0; v < V; ++v) sum[r][v] = Floats{};
    for (int64_t pair = 0; pair < pairs; ++pair, panel += V * 2 * LANES, inputs += 2) {
        if (pair < ahead.count)
            for (int64_t line = 0; line < ahead.rate; ++line, ahead.next += 2 * LANES)
                __builtin_prefetch(ahead.next, 0, 2);
        Words weights[V];
#pragma GCC unroll 3
        for (int v = 0; v < V; ++v) weights[v] = load_words(panel + v * 2 * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const Words input = broadcast_pair(inputs + r * stride);
#pragma GCC unroll 3
            for (int v = 0; v < V; ++v) sum[r][v] = dot_pairs(sum[r][v], input, weights[v]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 3
        for (int v = 0; v < V; ++v) store(sums + r * TILE_STRIDE + v * LANES, sum[r][v]);
}

template <int R, int V>
void tile_of(int64_t rows, const bf16* inputs, int64_t stride, const bf16* panel, int64_t pairs,
             Ahead ahead, float* sums) {
    if constexpr (R > 1)
        if (rows < R) return tile_of<R - 1, V>(rows, inputs, stride, panel, pairs, ahead, sums);
    tile_product<R, V>(inputs, stride, panel, pairs, ahead, sums);
}

// At most ROWS rows with all vectors of one panel.
INLINE void tile(int64_t rows, int vectors, const bf16* inputs, int64_t stride,
                 const bf16* panel, int64_t pairs, Ahead ahead, float* sums) {
#if defined(__AMX_BF16__)
    (void)ahead;
    amx_tile(rows, vectors, inputs, stride, panel, pairs, sums);
#else
    if (vectors == 3) return tile_of<ROWS, 3>(rows, inputs, stride, panel, pairs, ahead, sums);
    if (vectors == 2) return tile_of<ROWS, 2>(rows, inputs, stride, panel, pairs, ahead, sums);
    return tile_of<ROWS, 1>(rows, inputs, stride, panel, pairs, ahead, sums);
#endif
}

// Rows [begin, end) of `inputs` times one panel; take(row, vector of the panel, sums). `next` is
// the panel that the thread will most likely need afterwards, if it is not the following one.
template <class Take>
INLINE void multiply_panel(const bf16* inputs, int64_t stride, int64_t begin, int64_t end,
                           const Matrix& matrix, int64_t panel, Take&& take,
                           const bf16* next = nullptr) {
    // Through memory, so that a tile is compiled once and not once for each use of its sums.
    alignas(64) float sums[ROWS * TILE_STRIDE];
    const int vectors = matrix.vectors_of(panel);
#if defined(__AMX_BF16__)
    const TileState state;
#endif
    if (!next) next = matrix.panel(panel + 1);
    const int64_t tiles = (end - begin + ROWS - 1) / ROWS;
    // With a single tile the hardware's own streams are as fast as memory.
    const int64_t lines = tiles > 1 ? (matrix.pairs() * vectors + tiles - 1) / tiles : 0;
    const int64_t rate = (vectors + tiles - 1) / tiles;
    for (int64_t row = begin; row < end; row += ROWS) {
        const int64_t rows = end - row < ROWS ? end - row : ROWS;
        const Ahead ahead{next + (row - begin) / ROWS * lines * 2 * LANES, (lines + rate - 1) / rate, rate};
        tile(rows, vectors, inputs + row * stride, stride, matrix.panel(panel), matrix.pairs(),
             ahead, sums);
        for (int64_t r = 0; r < rows; ++r)
            for (int v = 0; v < vectors; ++v)
                take(row + r, v, load(sums + r * TILE_STRIDE + v * LANES));
    }
}

// How rows are cut so that a block of inputs stays in the second-level cache and there are
// enough items for all threads.
INLINE int64_t rows_per_item(int64_t rows, int64_t panels, int threads) {
    constexpr int64_t MOST = 256, LEAST = 32;
    int64_t size = rows < 1 ? 1 : rows < MOST ? rows : MOST;
    while (size > LEAST && (rows + size - 1) / size * panels < 4 * threads) size /= 2;
    return round_up(size, 16);
}

// All rows times the whole matrix; take(row, first output of the vector, sums). Outputs beyond
// the matrix' last are zero: targets are padded to whole vectors.
template <class Take>
void multiply(Worker& worker, const bf16* inputs, int64_t stride, int64_t rows,
              const Matrix& matrix, Take&& take) {
    const int64_t panels = matrix.panels();
    const int64_t step = rows_per_item(rows, panels, worker.threads());
    worker.share((rows + step - 1) / step * panels, [&](int64_t item) {
        const int64_t begin = item / panels * step, panel = item % panels;
        const int64_t end = begin + step < rows ? begin + step : rows;
        multiply_panel(inputs, stride, begin, end, matrix, panel,
                       [&](int64_t row, int vector, Floats sums) INLINE_LAMBDA {
                           take(row, (panel * PANEL + vector) * LANES, sums);
                       });
    });
}

}  // namespace journeyman
