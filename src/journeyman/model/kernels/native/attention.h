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

// The blocks of one tile, and those to fetch meanwhile for the thread's next query (or none:
// `fetched` is 0). Decoding reads every sequence's cache from main memory once a layer.
struct TileBlocks {
    const bf16* blocks[TILE_BLOCKS];
    const bf16* next[TILE_BLOCKS];
    int64_t used;
    int64_t fetched;
};

// scores[g][key of the tile] = q_g . k for the first B blocks, unscaled.
template <int G, int B>
void tile_scores(const bf16* queries, int64_t stride, const TileBlocks& tile, int64_t pairs,
                 float (*scores)[TILE]) {
    Floats sums[G][B] = {};
    for (int64_t pair = 0; pair < pairs; ++pair) {
        for (int64_t b = 0; b < tile.fetched; ++b)
            __builtin_prefetch(tile.next[b] + pair * BLOCK * 2, 0, 2);
        Words keys[B];
#pragma GCC unroll 4
        for (int b = 0; b < B; ++b) keys[b] = load_words(tile.blocks[b] + pair * BLOCK * 2);
#pragma GCC unroll 4
        for (int g = 0; g < G; ++g) {
            const Words query = broadcast_pair(queries + g * stride + pair * 2);
#pragma GCC unroll 4
            for (int b = 0; b < B; ++b) sums[g][b] = dot_pairs(sums[g][b], query, keys[b]);
        }
    }
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g)
#pragma GCC unroll 4
        for (int b = 0; b < B; ++b) store(scores[g] + b * BLOCK, sums[g][b]);
}

template <int G>
INLINE void scores_of_tile(const bf16* queries, int64_t stride, const TileBlocks& tile,
                           int64_t pairs, float (*scores)[TILE]) {
    switch (tile.used) {
        case 1:
            return tile_scores<G, 1>(queries, stride, tile, pairs, scores);
        case 2:
            return tile_scores<G, 2>(queries, stride, tile, pairs, scores);
        case 3:
            return tile_scores<G, 3>(queries, stride, tile, pairs, scores);
        default:
            return tile_scores<G, 4>(queries, stride, tile, pairs, scores);
    }
}

template <int G, int V>
INLINE void mix_pair(Floats (&sums)[G][V], const bf16 (*weights)[TILE], int64_t key,
                     const bf16* row, uint32_t kept) {
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

// mixed[g][first .. first + 16 V) = mixed * decay[g] + sum over `valid` keys of weight * value.
template <int G, int V>
void mix_values(float (*mixed)[MOST_HEAD_DIM], const float* decay, const bf16 (*weights)[TILE],
                const TileBlocks& tile, const HeadShape& shape, int64_t valid, int64_t first) {
    const int64_t pair_size = shape.padded() * 2, start = shape.keys_size() + first * 2;
    Floats sums[G][V];
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g)
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v)
            sums[g][v] = load(mixed[g] + first + v * LANES) * broadcast(decay[g]);
    for (int64_t b = 0; b * BLOCK < valid; ++b) {
        const int64_t keys = valid - b * BLOCK < BLOCK ? valid - b * BLOCK : BLOCK;
        for (int64_t pair = 0; pair < keys / 2; ++pair) {
            if (b < tile.fetched)
                for (int v = 0; v < V; ++v)
                    __builtin_prefetch(tile.next[b] + start + pair * pair_size + v * 32, 0, 2);
            mix_pair(sums, weights, b * BLOCK + pair * 2,
                     tile.blocks[b] + start + pair * pair_size, 0xffffffffu);
        }
        // The partner of the last key may never have been written: 0 * NaN would be NaN.
        if (keys % 2)
            mix_pair(sums, weights, b * BLOCK + keys - 1,
                     tile.blocks[b] + start + keys / 2 * pair_size, 0x0000ffffu);
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

// Where one query's keys and values are.
struct Context {
    const bf16* cache;           // of the layer
    const int32_t* block_table;  // of the sequence
    int64_t position;            // keys 0 .. position are visible
    int64_t kv_head;

    int64_t blocks() const { return position / BLOCK + 1; }
    const bf16* block(int64_t index, const HeadShape& shape) const {
        return cache + block_table[index] * shape.block_size() + kv_head * shape.head_size();
    }
};

INLINE TileBlocks tile_at(int64_t start, const Context& context, const Context* next,
                          const HeadShape& shape) {
    TileBlocks tile;
    const int64_t first = start / BLOCK;
    tile.used = std::min(context.blocks() - first, TILE_BLOCKS);
    for (int64_t b = 0; b < tile.used; ++b) tile.blocks[b] = context.block(first + b, shape);
    tile.fetched = next ? std::clamp(next->blocks() - first, int64_t(0), TILE_BLOCKS) : 0;
    for (int64_t b = 0; b < tile.fetched; ++b) tile.next[b] = next->block(first + b, shape);
    return tile;
}

// One token's G query heads (each [Dh], one after the other) over their KV head. `log_totals` [G],
// if wanted, are the logarithms of the softmax' totals, for a backward pass.
template <int G>
void attend(bf16* target, const bf16* queries, const Context& context, const Context* next,
            const HeadShape& shape, float scale, float* log_totals) {
    alignas(64) float scores[G][TILE], mixed[G][MOST_HEAD_DIM];
    alignas(64) bf16 weights[G][TILE];
    float decay[G];
    Running running[G];
    const int64_t padded = shape.padded(), pairs = shape.head_dim / 2;
    for (int g = 0; g < G; ++g)
        for (int64_t i = 0; i < padded; i += LANES) store(mixed[g] + i, Floats{});
    for (int64_t start = 0; start <= context.position; start += TILE) {
        const int64_t valid = std::min(context.position + 1 - start, TILE);
        const TileBlocks tile = tile_at(start, context, next, shape);
        scores_of_tile<G>(queries, shape.head_dim, tile, pairs, scores);
        for (int g = 0; g < G; ++g)
            decay[g] = tile_weights(scores[g], weights[g], valid, scale, running[g]);
        int64_t i = 0;
        for (; i + 4 * LANES <= padded; i += 4 * LANES)
            mix_values<G, 4>(mixed, decay, weights, tile, shape, valid, i);
        for (; i < padded; i += LANES)
            mix_values<G, 1>(mixed, decay, weights, tile, shape, valid, i);
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

// All query heads of one KV head, in groups of at most MOST_SHARED. `next` is the query the thread
// will compute afterwards, if its keys and values are to be fetched meanwhile.
INLINE void attend_heads(int64_t shared, bf16* target, const bf16* queries,
                         const Context& context, const Context* next, const HeadShape& shape,
                         float scale, float* log_totals = nullptr) {
    for (int64_t done = 0; done < shared; done += MOST_SHARED) {
        bf16* out = target + done * shape.head_dim;
        const bf16* in = queries + done * shape.head_dim;
        float* logs = log_totals ? log_totals + done : nullptr;
        switch (shared - done) {
            case 1:
                attend<1>(out, in, context, next, shape, scale, logs);
                break;
            case 2:
                attend<2>(out, in, context, next, shape, scale, logs);
                break;
            case 3:
                attend<3>(out, in, context, next, shape, scale, logs);
                break;
            default:
                attend<4>(out, in, context, next, shape, scale, logs);
        }
        next = nullptr;
    }
}

}  // namespace journeyman
