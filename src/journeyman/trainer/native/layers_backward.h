// Gradients of what surrounds the products; see layers.h for the forward direction.
#pragma once

#include "layers.h"

namespace journeyman {

// Add the gradient of rms_norm to `residual` [width], and its weight's to `weight_gradient`.
// `upstream` is d loss / d normed, `row` what was normed, all float32.
INLINE void rms_norm_backward(float* residual, float* weight_gradient, const float* upstream,
                              const float* row, const float* weight, int64_t width,
                              float epsilon) {
    Floats squares = {}, products = {};
    for (int64_t i = 0; i < width; i += LANES) {
        const Floats value = load(row + i);
        squares = fused(value, value, squares);
        products = fused(value * load(upstream + i), load(weight + i), products);
    }
    const float scale = 1.0f / std::sqrt(sum_lanes(squares) / float(width) + epsilon);
    const float mean = sum_lanes(products) * scale / float(width);
    for (int64_t i = 0; i < width; i += LANES) {
        const Floats normed = load(row + i) * broadcast(scale);
        const Floats gradient = load(upstream + i);
        store(weight_gradient + i, fused(gradient, normed, load(weight_gradient + i)));
        const Floats inner = gradient * load(weight + i) - normed * broadcast(mean);
        store(residual + i, fused(inner, broadcast(scale), load(residual + i)));
    }
}

struct GateGradient {
    Floats gate, up;
};

// Of silu(gate) * up.
INLINE GateGradient gated_backward(Floats gate, Floats up, Floats upstream) {
    const Floats opening = 1.0f / (exponential(-gate) + 1.0f);
    const Floats silu = gate * opening;
    return {upstream * up * (opening + silu * (1.0f - opening)), upstream * silu};
}

// The transpose of a rotation is the rotation by the opposite angle. head [Dh] in place.
INLINE void rotate_back(float* head, const float* cosine, const float* sine, int64_t width) {
    const int64_t half = width / 2;
    for (int64_t i = 0; i < half; i += LANES) {
        const Floats a = load(head + i), b = load(head + half + i);
        const Floats c = load(cosine + i), s = load(sine + i);
        store(head + i, fused(a, c, b * s));
        store(head + half + i, fused(b, c, -(a * s)));
    }
}

}  // namespace journeyman
