// Sampling one token from float32 logits, and its log-probability.
//
// The vocabulary is cut into fixed chunks. The thread that has just computed a chunk's logits
// also takes its maximum and its sum of exponentials while they are in cache; a row's totals are
// then combined chunk after chunk, so they do not depend on the rest of the batch. One uniform
// number per token, from the token's own seed, inverts the cumulative distribution.
#pragma once

#include <algorithm>
#include <vector>

#include "vector.h"

namespace journeyman {

struct ChunkSums {
    float highest;  // of the logits over temperature
    float total;    // of exp(logit / temperature - highest)
};

struct Draw {
    float temperature;  // 0: greedy
    float top_p;
    int64_t seed;
    int32_t target;  // -1: sample; else only this token's log-probability is wanted
};

struct Drawn {
    int32_t token;
    float logprob;
    bool finite;
};

// SplitMix64 (Steele, Lea and Flood, 2014) of the seed, as a multiple of 2^-24 in [0, 1): the
// number that journeyman.model.sampling defines.
INLINE double uniform(int64_t seed) {
    uint64_t bits = uint64_t(seed) + 0x9e3779b97f4a7c15ull;
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9ull;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebull;
    bits ^= bits >> 31;
    return double(bits >> 40) * 0x1.0p-24;
}

INLINE float effective_temperature(float temperature) {
    return temperature > 0.0f ? temperature : 1.0f;
}

// Tempered logits of 16 tokens; those at `limit` and beyond are minus infinity.
INLINE Floats tempered(const float* logits, int64_t first, int64_t limit, float temperature) {
    const Ints lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    Floats value = load(logits + first);
    if (temperature != 1.0f) value = value / broadcast(temperature);
    if (first + LANES <= limit) return value;
    return (lane + int32_t(first)) < int32_t(limit) ? value : broadcast(-INFINITY);
}

INLINE ChunkSums chunk_sums(const float* logits, int64_t begin, int64_t end, float temperature) {
    Floats best = broadcast(-INFINITY);
    for (int64_t i = begin; i < end; i += LANES)
        best = maximum(best, tempered(logits, i, end, temperature));
    const float highest = max_lanes(best);
    const Floats shift = broadcast(highest);
    Floats total = {};
    for (int64_t i = begin; i < end; i += LANES)
        total = total + exponential(tempered(logits, i, end, temperature) - shift);
    return {highest, sum_lanes(total)};
}

// One row's distribution: logits [V] with the sums of its chunks.
class Row {
  public:
    Row(const float* logits, int64_t vocabulary, const ChunkSums* sums, int64_t chunks,
        int64_t chunk, float temperature)
        : logits_(logits),
          vocabulary_(vocabulary),
          sums_(sums),
          chunks_(chunks),
          chunk_(chunk),
          temperature_(temperature) {
        for (int64_t c = 0; c < chunks; ++c) highest_ = std::max(highest_, sums[c].highest);
        for (int64_t c = 0; c < chunks; ++c) total_ += mass(c);
    }

    bool finite() const { return total_ > 0.0 && total_ < double(INFINITY); }

    double log_of(int64_t token) const {
        return double(scaled(token)) - double(highest_) - std::log(total_);
    }

    int32_t likeliest() const {
        int64_t token = 0;
        for (int64_t c = 0; c < chunks_; ++c) {
            if (sums_[c].highest != highest_) continue;
            for (token = c * chunk_; scaled(token) != highest_;) ++token;
            break;
        }
        return int32_t(token);
    }

    int32_t at(double fraction) const {
        double left = fraction * total_;
        int64_t c = 0;
        for (; c + 1 < chunks_ && left >= mass(c); ++c) left -= mass(c);
        const int64_t end = std::min(vocabulary_, (c + 1) * chunk_);
        int64_t last = -1;
        for (int64_t first = c * chunk_; first < end; first += LANES) {
            alignas(64) float weights[LANES];
            store(weights, weights_from(first, end));
            for (int64_t i = 0; i < LANES && first + i < end; ++i) {
                if (weights[i] <= 0.0f) continue;
                last = first + i;
                left -= double(weights[i]);
                if (left < 0.0) return int32_t(last);
            }
        }
        // The chunk's vector sum may exceed this running one by a rounding error.
        return last >= 0 ? int32_t(last) : likeliest();
    }

    // exp(logit / temperature - highest) of 16 tokens
    Floats weights_from(int64_t first, int64_t end) const {
        return exponential(tempered(logits_, first, end, temperature_) - broadcast(highest_));
    }

    double total() const { return total_; }

  private:
    float scaled(int64_t token) const {
        return temperature_ != 1.0f ? logits_[token] / temperature_ : logits_[token];
    }
    double mass(int64_t c) const {
        return double(sums_[c].total) * std::exp(double(sums_[c].highest) - double(highest_));
    }

    const float* logits_;
    int64_t vocabulary_;
    const ChunkSums* sums_;
    int64_t chunks_, chunk_;
    float temperature_;
    float highest_ = -INFINITY;
    double total_ = 0.0;
};

// Nucleus sampling (Holtzman et al., 2020): the likeliest tokens up to and including the one that
// takes their mass to top_p. Equal weights are taken in order of token.
class Nucleus {
  public:
    Nucleus(const Row& row, int64_t vocabulary, float top_p) {
        // A token this unlikely cannot be in: all such tokens together weigh less than 1 - top_p.
        const double wanted = double(top_p) * row.total();
        const float least = float((row.total() - wanted) / double(vocabulary) * 0.999);
        for (int64_t first = 0; first < vocabulary; first += LANES) {
            alignas(64) float weights[LANES];
            store(weights, row.weights_from(first, vocabulary));
            for (int64_t i = 0; i < LANES && first + i < vocabulary; ++i)
                if (weights[i] > least) tokens_.push_back({weights[i], int32_t(first + i)});
        }
        std::sort(tokens_.begin(), tokens_.end(), [](const Weighted& a, const Weighted& b) {
            return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
        });
        size_t kept = 0;
        while (kept < tokens_.size() && (kept == 0 || mass_ < wanted))
            mass_ += double(tokens_[kept++].weight);
        tokens_.resize(kept);
        std::sort(tokens_.begin(), tokens_.end(),
                  [](const Weighted& a, const Weighted& b) { return a.token < b.token; });
    }

    // The cumulative distribution is walked in order of token, as without a nucleus.
    int32_t at(double fraction) const {
        double left = fraction * mass_;
        for (const Weighted& candidate : tokens_) {
            left -= double(candidate.weight);
            if (left < 0.0) return candidate.token;
        }
        return tokens_.back().token;
    }

    double log_of(int32_t token) const {
        for (const Weighted& candidate : tokens_)
            if (candidate.token == token) return std::log(double(candidate.weight) / mass_);
        return -double(INFINITY);
    }

  private:
    struct Weighted {
        float weight;
        int32_t token;
    };
    std::vector<Weighted> tokens_;
    double mass_ = 0.0;
};

inline Drawn draw(const Row& row, int64_t vocabulary, const Draw& wish) {
    if (!row.finite()) return {-1, 0.0f, false};
    if (wish.temperature > 0.0f && wish.top_p < 1.0f) {
        const Nucleus nucleus(row, vocabulary, wish.top_p);
        const int32_t token = wish.target >= 0 ? wish.target : nucleus.at(uniform(wish.seed));
        return {token, float(nucleus.log_of(token)), true};
    }
    int32_t token = wish.target;
    if (token < 0)
        token = wish.temperature > 0.0f ? row.at(uniform(wish.seed)) : row.likeliest();
    return {token, float(row.log_of(token)), true};
}

}  // namespace journeyman
