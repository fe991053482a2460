// Attention over the paged KV cache.
//
// Every query is computed by itself, over tiles of TILE keys that start at absolute positions
// 0, TILE, 2 TILE, ..., with one fixed order inside a tile: decode, prefill and any chunking of
// it run the very same operations and give the same bits. The query heads that share a KV head
// are computed together, which is where the reuse of keys and values comes from.
//
// Cache of one layer: [block][KV head] of { keys [Dh/2][BLOCK][2], values [BLOCK/2][padded Dh][2] }:
// pairs along the axis that is summed over, as the dot product wants them.
#pragma once

#include <algorithm>

#include "memory.h"
#include "vector.h"

namespace journeyman {

constexpr int64_t BLOCK = 16;
constexpr int64_t TILE = 64;
constexpr int64_t TILE_BLOCKS = TILE / BLOCK;
constexpr int64_t MOST_HEAD_DIM = 256;
constexpr int MOST_SHARED = 4;

struct HeadShape {
    int64_t head_dim;
    int64_t kv_heads;
    int64_t padded() const { return round_up(head_dim, LANES); }
    int64_t keys_size() const { return head_dim * BLOCK; }
    int64_t head_size() const { return keys_size() + padded() * BLOCK; }
    int64_t block_size() const { return head_size() * kv_heads; }
};

// Write one token's key and value (float32 [Dh] each) of one KV head into the layer's cache.
INLINE void write_cache(bf16* cache, const HeadShape& shape, int64_t slot, int64_t kv_head,
                        const float* key, const float* value) {
    const int64_t offset = slot % BLOCK;
    bf16* keys = cache + (slot / BLOCK) * shape.block_size() + kv_head * shape.head_size();
    bf16* values = keys + shape.keys_size();
    alignas(64) bf16 half[MOST_HEAD_DIM];
    narrow_row(half, key, shape.head_dim);
    for (int64_t i = 0; i < shape.head_dim; i += 2)
        std::memcpy(keys + (i / 2 * BLOCK + offset) * 2, half + i, 2 * sizeof(bf16));
    narrow_row(half, value, shape.head_dim);
    // Single halves: another thread may be writing the neighbour token of the same pairs.
    bf16* pairs = values + offset / 2 * shape.padded() * 2 + offset % 2;
    for (int64_t i = 0; i < shape.head_dim; ++i) pairs[i * 2] = half[i];
}

// scores[g][key of the tile] = q_g . k for B blocks, unscaled.
template <int G, int B>
INLINE void tile_scores(const bf16* queries, int64_t stride, const bf16* const* blocks,
                        int64_t pairs, float (*scores)[TILE]) {
    Floats sums[G][B] = {};
    for (int64_t pair = 0; pair < pairs; ++pair) {
        Words keys[B];
#pragma GCC unroll 4
        for (int b = 0; b < B; ++b) keys[b] = load_words(blocks[b] + pair * BLOCK * 2);
#pragma GCC unroll 4
        for (int g = 0; g < G; ++g) {
            const Words query = broadcast_pair(queries + g * stride + pair * 2);
#pragma GCC unroll 4
            for (int b = 0; b < B; ++b) sums[g][b] = dot_pairs(sums[g][b], query, keys[b]);
        }
    }
    for (int g = 0; g < G; ++g)
        for (int b = 0; b < B; ++b) store(scores[g] + b * BLOCK, sums[g][b]);
}

// mixed[g][first .. first + 16 V) = mixed * decay[g] + sum over `valid` keys of weight * value.
template <int G, int V>
INLINE void mix_values(float (*mixed)[MOST_HEAD_DIM], const float* decay,
                       const bf16 (*weights)[TILE], const bf16* const* values, int64_t valid,
                       int64_t padded, int64_t first) {
    Floats sums[G][V];
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g)
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v)
            sums[g][v] = load(mixed[g] + first + v * LANES) * broadcast(decay[g]);
    for (int64_t key = 0; key < valid; key += 2) {
        const bf16* row = values[key / BLOCK] + (key % BLOCK / 2 * padded + first) * 2;
        // The partner of the last key may never have been written: 0 * NaN would be NaN.
        const uint32_t kept = key + 1 < valid ? 0xffffffffu : 0x0000ffffu;
        Words pairs[V];
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) pairs[v] = load_words(row + v * 2 * LANES) & kept;
#pragma GCC unroll 4
        for (int g = 0; g < G; ++g) {
            const Words weight = broadcast_pair(weights[g] + key);
#pragma GCC unroll 4
            for (int v = 0; v < V; ++v) sums[g][v] = dot_pairs(sums[g][v], weight, pairs[v]);
        }
    }
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g)
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) store(mixed[g] + first + v * LANES, sums[g][v]);
}

// Online softmax (Milakov and Gimelshein, 2018) of one query over one tile.
struct Running {
    float highest = -INFINITY;
    float total = 0.0f;
};

