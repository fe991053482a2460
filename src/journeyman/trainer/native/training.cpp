#include "training.h"

namespace journeyman {

namespace {

constexpr int64_t ROWS_PER_ITEM = 16;
constexpr int64_t NODES_PER_ATTENTION = 4;
constexpr int64_t NODES_PER_PARTIAL = 64;

int64_t items_of(int64_t count, int64_t size) { return (count + size - 1) / size; }

Buffer<float> widened(const bf16* source, int64_t count) {
    Buffer<float> target(count);
    for (int64_t i = 0; i < count; ++i) target.data()[i] = widen(source[i]);
    return target;
}

template <class Work>  // work(row)
void each_row(Worker& worker, int64_t rows, Work&& work) {
    worker.share(items_of(rows, ROWS_PER_ITEM), [&](int64_t item) {
        const int64_t end = std::min(rows, (item + 1) * ROWS_PER_ITEM);
        for (int64_t row = item * ROWS_PER_ITEM; row < end; ++row) work(row);
    });
}

void take(Worker& worker, Pairs& target, const bf16* source, int64_t rows, int64_t width) {
    worker.share(1, [&](int64_t) { target.shape(rows, width); });
    target.pack(worker, source, width, rows);
}

}  // namespace

Training::Training(const JourneymanShape& shape, int threads)
    : shape_(shape),
      heads_{shape.head_dim, shape.kv_heads},
      width_(shape.width),
      inner_(shape.inner),
      mixed_(shape.heads * shape.head_dim),
      projected_((shape.heads + 2 * shape.kv_heads) * shape.head_dim),
      half_(shape.head_dim / 2),
      chunks_(items_of(shape.vocabulary, CHUNK)),
      pool_(threads),
      kept_(size_t(shape.layers)),
      rooms_(size_t(shape.heads)) {
    cosine_.assign(shape.cosine, shape.cosine + shape.positions * half_);
    sine_.assign(shape.sine, shape.sine + shape.positions * half_);
    for (int64_t i = 0; i < shape.layers; ++i) {
        TrainedLayer layer;
        layer.query_key_value = Matrix(projected_, width_);
        layer.output = Matrix(width_, mixed_);
        layer.gate = Matrix(inner_, width_);
        layer.up = Matrix(inner_, width_);
        layer.down = Matrix(width_, inner_);
        layer.query_key_value_back.shape(projected_, width_);
        layer.output_back.shape(width_, mixed_);
        layer.gate_up_back.shape(2 * inner_, width_);
        layer.down_back.shape(width_, inner_);
        layers_.push_back(std::move(layer));
    }
    embedding_.reserve(shape.vocabulary * width_);
    head_ = Matrix(shape.vocabulary, width_);
    head_back_.shape(shape.vocabulary, width_);
}

void Training::load_weights(const JourneymanWeights& weights) {
    for (int64_t i = 0; i < shape_.layers; ++i) {
        layers_[i].input_norm = widened(weights.input_norm[i], width_);
        layers_[i].inner_norm = widened(weights.inner_norm[i], width_);
    }
    final_norm_ = widened(weights.final_norm, width_);
    const bf16* head = weights.head ? weights.head : weights.embedding;
    pool_.run([&](Worker& worker) {
        each_row(worker, shape_.vocabulary, [&](int64_t row) {
            std::memcpy(embedding_.data() + row * width_, weights.embedding + row * width_,
                        size_t(width_) * sizeof(bf16));
        });
        head_.pack(worker, head, 0, shape_.vocabulary);
        head_back_.pack(worker, head, width_, shape_.vocabulary);
        for (int64_t i = 0; i < shape_.layers; ++i) {
            TrainedLayer& layer = layers_[i];
            layer.query_key_value.pack(worker, weights.query[i], 0, projected_);
            layer.output.pack(worker, weights.output[i], 0, width_);
            layer.gate.pack(worker, weights.gate[i], 0, inner_);
            layer.up.pack(worker, weights.up[i], 0, inner_);
            layer.down.pack(worker, weights.down[i], 0, width_);
            layer.query_key_value_back.pack(worker, weights.query[i], width_, projected_);
            layer.output_back.pack(worker, weights.output[i], mixed_, width_);
            layer.gate_up_back.pack(worker, weights.gate[i], width_, 2 * inner_);
            layer.down_back.pack(worker, weights.down[i], inner_, width_);
        }
    });
}

void Training::reserve(const JourneymanPack& pack) {
    const int64_t nodes = pack.nodes;
    residual_.reserve(nodes * width_);
    wide_.reserve(nodes * projected_);
    cache_.reserve(pack.blocks * heads_.block_size());
    for (Kept& kept : kept_) {
        kept.residual.reserve(nodes * width_);
        kept.middle.reserve(nodes * width_);
        kept.log_totals.reserve(nodes * shape_.heads);
        kept.normed.reserve(nodes * width_);
        kept.projected.reserve(nodes * projected_);
        kept.mixed.reserve(nodes * mixed_);
        kept.inner_normed.reserve(nodes * width_);
        kept.gate_up.reserve(nodes * 2 * inner_);
        kept.inner.reserve(nodes * inner_);
    }
}

void Training::forward(const JourneymanPack& pack) {
    reserve(pack);
    pool_.run([&](Worker& worker) {
        each_row(worker, pack.nodes, [&](int64_t t) {
            embed(residual_.data() + t * width_,
                  embedding_.data() + int64_t(pack.token_ids[t]) * width_, width_);
        });
        for (int64_t i = 0; i < shape_.layers; ++i) {
            forward_attention(worker, pack, i);
            forward_inner(worker, pack, i);
        }
    });
}

void Training::rotate_and_cache(const JourneymanPack& pack, Kept& kept, int64_t node) {
    const int64_t width = shape_.head_dim;
    float* row = wide_.data() + node * projected_;
    const float* cosine = cosine_.data() + pack.positions[node] * half_;
    const float* sine = sine_.data() + pack.positions[node] * half_;
    for (int64_t h = 0; h < shape_.heads + shape_.kv_heads; ++h)
        rotate(row + h * width, cosine, sine, width);
    narrow_row(kept.projected.data() + node * projected_, row, projected_);
    const float* keys = row + mixed_;
    const float* values = keys + shape_.kv_heads * width;
    for (int32_t s = pack.slot_starts[node]; s < pack.slot_starts[node + 1]; ++s)
        for (int64_t h = 0; h < shape_.kv_heads; ++h)
            write_cache(cache_.data(), heads_, pack.slots[s], h, keys + h * width,
                        values + h * width);
}

void Training::forward_attention(Worker& worker, const JourneymanPack& pack, int64_t index) {
    TrainedLayer& layer = layers_[index];
    Kept& kept = kept_[index];
    each_row(worker, pack.nodes, [&](int64_t t) {
        std::memcpy(kept.residual.data() + t * width_, residual_.data() + t * width_,
                    size_t(width_) * sizeof(float));
        rms_norm(kept.normed.data() + t * width_, residual_.data() + t * width_,
                 layer.input_norm.data(), width_, shape_.epsilon);
    });
    multiply(worker, kept.normed.data(), width_, pack.nodes, layer.query_key_value,
             [&](int64_t row, int64_t output, Floats sums) INLINE_LAMBDA {
                 store(wide_.data() + row * projected_ + output, sums);
             });
    each_row(worker, pack.nodes, [&](int64_t t) { rotate_and_cache(pack, kept, t); });
    const int64_t shared = shape_.heads / shape_.kv_heads;
    const float scale = 1.0f / std::sqrt(float(shape_.head_dim));
    worker.share(items_of(pack.nodes, NODES_PER_ATTENTION) * shape_.kv_heads, [&](int64_t item) {
        const int64_t head = item % shape_.kv_heads * shared;
        const int64_t begin = item / shape_.kv_heads * NODES_PER_ATTENTION;
        const int64_t end = std::min(pack.nodes, begin + NODES_PER_ATTENTION);
        for (int64_t t = begin; t < end; ++t) {
            const auto after = std::upper_bound(pack.segment_starts,
                                                pack.segment_starts + pack.segments, int32_t(t));
            const int64_t segment = after - pack.segment_starts - 1;
            const Context context{cache_.data(), pack.block_tables + segment * pack.table_width,
                                  pack.positions[t], item % shape_.kv_heads};
            attend_heads(shared, kept.mixed.data() + t * mixed_ + head * shape_.head_dim,
                         kept.projected.data() + t * projected_ + head * shape_.head_dim, context,
                         nullptr, heads_, scale,
                         kept.log_totals.data() + t * shape_.heads + head);
        }
    });
    multiply(worker, kept.mixed.data(), mixed_, pack.nodes, layer.output,
             [&](int64_t row, int64_t output, Floats sums) INLINE_LAMBDA {
                 float* target = residual_.data() + row * width_ + output;
                 store(target, load(target) + sums);
             });
}

void Training::forward_inner(Worker& worker, const JourneymanPack& pack, int64_t index) {
    TrainedLayer& layer = layers_[index];
    Kept& kept = kept_[index];
    each_row(worker, pack.nodes, [&](int64_t t) {
        std::memcpy(kept.middle.data() + t * width_, residual_.data() + t * width_,
                    size_t(width_) * sizeof(float));
        rms_norm(kept.inner_normed.data() + t * width_, residual_.data() + t * width_,
                 layer.inner_norm.data(), width_, shape_.epsilon);
    });
    constexpr int64_t MOST_ROWS = 256;
    const int64_t panels = layer.gate.panels();
    const int64_t step = std::min(MOST_ROWS, rows_per_item(pack.nodes, panels, worker.threads()));
    worker.share(items_of(pack.nodes, step) * panels, [&](int64_t item) {
        alignas(64) float gates[MOST_ROWS][PANEL * LANES];
        const int64_t begin = item / panels * step, panel = item % panels;
        const int64_t end = std::min(pack.nodes, begin + step);
        multiply_panel(kept.inner_normed.data(), width_, begin, end, layer.gate, panel,
                       [&](int64_t row, int vector, Floats sums) INLINE_LAMBDA {
                           store(gates[row - begin] + vector * LANES, sums);
                       });
        multiply_panel(kept.inner_normed.data(), width_, begin, end, layer.up, panel,
                       [&](int64_t row, int vector, Floats sums) INLINE_LAMBDA {
                           const int64_t output = (panel * PANEL + vector) * LANES;
                           const Floats gate = load(gates[row - begin] + vector * LANES);
                           bf16* both = kept.gate_up.data() + row * 2 * inner_ + output;
                           store_bf16(both, gate);
                           store_bf16(both + inner_, sums);
                           store_bf16(kept.inner.data() + row * inner_ + output, gated(gate, sums));
                       });
    });
    multiply(worker, kept.inner.data(), inner_, pack.nodes, layer.down,
             [&](int64_t row, int64_t output, Floats sums) INLINE_LAMBDA {
                 float* target = residual_.data() + row * width_ + output;
                 store(target, load(target) + sums);
             });
}

void Training::backward(const JourneymanPack& pack, const JourneymanGradients& gradients) {
    const int64_t nodes = pack.nodes;
    residual_gradient_.reserve(nodes * width_);
    normed_gradient_.reserve(nodes * width_);
    norm_partial_.reserve(items_of(nodes, NODES_PER_PARTIAL) * width_);
    upstream_.reserve(nodes * width_);
    gate_up_gradient_.reserve(nodes * 2 * inner_);
    projected_gradient_.reserve(nodes * projected_);
    mixed_gradient_.reserve(nodes * mixed_);
    left_.shape(nodes, std::max(2 * inner_, projected_));
    right_.shape(nodes, std::max({inner_, width_, mixed_}));
    plan_attention(pack);
    pool_.run([&](Worker& worker) {
        backward_rows(worker, pack, gradients.final_norm);
        for (int64_t i = shape_.layers - 1; i >= 0; --i) {
            backward_inner(worker, nodes, i, gradients);
            backward_attention(worker, pack, i, gradients);
        }
        backward_embedding(worker, pack, gradients.embedding);
    });
}

// Rows that share a node add up in their order; one item, so in the same order always.
void Training::backward_rows(Worker& worker, const JourneymanPack& pack, float* norm_gradient) {
    worker.share(1, [&](int64_t) {
        std::memset(residual_gradient_.data(), 0, size_t(pack.nodes * width_) * sizeof(float));
        for (int64_t r = 0; r < rows_count_; ++r)
            rms_norm_backward(residual_gradient_.data() + row_nodes_[r] * width_, norm_gradient,
                              row_gradient_.data() + r * width_,
                              residual_.data() + row_nodes_[r] * width_, final_norm_.data(),
                              width_, shape_.epsilon);
    });
}

void Training::narrow_residual(Worker& worker, int64_t nodes) {
    each_row(worker, nodes, [&](int64_t t) {
        narrow_row(upstream_.data() + t * width_, residual_gradient_.data() + t * width_, width_);
    });
}

void Training::backward_inner(Worker& worker, int64_t nodes, int64_t index,
                              const JourneymanGradients& gradients) {
    const TrainedLayer& layer = layers_[index];
    const Kept& kept = kept_[index];
    narrow_residual(worker, nodes);
    take(worker, left_, upstream_.data(), nodes, width_);
    take(worker, right_, kept.inner.data(), nodes, inner_);
    add_outer(worker, left_, right_, gradients.down[index]);
    multiply_pairs(worker, upstream_.data(), width_, nodes, layer.down_back,
                   [&](int64_t row, int64_t column, Floats sums) INLINE_LAMBDA {
                       const int64_t place = row * 2 * inner_ + column;
                       const bf16* both = kept.gate_up.data() + place;
                       const GateGradient found =
                           gated_backward(load_bf16(both), load_bf16(both + inner_), sums);
                       store_bf16(gate_up_gradient_.data() + place, found.gate);
                       store_bf16(gate_up_gradient_.data() + place + inner_, found.up);
                   });
    take(worker, left_, gate_up_gradient_.data(), nodes, 2 * inner_);
    take(worker, right_, kept.inner_normed.data(), nodes, width_);
    add_outer(worker, left_, right_, gradients.gate_up[index]);
    multiply_pairs(worker, gate_up_gradient_.data(), 2 * inner_, nodes, layer.gate_up_back,
                   [&](int64_t row, int64_t column, Floats sums) INLINE_LAMBDA {
                       store(normed_gradient_.data() + row * width_ + column, sums);
                   });
    backward_norm(worker, nodes, kept.middle.data(), layer.inner_norm.data(),
                  gradients.inner_norm[index]);
}

void Training::backward_attention(Worker& worker, const JourneymanPack& pack, int64_t index,
                                  const JourneymanGradients& gradients) {
    const TrainedLayer& layer = layers_[index];
    const Kept& kept = kept_[index];
    const int64_t nodes = pack.nodes;
    narrow_residual(worker, nodes);
    take(worker, left_, upstream_.data(), nodes, width_);
    take(worker, right_, kept.mixed.data(), nodes, mixed_);
    add_outer(worker, left_, right_, gradients.output[index]);
    multiply_pairs(worker, upstream_.data(), width_, nodes, layer.output_back,
                   [&](int64_t row, int64_t column, Floats sums) INLINE_LAMBDA {
                       store_bf16(mixed_gradient_.data() + row * mixed_ + column, sums);
                   });
    attend_back(worker, pack, index);
    take(worker, left_, projected_gradient_.data(), nodes, projected_);
    take(worker, right_, kept.normed.data(), nodes, width_);
    add_outer(worker, left_, right_, gradients.query_key_value[index]);
    multiply_pairs(worker, projected_gradient_.data(), projected_, nodes,
                   layer.query_key_value_back,
                   [&](int64_t row, int64_t column, Floats sums) INLINE_LAMBDA {
                       store(normed_gradient_.data() + row * width_ + column, sums);
                   });
    backward_norm(worker, nodes, kept.residual.data(), layer.input_norm.data(),
                  gradients.input_norm[index]);
}

// Weight gradients are summed over blocks of nodes first, and over the blocks in order.
void Training::backward_norm(Worker& worker, int64_t nodes, const float* source,
                             const float* weight, float* gradient) {
    const int64_t parts = items_of(nodes, NODES_PER_PARTIAL);
    worker.share(parts, [&](int64_t part) {
        float* partial = norm_partial_.data() + part * width_;
        std::memset(partial, 0, size_t(width_) * sizeof(float));
        const int64_t end = std::min(nodes, (part + 1) * NODES_PER_PARTIAL);
        for (int64_t t = part * NODES_PER_PARTIAL; t < end; ++t)
            rms_norm_backward(residual_gradient_.data() + t * width_, partial,
                              normed_gradient_.data() + t * width_, source + t * width_, weight,
                              width_, shape_.epsilon);
    });
    worker.share(width_ / LANES, [&](int64_t vector) {
        Floats total = load(gradient + vector * LANES);
        for (int64_t part = 0; part < parts; ++part)
            total = total + load(norm_partial_.data() + part * width_ + vector * LANES);
        store(gradient + vector * LANES, total);
    });
}

void Training::backward_embedding(Worker& worker, const JourneymanPack& pack, float* gradient) {
    worker.share(width_ / LANES, [&](int64_t vector) {
        for (int64_t t = 0; t < pack.nodes; ++t) {
            float* target = gradient + int64_t(pack.token_ids[t]) * width_ + vector * LANES;
            store(target, load(target) +
                              load(residual_gradient_.data() + t * width_ + vector * LANES));
        }
    });
}

// Room and key blocks of a pack, the same for all its layers.
void Training::plan_attention(const JourneymanPack& pack) {
    key_blocks_.clear();
    for (int64_t s = 0; s < pack.segments; ++s)
        for (int32_t first = pack.segment_starts[s]; first < pack.segment_starts[s + 1];
             first += int32_t(KEYS))
            key_blocks_.push_back({first,
                                   std::min(pack.segment_starts[s + 1], first + int32_t(KEYS)),
                                   pack.descendants[s]});
    const int64_t size = shape_.head_dim * KEYS, count = int64_t(key_blocks_.size());
    const int64_t turned = (round_up(pack.nodes, LANES) + LANES) * shape_.head_dim;
    for (AttentionRoom& room : rooms_) {
        room.queries_turned.reserve(turned);
        room.upstream_turned.reserve(turned);
        room.deltas.reserve(pack.nodes);
        room.query_gradient.reserve(pack.nodes * shape_.head_dim);
    }
    for (auto& packed : packed_keys_.by_width) packed.reserve(shape_.kv_heads * count * size);
    packed_keys_.by_key.reserve(shape_.kv_heads * count * size);
    key_gradient_.reserve(shape_.heads * count * size);
    value_gradient_.reserve(shape_.heads * count * size);
}

void Training::attend_back(Worker& worker, const JourneymanPack& pack, int64_t index) {
    const Kept& kept = kept_[index];
    const int64_t width = shape_.head_dim, size = width * KEYS, count = int64_t(key_blocks_.size());
    const bf16* keys = kept.projected.data() + mixed_;
    const AttentionRecord record{kept.projected.data(), keys, keys + shape_.kv_heads * width,
                                 kept.mixed.data(), kept.log_totals.data(), mixed_gradient_.data(),
                                 projected_, mixed_, pack.nodes, shape_.heads, shape_.kv_heads,
                                 width};
    worker.share(shape_.kv_heads * count, [&](int64_t item) {
        pack_block(packed_keys_, record, key_blocks_[size_t(item % count)], item, item / count);
    });
    worker.share(shape_.heads, [&](int64_t head) {
        AttentionRoom& room = rooms_[size_t(head)];
        head_backward(record, room, packed_keys_, key_blocks_, head,
                      key_gradient_.data() + head * count * size,
                      value_gradient_.data() + head * count * size);
        for (int64_t t = 0; t < pack.nodes; ++t) {
            float* row = room.query_gradient.data() + t * width;
            rotate_back(row, cosine_.data() + pack.positions[t] * half_,
                        sine_.data() + pack.positions[t] * half_, width);
            narrow_row(projected_gradient_.data() + t * projected_ + head * width, row, width);
        }
    });
    worker.share(shape_.kv_heads * count, [&](int64_t item) {
        gather_keys(pack, item % count, item / count);
    });
}

// Sum the gradients that the query heads of one KV head left for one block of keys.
void Training::gather_keys(const JourneymanPack& pack, int64_t block, int64_t kv_head) {
    const int64_t width = shape_.head_dim, size = width * KEYS, count = int64_t(key_blocks_.size());
    const int64_t shared = shape_.heads / shape_.kv_heads;
    const KeyBlock& range = key_blocks_[size_t(block)];
    alignas(64) float key[MOST_HEAD_DIM], value[MOST_HEAD_DIM];
    for (int64_t t = range.begin; t < range.end; ++t) {
        std::memset(key, 0, sizeof key);
        std::memset(value, 0, sizeof value);
        for (int64_t head = kv_head * shared; head < (kv_head + 1) * shared; ++head) {
            const int64_t place = (head * count + block) * size + t - range.begin;
            for (int64_t i = 0; i < width; ++i) {
                key[i] += key_gradient_.data()[place + i * KEYS];
                value[i] += value_gradient_.data()[place + i * KEYS];
            }
        }
        rotate_back(key, cosine_.data() + pack.positions[t] * half_,
                    sine_.data() + pack.positions[t] * half_, width);
        bf16* target = projected_gradient_.data() + t * projected_ + mixed_ + kv_head * width;
        narrow_row(target, key, width);
        narrow_row(target + shape_.kv_heads * width, value, width);
    }
}

}  // namespace journeyman
