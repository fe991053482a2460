// What surrounds the products: embedding rows, norms, gates and rotary positions.
#pragma once

#include "vector.h"

namespace journeyman {

// target [width padded to whole vectors], float32
INLINE void embed(float* target, const bf16* row, int64_t width) {
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) store(target + i, load_bf16(row + i));
    for (; i < width; ++i) target[i] = widen(row[i]);
}

// RMSNorm (Zhang and Sennrich, 2019) of one row in float32, rounded once to bf16. Rows are padded
// with zeros to whole vectors, which add nothing to the sum of squares; `weight` is padded alike.
INLINE void rms_norm(bf16* target, const float* row, const float* weight, int64_t width,
                     float epsilon) {
    Floats squares[4] = {};
    const int64_t vectors = (width + LANES - 1) / LANES;
    for (int64_t v = 0; v < vectors; ++v) {
        const Floats value = load(row + v * LANES);
        squares[v % 4] = fused(value, value, squares[v % 4]);
    }
    const float total = sum_lanes((squares[0] + squares[1]) + (squares[2] + squares[3]));
    const Floats scale = broadcast(1.0f / std::sqrt(total / float(width) + epsilon));
    for (int64_t v = 0; v < vectors; ++v)
        store_bf16(target + v * LANES, load(row + v * LANES) * scale * load(weight + v * LANES));
}

// SiLU(gate) * up
INLINE Floats gated(Floats gate, Floats up) {
    return gate / (exponential(-gate) + 1.0f) * up;
}

// Rotary positions (Su et al., 2021), half-split: head [Dh] float32 turned in place.
INLINE void rotate(float* head, const float* cosine, const float* sine, int64_t width) {
    const int64_t half = width / 2;
    int64_t i = 0;
    for (; i + LANES <= half; i += LANES) {
        const Floats a = load(head + i), b = load(head + half + i);
        const Floats c = load(cosine + i), s = load(sine + i);
        store(head + i, fused(a, c, -(b * s)));
        store(head + half + i, fused(b, c, a * s));
    }
    for (; i < half; ++i) {
        const float a = head[i], b = head[half + i];
        head[i] = a * cosine[i] - b * sine[i];
        head[half + i] = b * cosine[i] + a * sine[i];
    }
}

}  // namespace journeyman
