// Forward and backward passes of one pack: the engine's forward pass, bit for bit, with its
// intermediate values kept, and gradients that are summed in float32.
#pragma once

#include <string>
#include <vector>

#include "attention_backward.h"
#include "layers_backward.h"
#include "model.h"
#include "pairs.h"

extern "C" {

// A trie of token streams in depth-first order; see journeyman.trainer.trie.
struct JourneymanPack {
    int64_t nodes, segments, table_width, blocks;
    const int32_t *token_ids, *positions;
    const int32_t* segment_starts;  // [segments + 1]
    const int32_t* descendants;     // [segments] the first node that is no descendant
    const int32_t* block_tables;    // [segments, table_width] of the cache, along a node's path
    const int32_t *slot_starts, *slots;  // the cache slots of node t: slots[slot_starts[t] ...)
};

// float32 [N, K] each, like the weights of JourneymanWeights; projections of one input together
struct JourneymanGradients {
    float *embedding, *final_norm, *head;  // head is the embedding's when tied
    float *const *input_norm, *const *query_key_value, *const *output;
    float *const *inner_norm, *const *gate_up, *const *down;
};
}

namespace journeyman {

constexpr int64_t LOGIT_ROWS = 128;   // rows of logits that exist at a time
constexpr int64_t SLOPE_ROWS = 1024;  // rows whose slopes are gathered for the head's gradient

struct TrainedLayer {
    Buffer<float> input_norm, inner_norm;
    Matrix query_key_value, output, gate, up, down;             // forward
    Pairs query_key_value_back, output_back, gate_up_back, down_back;
};

// What the backward pass needs of one layer.
struct Kept {
    Buffer<float> residual, middle, log_totals;
    Buffer<bf16> normed, projected, mixed, inner_normed, gate_up, inner;
};

class Training {
  public:
    Training(const JourneymanShape& shape, int threads);
    // Takes copies. gate and up, and query, key and value, lie one after the other.
    void load_weights(const JourneymanWeights& weights);
    void forward(const JourneymanPack& pack);
    // Normed hidden states of `rows` nodes, kept for the calls below.
    void choose_rows(const int32_t* nodes, int64_t rows);
    // Log-probabilities of `targets` after chosen rows [first, first + count <= LOGIT_ROWS).
    void score(int64_t first, int64_t count, const int32_t* targets, float temperature,
               float* logprobs, float* entropies);
    // Gradients through what `score` has just computed: slopes [count] are d loss / d logprob.
    void add_slopes(const float* slopes, float* head_gradient);
    // Everything below the head; `score` and `add_slopes` must have seen every chosen row.
    void backward(const JourneymanPack& pack, const JourneymanGradients& gradients);

  private:
    void reserve(const JourneymanPack& pack);
    void forward_attention(Worker& worker, const JourneymanPack& pack, int64_t index);
    void forward_inner(Worker& worker, const JourneymanPack& pack, int64_t index);
    void rotate_and_cache(const JourneymanPack& pack, Kept& kept, int64_t node);
    void flush_slopes(float* head_gradient);
    void backward_rows(Worker& worker, const JourneymanPack& pack, float* norm_gradient);
    void backward_inner(Worker& worker, int64_t nodes, int64_t index,
                        const JourneymanGradients& gradients);
    void backward_attention(Worker& worker, const JourneymanPack& pack, int64_t index,
                            const JourneymanGradients& gradients);
    void plan_attention(const JourneymanPack& pack);
    void attend_back(Worker& worker, const JourneymanPack& pack, int64_t index);
    void gather_keys(const JourneymanPack& pack, int64_t block, int64_t kv_head);
    void backward_norm(Worker& worker, int64_t nodes, const float* source, const float* weight,
                       float* gradient);
    void backward_embedding(Worker& worker, const JourneymanPack& pack, float* gradient);
    void narrow_residual(Worker& worker, int64_t nodes);

    JourneymanShape shape_;
    HeadShape heads_;
    int64_t width_, inner_, mixed_, projected_, half_;
    int64_t chunks_;
    Pool pool_;
    std::vector<float> cosine_, sine_;
    std::vector<TrainedLayer> layers_;
    std::vector<Kept> kept_;
    Buffer<bf16> embedding_, cache_;
    Buffer<float> final_norm_;
    Matrix head_;
    Pairs head_back_;

    // The forward pass' own room.
    Buffer<float> residual_, wide_;
    // The head's: rows chosen, one chunk of logits, slopes of up to SLOPE_ROWS rows.
    std::vector<int32_t> row_nodes_, targets_;
    Buffer<bf16> rows_, slopes_;
    Buffer<float> logits_, row_gradient_;
    std::vector<ChunkSums> sums_;
    std::vector<double> log_totals_;
    Pairs slope_pairs_, row_pairs_;
    int64_t rows_count_ = 0, scored_first_ = 0, scored_ = 0, gathered_first_ = 0, gathered_ = 0;
    float temperature_ = 1.0f;
    // The backward pass' own: gradient of the residual stream and of what a layer computed.
    Buffer<float> residual_gradient_, normed_gradient_, norm_partial_;
    Buffer<bf16> upstream_, gate_up_gradient_, projected_gradient_, mixed_gradient_;
    Pairs left_, right_;
    std::vector<KeyBlock> key_blocks_;
    std::vector<AttentionRoom> rooms_;
    PackedKeys packed_keys_;
    Buffer<float> key_gradient_, value_gradient_;
};

}  // namespace journeyman
