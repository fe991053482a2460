// Operands of the products of a backward pass, and the products.
//
// Rows r and r + 1 of a matrix are interleaved, so that products sum over rows: gradients of
// weights sum over tokens, gradients of inputs over outputs. Layout: [panel][rows / 2][48][2], 48
// columns to a panel, zeros beyond the last row and column. Sums are float32 and their order
// depends on neither the number of threads nor on which of them computes what.
#pragma once

#include <algorithm>

#include "memory.h"
#include "pool.h"
#include "vector.h"

namespace journeyman {

constexpr int64_t COLUMNS = 48;          // of a panel
constexpr int PANEL_VECTORS = 3;         // of LANES columns
constexpr int GROUP = 8;                 // rows of results in registers at a time
constexpr int64_t PAIR = COLUMNS * 2;    // elements of one pair of rows in a panel
constexpr int64_t CACHED_BYTES = 400 << 10;  // what one thread may expect to keep at hand

class Pairs {
  public:
    int64_t panels() const { return panels_; }
    int64_t pairs() const { return pairs_; }
    int64_t width() const { return width_; }
    const bf16* panel(int64_t index) const { return data_.data() + index * pairs_ * PAIR; }
    bf16* panel(int64_t index) { return data_.data() + index * pairs_ * PAIR; }

    // Room for `rows` rows of `width` columns; what it held is lost.
    void shape(int64_t rows, int64_t width) {
        width_ = width;
        panels_ = (width + COLUMNS - 1) / COLUMNS;
        pairs_ = (rows + 1) / 2;
        data_.reserve(panels_ * pairs_ * PAIR);
    }

    // Take `rows` rows of bf16 `source`, `stride` elements from one to the next, as rows `first`
    // (even) and following; the width is a multiple of LANES.
    void pack(Worker& worker, const bf16* source, int64_t stride, int64_t rows, int64_t first = 0) {
        constexpr int64_t STEP = 64;
        const int64_t count = (rows + 1) / 2, steps = (count + STEP - 1) / STEP;
        worker.share(panels_ * steps, [&](int64_t item) {
            const int64_t index = item / steps, begin = item % steps * STEP;
            const int64_t end = std::min(count, begin + STEP);
            bf16* target = panel(index) + (first / 2 + begin) * PAIR;
            const int64_t columns = std::min(COLUMNS, width_ - index * COLUMNS);
            for (int64_t pair = begin; pair < end; ++pair, target += PAIR)
                pack_pair(target, source + pair * 2 * stride + index * COLUMNS, stride, columns,
                          pair * 2 + 1 < rows);
        });
    }

  private:
    static void pack_pair(bf16* target, const bf16* source, int64_t stride, int64_t columns,
                          bool second) {
        for (int64_t c = 0; c < COLUMNS; c += LANES) {
            Words mixed = {};
            if (c < columns) {
                mixed = (Words)load_bf16(source + c) >> 16;
                if (second) mixed |= (Words)load_bf16(source + stride + c);
            }
            std::memcpy(target + c * 2, &mixed, sizeof mixed);
        }
    }

