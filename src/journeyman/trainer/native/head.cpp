// The language-model head: log-probabilities as the engine computes them, and their gradients.
#include "training.h"

namespace journeyman {

void Training::choose_rows(const int32_t* nodes, int64_t rows) {
    row_nodes_.assign(nodes, nodes + rows);
    rows_count_ = rows;
    gathered_first_ = gathered_ = 0;
    rows_.reserve(rows * width_);
    row_gradient_.reserve(rows * width_);
    targets_.resize(size_t(rows));
    log_totals_.resize(size_t(rows));
    logits_.reserve(std::min(rows, LOGIT_ROWS) * round_up(shape_.vocabulary, LANES));
    slopes_.reserve(std::min(rows, LOGIT_ROWS) * shape_.vocabulary);
    sums_.resize(size_t(LOGIT_ROWS * chunks_));
    pool_.run([&](Worker& worker) {
        worker.share(rows, [&](int64_t r) {
            rms_norm(rows_.data() + r * width_, residual_.data() + row_nodes_[r] * width_,
                     final_norm_.data(), width_, shape_.epsilon);
        });
    });
}

// The entropy of one row whose logarithm of the normaliser is `log_total`.
static float entropy_of(const float* logits, int64_t vocabulary, double log_total,
                        float temperature) {
    Floats total = {};
    const Floats shift = broadcast(float(log_total));
    for (int64_t first = 0; first < vocabulary; first += LANES) {
        const Floats logprob = tempered(logits, first, vocabulary, temperature) - shift;
        total = fused(exponential(logprob), logprob, total);
    }
    return -sum_lanes(total);
}

void Training::score(int64_t first, int64_t count, const int32_t* targets, float temperature,
                     float* logprobs, float* entropies) {
    const int64_t stride = round_up(shape_.vocabulary, LANES);
    const bf16* inputs = rows_.data() + first * width_;
    scored_first_ = first;
    scored_ = count;
    temperature_ = temperature;
    std::copy(targets, targets + count, targets_.begin() + first);
    pool_.run([&](Worker& worker) {
        worker.share(chunks_, [&](int64_t chunk) {
            const int64_t last = std::min(head_.panels(), (chunk + 1) * CHUNK_PANELS);
            for (int64_t panel = chunk * CHUNK_PANELS; panel < last; ++panel)
                multiply_panel(inputs, width_, 0, count, head_, panel,
                               [&](int64_t row, int vector, Floats sums) INLINE_LAMBDA {
                                   store(logits_.data() + row * stride +
                                             (panel * PANEL + vector) * LANES,
                                         sums);
                               });
            const int64_t begin = chunk * CHUNK, end = std::min(shape_.vocabulary, begin + CHUNK);
            for (int64_t r = 0; r < count; ++r)
                sums_[size_t(r * chunks_ + chunk)] =
                    chunk_sums(logits_.data() + r * stride, begin, end, temperature);
        });
        worker.share(count, [&](int64_t r) {
            const float* logits = logits_.data() + r * stride;
            const Row row(logits, shape_.vocabulary, sums_.data() + r * chunks_, chunks_, CHUNK,
                          temperature);
            const int64_t target = targets[r];
            logprobs[r] = row.finite() ? float(row.log_of(target)) : NAN;
            const double log_total = double(logits[0] / temperature) - row.log_of(0);
            log_totals_[size_t(first + r)] = log_total;
            entropies[r] = entropy_of(logits, shape_.vocabulary, log_total, temperature);
        });
    });
}

void Training::add_slopes(const float* slopes, float* head_gradient) {
    const int64_t vocabulary = shape_.vocabulary, stride = round_up(vocabulary, LANES);
    if (gathered_ == 0) {
        gathered_first_ = scored_first_;
        slope_pairs_.shape(std::min(SLOPE_ROWS, rows_count_ - scored_first_), vocabulary);
    }
    float* target = row_gradient_.data() + scored_first_ * width_;
    std::memset(target, 0, size_t(scored_ * width_) * sizeof(float));
    pool_.run([&](Worker& worker) {
        worker.share(scored_, [&](int64_t r) {
            const float slope = slopes[r] / temperature_;
            const Floats shift = broadcast(float(log_totals_[size_t(scored_first_ + r)]));
            bf16* row = slopes_.data() + r * vocabulary;
            const float* logits = logits_.data() + r * stride;
            for (int64_t i = 0; i < vocabulary; i += LANES)
                store_bf16(row + i, exponential(tempered(logits, i, vocabulary, temperature_) -
                                                shift) * broadcast(-slope));
            const int32_t token = targets_[size_t(scored_first_ + r)];
            const float weight = exponential(
                tempered(logits, token / LANES * LANES, vocabulary, temperature_) -
                shift)[token % LANES];
            row[token] = narrow_one(slope - weight * slope);
        });
        multiply_long(worker, slopes_.data(), vocabulary, scored_, head_back_, target, width_);
        slope_pairs_.pack(worker, slopes_.data(), vocabulary, scored_,
                          scored_first_ - gathered_first_);
    });
    gathered_ += scored_;
    if (gathered_ >= SLOPE_ROWS || scored_first_ + scored_ == rows_count_)
        flush_slopes(head_gradient);
}

void Training::flush_slopes(float* head_gradient) {
    row_pairs_.shape(gathered_, width_);
    pool_.run([&](Worker& worker) {
        row_pairs_.pack(worker, rows_.data() + gathered_first_ * width_, width_, gathered_);
        add_outer(worker, slope_pairs_, row_pairs_, head_gradient);
    });
    gathered_ = 0;
}

}  // namespace journeyman
