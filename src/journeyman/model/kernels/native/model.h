// One decoder of the Llama family: packed weights, KV cache, and a whole engine step in one call.
//
// Activations that enter a product are bf16; the residual stream, what leaves a product, norms,
// rotation, softmax and logits are float32.
#pragma once

#include <string>
#include <vector>

#include "attention.h"
#include "layers.h"
#include "matrix.h"
#include "memory.h"
#include "pool.h"
#include "product.h"
#include "sampling.h"

extern "C" {

struct JourneymanShape {
    int64_t vocabulary, width, inner, layers, heads, kv_heads, head_dim, positions;
    float epsilon;
    const float *cosine, *sine;  // [positions, head_dim / 2]
};

// bf16, contiguous; every pointer array has one entry per layer
struct JourneymanWeights {
    const uint16_t *embedding, *final_norm, *head;  // head is null when tied
    const uint16_t *const *input_norm, *const *query, *const *key, *const *value;
    const uint16_t *const *output, *const *inner_norm, *const *gate, *const *up, *const *down;
};

struct JourneymanBatch {
    int64_t tokens, sequences, table_width, sampled;
    const int32_t *token_ids, *positions, *slots, *query_starts, *context_lens, *block_tables;
    const int32_t* sample_rows;
    const float *temperature, *top_p;
    const int64_t* seeds;
    const int32_t* targets;  // null, or [sampled]: score these instead of sampling
};
}

namespace journeyman {

constexpr int64_t SAMPLE_ROWS = 64;    // logits of this many rows exist at a time
constexpr int64_t CHUNK_PANELS = 16;   // panels of the head in one chunk of the vocabulary
constexpr int64_t CHUNK = CHUNK_PANELS * PANEL * LANES;

struct Layer {
    Buffer<float> input_norm, inner_norm;
    Matrix query_key_value, output, gate, up, down;
};

class Model {
  public:
    Model(const JourneymanShape& shape, int threads);
    void load_weights(const JourneymanWeights& weights);
    void allocate(int64_t blocks);
    // Empty, or what is wrong with the batch or its logits.
    std::string step(const JourneymanBatch& batch, int32_t* token_ids, float* logprobs);

  private:
    std::string check(const JourneymanBatch& batch) const;
    void reserve(const JourneymanBatch& batch);
    void forward(Worker& worker, const JourneymanBatch& batch);
    void attention_layer(Worker& worker, const JourneymanBatch& batch, int64_t index);
    void attention(Worker& worker, const JourneymanBatch& batch, const bf16* cache);
    void inner_layer(Worker& worker, const JourneymanBatch& batch, const Layer& layer);
    void normalise(Worker& worker, int64_t rows, const float* weight);
    void rotate_and_cache(const JourneymanBatch& batch, bf16* cache, int64_t token);
    void sample(Worker& worker, const JourneymanBatch& batch, int32_t* token_ids, float* logprobs);
    void sample_group(Worker& worker, const JourneymanBatch& batch, int64_t first, int64_t rows,
                      int32_t* token_ids, float* logprobs);

    JourneymanShape shape_;
    HeadShape heads_;
    int64_t width_stride_, inner_stride_, mixed_stride_, projected_stride_, logits_stride_;
    int64_t chunks_;
    Pool pool_;
    std::vector<float> cosine_, sine_;
    std::vector<Layer> layers_;
    Buffer<bf16> embedding_, cache_;
    Buffer<float> final_norm_;
    Matrix head_;
    int64_t blocks_ = 0;
    bool loaded_ = false;

    Buffer<float> residual_, projected_, logits_;
    Buffer<bf16> normed_, queries_, mixed_, inner_, sampled_;
    std::vector<int32_t> sequence_of_;
    std::vector<ChunkSums> sums_;
    std::atomic<int64_t> bad_row_{-1};
};

}  // namespace journeyman