    int64_t width_ = 0, panels_ = 0, pairs_ = 0;
    Buffer<bf16> data_;
};

// c[r][v] += sum over pairs of a[r] . b[v]: R rows and V vectors, a's rows `a_row` and its pairs
// `a_pair` elements apart, b's pairs `b_pair` apart, c's rows `c_row`.
template <int R, int V>
void accumulate_tile(const bf16* a, int64_t a_row, int64_t a_pair, const bf16* b, int64_t b_pair,
                     int64_t pairs, float* c, int64_t c_row) {
    Floats sum[R][V];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) sum[r][v] = load(c + r * c_row + v * LANES);
    for (int64_t pair = 0; pair < pairs; ++pair, a += a_pair, b += b_pair) {
        Words right[V];
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) right[v] = load_words(b + v * 2 * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const Words left = broadcast_pair(a + r * a_row);
#pragma GCC unroll 4
            for (int v = 0; v < V; ++v) sum[r][v] = dot_pairs(sum[r][v], left, right[v]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) store(c + r * c_row + v * LANES, sum[r][v]);
}

template <int R, int V>
void accumulate_rows(int64_t rows, const bf16* a, int64_t a_row, int64_t a_pair, const bf16* b,
                     int64_t b_pair, int64_t pairs, float* c, int64_t c_row) {
    if constexpr (R > 1)
        if (rows < R)
            return accumulate_rows<R - 1, V>(rows, a, a_row, a_pair, b, b_pair, pairs, c, c_row);
    accumulate_tile<R, V>(a, a_row, a_pair, b, b_pair, pairs, c, c_row);
}

// Up to GROUP rows and up to three vectors.
INLINE void accumulate(int64_t rows, int64_t vectors, const bf16* a, int64_t a_row, int64_t a_pair,
                       const bf16* b, int64_t b_pair, int64_t pairs, float* c, int64_t c_row) {
    if (vectors >= 3)
        return accumulate_rows<GROUP, 3>(rows, a, a_row, a_pair, b, b_pair, pairs, c, c_row);
    if (vectors == 2)
        return accumulate_rows<GROUP, 2>(rows, a, a_row, a_pair, b, b_pair, pairs, c, c_row);
    return accumulate_rows<GROUP, 1>(rows, a, a_row, a_pair, b, b_pair, pairs, c, c_row);
}

INLINE int64_t vectors_in(int64_t width, int64_t panel) {
    return std::min<int64_t>(PANEL_VECTORS, (width - panel * COLUMNS + LANES - 1) / LANES);
}

// Rows of bf16 `a` [rows, 2 b.pairs()] times b; take(row, first column of the vector, sums).
template <class Take>
void multiply_pairs(Worker& worker, const bf16* a, int64_t stride, int64_t rows, const Pairs& b,
                    Take&& take) {
    constexpr int64_t STEP = 128;
    const int64_t steps = (rows + STEP - 1) / STEP;
    worker.share(steps * b.panels(), [&](int64_t item) {
        const int64_t begin = item / b.panels() * STEP, panel = item % b.panels();
        const int64_t end = std::min(rows, begin + STEP), vectors = vectors_in(b.width(), panel);
        for (int64_t row = begin; row < end; row += GROUP) {
            alignas(64) float sums[GROUP * COLUMNS] = {};
            const int64_t count = std::min<int64_t>(GROUP, end - row);
            accumulate(count, vectors, a + row * stride, stride, 2, b.panel(panel), PAIR,
                       b.pairs(), sums, COLUMNS);
            for (int64_t r = 0; r < count; ++r)
                for (int64_t v = 0; v < vectors; ++v)
                    take(row + r, panel * COLUMNS + v * LANES, load(sums + r * COLUMNS + v * LANES));
        }
    });
}

// target [rows, width of b] += a b for a long inner axis: a stretch of it at a time, so that b is
// read once for all rows, and some panels together, so that a is read few times.
inline void multiply_long(Worker& worker, const bf16* a, int64_t stride, int64_t rows,
                          const Pairs& b, float* target, int64_t target_stride) {
    constexpr int64_t TOGETHER = 3;
    const int64_t stretch = CACHED_BYTES / int64_t(PAIR * sizeof(bf16)) / TOGETHER;
    worker.share((b.panels() + TOGETHER - 1) / TOGETHER, [&](int64_t item) {
        const int64_t last = std::min(b.panels(), (item + 1) * TOGETHER);
        for (int64_t first = 0; first < b.pairs(); first += stretch) {
            const int64_t pairs = std::min(stretch, b.pairs() - first);
            for (int64_t row = 0; row < rows; row += GROUP)
                for (int64_t panel = item * TOGETHER; panel < last; ++panel)
                    accumulate(std::min<int64_t>(GROUP, rows - row), vectors_in(b.width(), panel),
                               a + row * stride + first * 2, stride, 2,
                               b.panel(panel) + first * PAIR, PAIR, pairs,
                               target + row * target_stride + panel * COLUMNS, target_stride);
        }
    });
}

// target [width of a, width of b] += a^T b, summed over the rows they share.
inline void add_outer(Worker& worker, const Pairs& a, const Pairs& b, float* target) {
    const int64_t stretch = std::max<int64_t>(
        32, CACHED_BYTES / int64_t(PAIR * sizeof(bf16)) / b.panels());
    const int64_t together = std::max<int64_t>(1, a.panels() / (4 * worker.threads()));
    const int64_t items = (a.panels() + together - 1) / together;
    worker.share(items, [&](int64_t item) {
        const int64_t last = std::min(a.panels(), (item + 1) * together);
        for (int64_t first = 0; first < a.pairs(); first += stretch) {
            const int64_t pairs = std::min(stretch, a.pairs() - first);
            for (int64_t left = item * together; left < last; ++left)
                for (int64_t right = 0; right < b.panels(); ++right) {
                    const int64_t rows = std::min(COLUMNS, a.width() - left * COLUMNS);
                    for (int64_t row = 0; row < rows; row += GROUP)
                        accumulate(std::min<int64_t>(GROUP, rows - row),
                                   vectors_in(b.width(), right),
                                   a.panel(left) + first * PAIR + row * 2, 2, PAIR,
                                   b.panel(right) + first * PAIR, PAIR, pairs,
                                   target + (left * COLUMNS + row) * b.width() + right * COLUMNS,
                                   b.width());
                }
        }
    });
}

}  // namespace journeyman
