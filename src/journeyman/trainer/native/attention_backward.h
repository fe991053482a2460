// Gradients of attention in a trie of token streams.
//
// Nodes are in depth-first order, so a segment's descendants follow it without a gap: the queries
// that see a block of keys are one range, of which only the rows of the block itself are masked.
// Each block of keys is visited once, and weights are computed again from the saved logarithms of
// the softmax' totals (FlashAttention 2, arXiv 2307.08691). One item is one query head.
#pragma once

#include "pairs.h"

namespace journeyman {

constexpr int64_t QUERIES = 64;  // rows of queries at a time
constexpr int64_t KEYS = COLUMNS;

struct KeyBlock {
    int32_t begin, end;    // nodes
    int32_t descendants;   // the first node that is no descendant of the segment
};

// What one layer's attention took and gave. Strides are in elements from node to node.
struct AttentionRecord {
    const bf16 *queries, *keys, *values;  // rotated; the heads of a node side by side
    const bf16* mixed;
    const float* log_totals;  // [nodes, heads]
    const bf16* upstream;     // d loss / d mixed
    int64_t stride, mixed_stride;
    int64_t nodes, heads, kv_heads, head_dim;
};

// One thread's room. Gradients of keys and values lie transposed: [block][Dh][KEYS].
struct AttentionRoom {
    Buffer<bf16> queries_turned, upstream_turned;  // [Dh][nodes]
    Buffer<float> deltas;                          // [nodes]
    Buffer<float> query_gradient;                  // [nodes + QUERIES][Dh]
};

// Blocks of keys as the products want them: the same panel for scores and for d weights, and
// interleaved along keys for the gradient of queries.
struct PackedKeys {
    Buffer<bf16> by_width[2];  // keys, values: [block][Dh / 2][KEYS][2]
    Buffer<bf16> by_key;       // keys: [block][KEYS / 2][Dh][2]
};

INLINE void pack_block(PackedKeys& packed, const AttentionRecord& record, const KeyBlock& block,
                       int64_t place, int64_t kv_head) {
    const int64_t width = record.head_dim, size = width * KEYS;
    const bf16* sources[2] = {record.keys + kv_head * width, record.values + kv_head * width};
    for (int which = 0; which < 2; ++which) {
        bf16* target = packed.by_width[which].data() + place * size;
        for (int64_t key = 0; key < KEYS; ++key) {
            const bool valid = block.begin + key < block.end;
            const bf16* row = sources[which] + (block.begin + key) * record.stride;
            for (int64_t i = 0; i < width; i += 2) {
                uint32_t pair = 0;
                if (valid) std::memcpy(&pair, row + i, sizeof pair);
                std::memcpy(target + (i / 2 * KEYS + key) * 2, &pair, sizeof pair);
            }
        }
    }
    bf16* target = packed.by_key.data() + place * size;
    for (int64_t key = 0; key < KEYS; key += 2)
        for (int64_t i = 0; i < width; i += LANES) {
            Words mixed = {};
            const bf16* row = sources[0] + (block.begin + key) * record.stride + i;
            if (block.begin + key < block.end) mixed = (Words)load_bf16(row) >> 16;
            if (block.begin + key + 1 < block.end) mixed |= (Words)load_bf16(row + record.stride);
            std::memcpy(target + (key / 2 * width + i) * 2, &mixed, sizeof mixed);
        }
}

// [rows, Dh] at `stride` to [Dh][turned_stride], zeros beyond the rows.
INLINE void turn(bf16* target, int64_t turned_stride, const bf16* source, int64_t stride,
                 int64_t rows, int64_t width) {
    constexpr int64_t STEP = 32;
    for (int64_t first = 0; first < turned_stride; first += STEP)
        for (int64_t i = 0; i < width; ++i) {
            bf16* line = target + i * turned_stride;
            const int64_t end = std::min(turned_stride, first + STEP);
            for (int64_t row = first; row < end; ++row)
                line[row] = row < rows ? source[row * stride + i] : bf16(0);
        }
}

// Weights of one tile of queries and keys and what they passed on, ready for the three products.
struct WeightTile {
    alignas(64) float scores[QUERIES][KEYS];
    alignas(64) float passed[QUERIES][KEYS];    // upstream . values
    alignas(64) bf16 weights[QUERIES / 2][KEYS][2];
    alignas(64) bf16 slopes[QUERIES / 2][KEYS][2];
    alignas(64) bf16 slope_rows[QUERIES][KEYS];
};

// Of two neighbouring queries; rows beyond `valid` and keys beyond the block's or after a query
// weigh nothing.
INLINE void weigh_pair(WeightTile& tile, int64_t row, int64_t first, int64_t valid,
                       const KeyBlock& block, const float* log_totals, int64_t heads,
                       const float* deltas, float scale) {
    const Ints lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    for (int64_t k = 0; k < KEYS; k += LANES) {
        Words weights = {}, slopes = {};
        for (int64_t r = 0; r < 2; ++r) {
            if (row + r >= valid) continue;
            const int64_t query = first + row + r;
            const int64_t visible = std::min<int64_t>(block.end, query + 1) - block.begin - k;
            const Floats score = load(tile.scores[row + r] + k) * broadcast(scale);
            const Floats whole = exponential(score - broadcast(log_totals[query * heads]));
            const Floats weight = lane < int32_t(visible) ? whole : Floats{};
            const Floats change = load(tile.passed[row + r] + k) - broadcast(deltas[query]);
            const Halves slope = narrow(weight * change * broadcast(scale));
            std::memcpy(tile.slope_rows[row + r] + k, &slope, sizeof slope);
            weights |= __builtin_convertvector(narrow(weight), Words) << (r * 16);
            slopes |= __builtin_convertvector(slope, Words) << (r * 16);
        }
        std::memcpy(tile.weights[row / 2][k], &weights, sizeof weights);
        std::memcpy(tile.slopes[row / 2][k], &slopes, sizeof slopes);
    }
}

// rows x KEYS scores: a [rows, Dh] at `stride` times a block packed by width.
INLINE void tile_of_products(float (*target)[KEYS], const bf16* a, int64_t stride, const bf16* block,
                             int64_t rows, int64_t width) {
    std::memset(target, 0, size_t(rows) * sizeof *target);
    for (int64_t row = 0; row < rows; row += GROUP)
        accumulate(std::min<int64_t>(GROUP, rows - row), PANEL_VECTORS, a + row * stride, stride, 2,
                   block, PAIR, width / 2, target[row], KEYS);
}

// target [Dh][KEYS] += turned [Dh][rows] times weights of the rows.
INLINE void add_turned(float* target, const bf16* turned, int64_t turned_stride,
                       const bf16 (*weights)[KEYS][2], int64_t rows, int64_t width) {
    for (int64_t i = 0; i < width; i += GROUP)
        accumulate(std::min<int64_t>(GROUP, width - i), PANEL_VECTORS, turned + i * turned_stride,
                   turned_stride, 2, &weights[0][0][0], PAIR, (rows + 1) / 2, target + i * KEYS,
                   KEYS);
}

// One tile: queries [first, first + rows) of one head with one block of keys.
INLINE void tile_backward(WeightTile& tile, const AttentionRecord& record, AttentionRoom& room,
                          const PackedKeys& packed, const KeyBlock& block, int64_t place,
                          int64_t head, int64_t first, int64_t rows, float* key_gradient,
                          float* value_gradient) {
    const int64_t width = record.head_dim, size = width * KEYS;
    const int64_t turned_stride = round_up(record.nodes, LANES) + LANES;
    const float scale = 1.0f / std::sqrt(float(width));
    tile_of_products(tile.scores, record.queries + first * record.stride + head * width,
                     record.stride, packed.by_width[0].data() + place * size, rows, width);
    tile_of_products(tile.passed, record.upstream + first * record.mixed_stride + head * width,
                     record.mixed_stride, packed.by_width[1].data() + place * size, rows, width);
    for (int64_t row = 0; row < rows; row += 2)
        weigh_pair(tile, row, first, rows, block, record.log_totals + head, record.heads,
                   room.deltas.data(), scale);
    add_turned(value_gradient, room.upstream_turned.data() + first, turned_stride, tile.weights,
               rows, width);
    add_turned(key_gradient, room.queries_turned.data() + first, turned_stride, tile.slopes, rows,
               width);
    for (int64_t row = 0; row < rows; row += GROUP)
        for (int64_t i = 0; i < width; i += 2 * LANES)
            accumulate(std::min<int64_t>(GROUP, rows - row), std::min<int64_t>(2, (width - i) / LANES),
                       tile.slope_rows[row], KEYS, 2,
                       packed.by_key.data() + place * size + i * 2, width * 2, KEYS / 2,
                       room.query_gradient.data() + (first + row) * width + i, width);
}

// All tiles of one head. Gradients of keys and values: [blocks][Dh][KEYS], set here.
inline void head_backward(const AttentionRecord& record, AttentionRoom& room,
                          const PackedKeys& packed, const std::vector<KeyBlock>& blocks,
                          int64_t head, float* key_gradient, float* value_gradient) {
    const int64_t width = record.head_dim, size = width * KEYS, count = int64_t(blocks.size());
    const int64_t kv_head = head / (record.heads / record.kv_heads);
    const int64_t turned_stride = round_up(record.nodes, LANES) + LANES;
    turn(room.queries_turned.data(), turned_stride, record.queries + head * width, record.stride,
         record.nodes, width);
    turn(room.upstream_turned.data(), turned_stride, record.upstream + head * width,
         record.mixed_stride, record.nodes, width);
    for (int64_t t = 0; t < record.nodes; ++t) {
        const int64_t place = t * record.mixed_stride + head * width;
        Floats delta = {};
        for (int64_t i = 0; i < width; i += LANES)
            delta = fused(load_bf16(record.mixed + place + i), load_bf16(record.upstream + place + i),
                          delta);
        room.deltas.data()[t] = sum_lanes(delta);
    }
    std::memset(room.query_gradient.data(), 0, size_t(record.nodes * width) * sizeof(float));
    std::memset(key_gradient, 0, size_t(count * size) * sizeof(float));
    std::memset(value_gradient, 0, size_t(count * size) * sizeof(float));
    WeightTile tile;
    for (int64_t b = 0; b < count; ++b)
        for (int64_t first = blocks[b].begin; first < blocks[b].descendants; first += QUERIES)
            tile_backward(tile, record, room, packed, blocks[b], kv_head * count + b, head, first,
                          std::min<int64_t>(QUERIES, blocks[b].descendants - first),
                          key_gradient + b * size, value_gradient + b * size);
}

}  // namespace journeyman
