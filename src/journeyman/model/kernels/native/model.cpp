#include "model.h"

#include <algorithm>

namespace journeyman {

namespace {

constexpr int64_t ROWS_PER_ITEM = 4;

int64_t items_of(int64_t count, int64_t size) { return (count + size - 1) / size; }

std::string out_of_range(const char* what, int64_t index, int64_t value, int64_t limit) {
    return std::string(what) + "[" + std::to_string(index) + "] is " + std::to_string(value) +
           ", not in [0, " + std::to_string(limit) + ")";
}

Buffer<float> widened(const bf16* source, int64_t count) {
    Buffer<float> target(round_up(count, LANES));
    for (int64_t i = 0; i < count; ++i) target.data()[i] = widen(source[i]);
    return target;
}

}  // namespace

Model::Model(const JourneymanShape& shape, int threads)
    : shape_(shape),
      heads_{shape.head_dim, shape.kv_heads},
      width_stride_(round_up(shape.width, INPUT_MULTIPLE)),
      inner_stride_(round_up(shape.inner, INPUT_MULTIPLE)),
      mixed_stride_(round_up(shape.heads * shape.head_dim, INPUT_MULTIPLE)),
      projected_stride_(
          round_up((shape.heads + 2 * shape.kv_heads) * shape.head_dim, LANES)),
      logits_stride_(round_up(shape.vocabulary, LANES)),
      chunks_(items_of(shape.vocabulary, CHUNK)),
      pool_(threads) {
    const int64_t half = shape.positions * shape.head_dim / 2;
    cosine_.assign(shape.cosine, shape.cosine + half);
    sine_.assign(shape.sine, shape.sine + half);
    const int64_t query = shape.heads * shape.head_dim, kv = shape.kv_heads * shape.head_dim;
    for (int64_t i = 0; i < shape.layers; ++i) {
        Layer layer;
        layer.query_key_value = Matrix(query + 2 * kv, shape.width);
        layer.output = Matrix(shape.width, query);
        layer.gate = Matrix(shape.inner, shape.width);
        layer.up = Matrix(shape.inner, shape.width);
        layer.down = Matrix(shape.width, shape.inner);
        layers_.push_back(std::move(layer));
    }
    embedding_.reserve(shape.vocabulary * shape.width);
    head_ = Matrix(shape.vocabulary, shape.width);
}

void Model::load_weights(const JourneymanWeights& weights) {
    const int64_t query = shape_.heads * shape_.head_dim, kv = shape_.kv_heads * shape_.head_dim;
    const int64_t width = shape_.width, inner = shape_.inner;
    for (int64_t i = 0; i < shape_.layers; ++i) {
        layers_[i].input_norm = widened(weights.input_norm[i], width);
        layers_[i].inner_norm = widened(weights.inner_norm[i], width);
    }
    final_norm_ = widened(weights.final_norm, width);
    pool_.run([&](Worker& worker) {
        worker.share(shape_.vocabulary, [&](int64_t row) {
            std::memcpy(embedding_.data() + row * width, weights.embedding + row * width,
                        size_t(width) * sizeof(bf16));
        });
        head_.pack(worker, weights.head ? weights.head : weights.embedding, 0, shape_.vocabulary);
        for (int64_t i = 0; i < shape_.layers; ++i) {
            Layer& layer = layers_[i];
            layer.query_key_value.pack(worker, weights.query[i], 0, query);
            layer.query_key_value.pack(worker, weights.key[i], query, kv);
            layer.query_key_value.pack(worker, weights.value[i], query + kv, kv);
            layer.output.pack(worker, weights.output[i], 0, width);
            layer.gate.pack(worker, weights.gate[i], 0, inner);
            layer.up.pack(worker, weights.up[i], 0, inner);
            layer.down.pack(worker, weights.down[i], 0, width);
        }
    });
    loaded_ = true;
}

void Model::allocate(int64_t blocks) {
    cache_.release();
    blocks_ = 0;
    cache_.reserve(blocks * heads_.block_size() * shape_.layers);
    blocks_ = blocks;
}

std::string Model::check(const JourneymanBatch& batch) const {
    if (!loaded_) return "no weights are loaded";
    for (int64_t t = 0; t < batch.tokens; ++t) {
        if (uint32_t(batch.token_ids[t]) >= uint64_t(shape_.vocabulary))
            return out_of_range("token_ids", t, batch.token_ids[t], shape_.vocabulary);
        if (uint32_t(batch.positions[t]) >= uint64_t(shape_.positions))
            return out_of_range("positions", t, batch.positions[t], shape_.positions);
        if (uint32_t(batch.slots[t]) >= uint64_t(blocks_ * BLOCK))
            return out_of_range("slots", t, batch.slots[t], blocks_ * BLOCK);
    }
    if (batch.query_starts[0] != 0 || batch.query_starts[batch.sequences] != batch.tokens)
        return "query_starts does not run from 0 to the number of tokens";
    for (int64_t s = 0; s < batch.sequences; ++s) {
        const int64_t begin = batch.query_starts[s], end = batch.query_starts[s + 1];
        if (begin > end) return "query_starts[" + std::to_string(s + 1) + "] decreases";
        const int64_t context = batch.context_lens[s];
        const int64_t used = items_of(context, BLOCK);
        if (context < 0 || used > batch.table_width)
            return out_of_range("context_lens", s, context, batch.table_width * BLOCK + 1);
        for (int64_t t = begin; t < end; ++t)
            if (batch.positions[t] >= context)
                return out_of_range("positions", t, batch.positions[t], context);
        for (int64_t b = 0; b < used; ++b) {
            const int64_t index = s * batch.table_width + b;
            if (uint32_t(batch.block_tables[index]) >= uint64_t(blocks_))
                return out_of_range("block_tables", index, batch.block_tables[index], blocks_);
        }
    }
    for (int64_t r = 0; r < batch.sampled; ++r) {
        if (uint32_t(batch.sample_rows[r]) >= uint64_t(batch.tokens))
            return out_of_range("sample_rows", r, batch.sample_rows[r], batch.tokens);
        if (batch.targets && uint32_t(batch.targets[r]) >= uint64_t(shape_.vocabulary))
            return out_of_range("targets", r, batch.targets[r], shape_.vocabulary);
        if (!(batch.temperature[r] >= 0.0f))
            return "temperature[" + std::to_string(r) + "] is " +
                   std::to_string(batch.temperature[r]) + ", not 0 or above";
        if (!(batch.top_p[r] > 0.0f && batch.top_p[r] <= 1.0f))
            return "top_p[" + std::to_string(r) + "] is " + std::to_string(batch.top_p[r]) +
                   ", not in (0, 1]";
    }
    return "";
}

void Model::reserve(const JourneymanBatch& batch) {
    residual_.reserve(batch.tokens * width_stride_);
    normed_.reserve(batch.tokens * width_stride_);
    projected_.reserve(batch.tokens * projected_stride_);
    queries_.reserve(batch.tokens * mixed_stride_);
    mixed_.reserve(batch.tokens * mixed_stride_);
    inner_.reserve(batch.tokens * inner_stride_);
    sampled_.reserve(batch.sampled * width_stride_);
    logits_.reserve(std::min(batch.sampled, SAMPLE_ROWS) * logits_stride_);
    sums_.resize(size_t(SAMPLE_ROWS * chunks_));
    sequence_of_.resize(size_t(batch.tokens));
    for (int64_t s = 0; s < batch.sequences; ++s)
        std::fill(sequence_of_.begin() + batch.query_starts[s],
                  sequence_of_.begin() + batch.query_starts[s + 1], int32_t(s));
}

std::string Model::step(const JourneymanBatch& batch, int32_t* token_ids, float* logprobs) {
    std::string wrong = check(batch);
    if (!wrong.empty() || batch.tokens == 0) return wrong;
    reserve(batch);
    bad_row_.store(-1);
    pool_.run([&](Worker& worker) {
        forward(worker, batch);
        sample(worker, batch, token_ids, logprobs);
    });
    if (bad_row_.load() >= 0)
        return "the logits of sampled row " + std::to_string(bad_row_.load()) + " are not finite";
    return "";
}

void Model::forward(Worker& worker, const JourneymanBatch& batch) {
    worker.share(items_of(batch.tokens, ROWS_PER_ITEM), [&](int64_t item) {
        const int64_t end = std::min(batch.tokens, (item + 1) * ROWS_PER_ITEM);
        for (int64_t t = item * ROWS_PER_ITEM; t < end; ++t)
            embed(residual_.data() + t * width_stride_,
                  embedding_.data() + int64_t(batch.token_ids[t]) * shape_.width, shape_.width);
    });
    for (int64_t i = 0; i < shape_.layers; ++i) {
        attention_layer(worker, batch, i);
        inner_layer(worker, batch, layers_[i]);
    }
}

void Model::normalise(Worker& worker, int64_t rows, const float* weight) {
    worker.share(items_of(rows, ROWS_PER_ITEM), [&](int64_t item) {
        const int64_t end = std::min(rows, (item + 1) * ROWS_PER_ITEM);
        for (int64_t t = item * ROWS_PER_ITEM; t < end; ++t)
            rms_norm(normed_.data() + t * width_stride_, residual_.data() + t * width_stride_,
                     weight, shape_.width, shape_.epsilon);
    });
}

void Model::rotate_and_cache(const JourneymanBatch& batch, bf16* cache, int64_t token) {
    const int64_t width = shape_.head_dim;
    float* row = projected_.data() + token * projected_stride_;
    float* keys = row + shape_.heads * width;
    const float* values = keys + shape_.kv_heads * width;
    const float* cosine = cosine_.data() + batch.positions[token] * width / 2;
    const float* sine = sine_.data() + batch.positions[token] * width / 2;
    for (int64_t h = 0; h < shape_.heads + shape_.kv_heads; ++h)
        rotate(row + h * width, cosine, sine, width);
    narrow_row(queries_.data() + token * mixed_stride_, row, shape_.heads * width);
    for (int64_t h = 0; h < shape_.kv_heads; ++h)
        write_cache(cache, heads_, batch.slots[token], h, keys + h * width, values + h * width);
}

void Model::attention_layer(Worker& worker, const JourneymanBatch& batch, int64_t index) {
    const Layer& layer = layers_[index];
    bf16* cache = cache_.data() + index * blocks_ * heads_.block_size();
    normalise(worker, batch.tokens, layer.input_norm.data());
    multiply(worker, normed_.data(), width_stride_, batch.tokens, layer.query_key_value,
             [&](int64_t row, int64_t output, Floats sums) INLINE_LAMBDA {
                 store(projected_.data() + row * projected_stride_ + output, sums);
             });
    worker.share(items_of(batch.tokens, ROWS_PER_ITEM), [&](int64_t item) {
        const int64_t end = std::min(batch.tokens, (item + 1) * ROWS_PER_ITEM);
        for (int64_t t = item * ROWS_PER_ITEM; t < end; ++t) rotate_and_cache(batch, cache, t);
    });
    attention(worker, batch, cache);
    multiply(worker, mixed_.data(), mixed_stride_, batch.tokens, layer.output,
             [&](int64_t row, int64_t output, Floats sums) INLINE_LAMBDA {
                 float* target = residual_.data() + row * width_stride_ + output;
                 store(target, load(target) + sums);
             });
}

void Model::attention(Worker& worker, const JourneymanBatch& batch, const bf16* cache) {
    const int64_t shared = shape_.heads / shape_.kv_heads;
    const float scale = 1.0f / std::sqrt(float(shape_.head_dim));
    const auto context = [&](int64_t token, int64_t head) {
        return Context{cache, batch.block_tables + sequence_of_[token] * batch.table_width,
                       batch.positions[token], head};
    };
    worker.share(batch.tokens * shape_.kv_heads, [&](int64_t item) {
        const int64_t token = item / shape_.kv_heads, head = item % shape_.kv_heads;
        const int64_t place = token * mixed_stride_ + head * shared * shape_.head_dim;
        // The same head of the next sequence comes shortly; a neighbour token of the same
        // sequence has its keys in cache already.
        const bool other =
            token + 1 < batch.tokens && sequence_of_[token + 1] != sequence_of_[token];
        const Context here = context(token, head);
        const Context next = other ? context(token + 1, head) : here;
        attend_heads(shared, mixed_.data() + place, queries_.data() + place, here,
                     other ? &next : nullptr, heads_, scale);
    });
}

void Model::inner_layer(Worker& worker, const JourneymanBatch& batch, const Layer& layer) {
    normalise(worker, batch.tokens, layer.inner_norm.data());
    const int64_t panels = layer.gate.panels();
    const int64_t step = rows_per_item(batch.tokens, panels, worker.threads());
    worker.share(items_of(batch.tokens, step) * panels, [&](int64_t item) {
        alignas(64) float gates[256][PANEL * LANES];
        const int64_t begin = item / panels * step, panel = item % panels;
        const int64_t end = std::min(batch.tokens, begin + step);
        multiply_panel(normed_.data(), width_stride_, begin, end, layer.gate, panel,
                       [&](int64_t row, int vector, Floats sums) INLINE_LAMBDA {
                           store(gates[row - begin] + vector * LANES, sums);
                       },
                       layer.up.panel(panel));
        multiply_panel(normed_.data(), width_stride_, begin, end, layer.up, panel,
                       [&](int64_t row, int vector, Floats sums) INLINE_LAMBDA {
                           const int64_t output = (panel * PANEL + vector) * LANES;
                           store_bf16(inner_.data() + row * inner_stride_ + output,
                                      gated(load(gates[row - begin] + vector * LANES), sums));
                       },
                       layer.gate.panel(panel + 1));
    });
    multiply(worker, inner_.data(), inner_stride_, batch.tokens, layer.down,
             [&](int64_t row, int64_t output, Floats sums) INLINE_LAMBDA {
                 float* target = residual_.data() + row * width_stride_ + output;
                 store(target, load(target) + sums);
             });
}

void Model::sample(Worker& worker, const JourneymanBatch& batch, int32_t* token_ids,
                   float* logprobs) {
    worker.share(batch.sampled, [&](int64_t r) {
        rms_norm(sampled_.data() + r * width_stride_,
                 residual_.data() + batch.sample_rows[r] * width_stride_, final_norm_.data(),
                 shape_.width, shape_.epsilon);
    });
    for (int64_t first = 0; first < batch.sampled; first += SAMPLE_ROWS)
        sample_group(worker, batch, first, std::min(SAMPLE_ROWS, batch.sampled - first), token_ids,
                     logprobs);
}

void Model::sample_group(Worker& worker, const JourneymanBatch& batch, int64_t first,
                         int64_t rows, int32_t* token_ids, float* logprobs) {
    const bf16* inputs = sampled_.data() + first * width_stride_;
    worker.share(chunks_, [&](int64_t chunk) {
        const int64_t last = std::min(head_.panels(), (chunk + 1) * CHUNK_PANELS);
        for (int64_t panel = chunk * CHUNK_PANELS; panel < last; ++panel)
            multiply_panel(inputs, width_stride_, 0, rows, head_, panel,
                           [&](int64_t row, int vector, Floats sums) INLINE_LAMBDA {
                               store(logits_.data() + row * logits_stride_ +
                                         (panel * PANEL + vector) * LANES,
                                     sums);
                           });
        const int64_t begin = chunk * CHUNK, end = std::min(shape_.vocabulary, begin + CHUNK);
        for (int64_t r = 0; r < rows; ++r)
            sums_[size_t(r * chunks_ + chunk)] =
                chunk_sums(logits_.data() + r * logits_stride_, begin, end,
                           effective_temperature(batch.temperature[first + r]));
    });
    worker.share(rows, [&](int64_t r) {
        const int64_t index = first + r;
        const Draw wish{batch.temperature[index], batch.top_p[index], batch.seeds[index],
                        batch.targets ? batch.targets[index] : -1};
        const Row row(logits_.data() + r * logits_stride_, shape_.vocabulary,
                      sums_.data() + r * chunks_, chunks_, CHUNK,
                      effective_temperature(wish.temperature));
        const Drawn drawn = draw(row, shape_.vocabulary, wish);
        if (!drawn.finite) bad_row_.store(index);
        token_ids[index] = drawn.token;
        logprobs[index] = drawn.logprob;
    });
}

}  // namespace journeyman
