// A weight matrix W [N, K], packed once so that every product streams through it in order.
//
// N is cut into panels of PANEL vectors of 16 outputs (the last one narrower); in a panel, step by
// step of two inputs, lie the pairs of all its outputs: [panel][K / 2][vector][16][2]. Rows and
// columns beyond N and K are zero. Both the dot-product instructions and AMX tiles read this.
#pragma once

#include "memory.h"
#include "pool.h"
#include "vector.h"

namespace journeyman {

constexpr int PANEL = 3;
constexpr int64_t INPUT_MULTIPLE = 32;

class Matrix {
  public:
    Matrix() = default;
    Matrix(int64_t outputs, int64_t inputs)
        : outputs_(outputs),
          inputs_(inputs),
          vectors_((outputs + LANES - 1) / LANES),
          pairs_(round_up(inputs, INPUT_MULTIPLE) / 2),
          data_(vectors_ * pairs_ * 2 * LANES) {}

    int64_t outputs() const { return outputs_; }
    int64_t pairs() const { return pairs_; }
    int64_t panels() const { return (vectors_ + PANEL - 1) / PANEL; }
    int vectors_of(int64_t panel) const {
        return int(vectors_ - panel * PANEL < PANEL ? vectors_ - panel * PANEL : PANEL);
    }
    const bf16* panel(int64_t index) const { return data_.data() + panel_offset(index); }

    // Take `count` rows [count, K] as outputs first_output, first_output + 1, ...
    void pack(Worker& worker, const bf16* source, int64_t first_output, int64_t count) {
        const int64_t first = first_output / LANES;
        const int64_t last = (first_output + count - 1) / LANES;
        worker.share(last - first + 1, [&](int64_t item) {
            for (int64_t lane = 0; lane < LANES; ++lane) {
                const int64_t output = (first + item) * LANES + lane;
                if (output >= first_output && output < first_output + count)
                    pack_row(source + (output - first_output) * inputs_, output);
            }
        });
    }

  private:
    int64_t panel_offset(int64_t index) const { return index * PANEL * pairs_ * 2 * LANES; }

    void pack_row(const bf16* row, int64_t output) {
        const int64_t vector = output / LANES, panel = vector / PANEL;
        const int64_t stride = int64_t(vectors_of(panel)) * 2 * LANES;
        bf16* target = data_.data() + panel_offset(panel) +
                       ((vector % PANEL) * LANES + output % LANES) * 2;
        for (int64_t pair = 0; pair < inputs_ / 2; ++pair, target += stride)
            std::memcpy(target, row + pair * 2, 2 * sizeof(bf16));
        if (inputs_ % 2) target[0] = row[inputs_ - 1];
    }

    int64_t outputs_ = 0, inputs_ = 0, vectors_ = 0, pairs_ = 0;
    Buffer<bf16> data_;
};

}  // namespace journeyman