// Turn one query's scores into bf16 weights; returns the decay of what was accumulated before.
INLINE float tile_weights(float* scores, bf16* weights, int64_t valid, float scale,
                          Running& running) {
    Floats score[TILE_BLOCKS];
    Floats best = broadcast(-INFINITY);
    const Ints lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#pragma GCC unroll 4
    for (int b = 0; b < TILE_BLOCKS; ++b) {
        const Floats raw = load(scores + b * BLOCK) * broadcast(scale);
        score[b] = (lane + int32_t(b * BLOCK)) < int32_t(valid) ? raw : broadcast(-INFINITY);
        best = maximum(best, score[b]);
    }
    const float highest = std::max(running.highest, max_lanes(best));
    const Floats shift = broadcast(highest);
    Floats total = {};
#pragma GCC unroll 4
    for (int b = 0; b < TILE_BLOCKS; ++b) {
        const Floats weight = exponential(score[b] - shift);
        total = total + weight;
        store_bf16(weights + b * BLOCK, weight);
    }
    const float decay = exponential(broadcast(running.highest - highest))[0];
    running.highest = highest;
    running.total = running.total * decay + sum_lanes(total);
    return decay;
}

// One token's G query heads (each [Dh], `stride` apart) over keys 0 .. position of one KV head.
// `log_totals` [G], if wanted, are the logarithms of the softmax' totals, for a backward pass.
template <int G>
void attend(bf16* target, const bf16* queries, int64_t stride, const bf16* cache,
            const HeadShape& shape, int64_t kv_head, const int32_t* block_table, int64_t position,
            float scale, float* log_totals = nullptr) {
    alignas(64) float scores[G][TILE], mixed[G][MOST_HEAD_DIM];
    alignas(64) bf16 weights[G][TILE];
    float decay[G];
    Running running[G];
    const int64_t padded = shape.padded(), pairs = shape.head_dim / 2;
    for (int g = 0; g < G; ++g)
        for (int64_t i = 0; i < padded; i += LANES) store(mixed[g] + i, Floats{});
    for (int64_t start = 0; start <= position; start += TILE) {
        const int64_t valid = position + 1 - start < TILE ? position + 1 - start : TILE;
        const int64_t blocks = (valid + BLOCK - 1) / BLOCK;
        const bf16 *keys[TILE_BLOCKS], *values[TILE_BLOCKS];
        for (int64_t b = 0; b < blocks; ++b) {
            keys[b] = cache + block_table[start / BLOCK + b] * shape.block_size() +
                      kv_head * shape.head_size();
            values[b] = keys[b] + shape.keys_size();
        }
        if (blocks == TILE_BLOCKS)
            tile_scores<G, TILE_BLOCKS>(queries, stride, keys, pairs, scores);
        else
            for (int64_t b = 0; b < blocks; ++b)
                tile_scores<G, 1>(queries, stride, keys + b, pairs,
                                  reinterpret_cast<float(*)[TILE]>(&scores[0][b * BLOCK]));
        for (int g = 0; g < G; ++g)
            decay[g] = tile_weights(scores[g], weights[g], valid, scale, running[g]);
        int64_t i = 0;
        for (; i + 4 * LANES <= padded; i += 4 * LANES)
            mix_values<G, 4>(mixed, decay, weights, values, valid, padded, i);
        for (; i < padded; i += LANES)
            mix_values<G, 1>(mixed, decay, weights, values, valid, padded, i);
    }
    for (int g = 0; g < G; ++g) {
        if (log_totals) log_totals[g] = running[g].highest + std::log(running[g].total);
        const Floats inverse = broadcast(1.0f / running[g].total);
        alignas(64) bf16 head[MOST_HEAD_DIM];
        for (int64_t i = 0; i < padded; i += LANES)
            store_bf16(head + i, load(mixed[g] + i) * inverse);
        std::memcpy(target + g * shape.head_dim, head, size_t(shape.head_dim) * sizeof(bf16));
    }
}

// All query heads of one KV head, in groups of at most MOST_SHARED.
INLINE void attend_heads(int64_t shared, bf16* target, const bf16* queries, const bf16* cache,
                         const HeadShape& shape, int64_t kv_head, const int32_t* block_table,
                         int64_t position, float scale, float* log_totals = nullptr) {
    const int64_t width = shape.head_dim;
    for (int64_t done = 0; done < shared; done += MOST_SHARED) {
        bf16* out = target + done * width;
        const bf16* in = queries + done * width;
        float* logs = log_totals ? log_totals + done : nullptr;
        switch (shared - done) {
            case 1:
                attend<1>(out, in, width, cache, shape, kv_head, block_table, position, scale, logs);
                break;
            case 2:
                attend<2>(out, in, width, cache, shape, kv_head, block_table, position, scale, logs);
                break;
            case 3:
                attend<3>(out, in, width, cache, shape, kv_head, block_table, position, scale, logs);
                break;
            default:
                attend<4>(out, in, width, cache, shape, kv_head, block_table, position, scale, logs);
        }
    }
}

}  // namespace journeyman
