// Sixteen float lanes on any instruction set, and the few operations the kernels are built of.
//
// Each instruction set is its own shared library, compiled from the same sources, so nothing here
// may be shared between two of them. Every operation has one fixed order of rounding: contraction
// of a*b+c is off and fused only where `fused` says so, because equal inputs must give equal bits
// however the compiler inlines the callers.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

#define INLINE inline __attribute__((always_inline))
#define INLINE_LAMBDA __attribute__((always_inline))

namespace journeyman {

using bf16 = uint16_t;
constexpr int LANES = 16;

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef bf16 Halves __attribute__((vector_size(32)));

INLINE Floats load(const float* source) {
    Floats value;
    std::memcpy(&value, source, sizeof value);
    return value;
}

INLINE Words load_words(const void* source) {
    Words value;
    std::memcpy(&value, source, sizeof value);
    return value;
}

INLINE void store(float* target, Floats value) { std::memcpy(target, &value, sizeof value); }

INLINE Floats broadcast(float value) { return value - Floats{}; }

// Two neighbouring bf16 values in every lane.
INLINE Words broadcast_pair(const bf16* source) {
    uint32_t pair;
    std::memcpy(&pair, source, sizeof pair);
    return pair - Words{};
}

INLINE Floats fused(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
    return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    union Split {
        Floats whole;
        __m256 part[2];
    };
    const Split x{a}, y{b}, z{c};
    Split sum;
    sum.part[0] = _mm256_fmadd_ps(x.part[0], y.part[0], z.part[0]);
    sum.part[1] = _mm256_fmadd_ps(x.part[1], y.part[1], z.part[1]);
    return sum.whole;
#else
    return a * b + c;
#endif
}

INLINE Floats low_halves(Words pairs) { return (Floats)(pairs << 16); }
INLINE Floats high_halves(Words pairs) { return (Floats)(pairs & 0xffff0000u); }

// sum + a.high * b.high + a.low * b.low per lane: the one multiply-accumulate of the project.
INLINE Floats dot_pairs(Floats sum, Words a, Words b) {
#if defined(__AVX512BF16__)
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#else
    sum = fused(high_halves(a), high_halves(b), sum);
    return fused(low_halves(a), low_halves(b), sum);
#endif
}

INLINE Floats maximum(Floats a, Floats b) {
#if defined(__AVX512F__)
    return (Floats)_mm512_max_ps((__m512)a, (__m512)b);
#else
    return a > b ? a : b;
#endif
}

// One fixed tree, whatever the instruction set.
INLINE float sum_lanes(Floats value) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)value);  // halves, quarters, ...: the tree below
#endif
    float lane[LANES];
    store(lane, value);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
    return lane[0];
}

INLINE float max_lanes(Floats value) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)value);
#else
    float lane[LANES];
    store(lane, value);
    float best = lane[0];
    for (int i = 1; i < LANES; ++i) best = lane[i] > best ? lane[i] : best;
    return best;
#endif
}

INLINE float widen(bf16 value) {
    const uint32_t bits = uint32_t(value) << 16;
    float wide;
    std::memcpy(&wide, &bits, sizeof wide);
    return wide;
}

INLINE Floats load_bf16(const bf16* source) {
    Halves halves;
    std::memcpy(&halves, source, sizeof halves);
    return (Floats)(__builtin_convertvector(halves, Words) << 16);
}

// Round to nearest, ties to even; NaN stays NaN.
INLINE Halves narrow(Floats value) {
#if defined(__AVX512BF16__)
    return (Halves)_mm512_cvtneps_pbh((__m512)value);
#else
    const Words bits = (Words)value;
    const Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const Words nan = (bits >> 16) | 0x40u;
    return __builtin_convertvector((value != value) ? nan : rounded, Halves);
#endif
}

INLINE void store_bf16(bf16* target, Floats value) {
    const Halves halves = narrow(value);
    std::memcpy(target, &halves, sizeof halves);
}

INLINE bf16 narrow_one(float value) { return narrow(broadcast(value))[0]; }

// `count` values to bf16.
INLINE void narrow_row(bf16* target, const float* source, int64_t count) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) store_bf16(target + i, load(source + i));
    for (; i < count; ++i) target[i] = narrow_one(source[i]);
}

// e^x to about one unit in the last place (Cephes' expf polynomial). Exactly 0 below -87.3 and
// for -infinity; x is clamped at 88, so the result is always finite. NaN stays NaN.
INLINE Floats exponential(Floats x) {
    constexpr float LOWEST = -87.33654f, HIGHEST = 88.0f, ROUND = 12582912.0f;
    const Ints vanishes = x < LOWEST;
    x = x > HIGHEST ? broadcast(HIGHEST) : x;
    x = vanishes ? broadcast(LOWEST) : x;
    const Floats shifted = fused(x, broadcast(1.44269504088896341f), broadcast(ROUND));
    const Floats whole = shifted - ROUND;
    Floats rest = fused(whole, broadcast(-0.693359375f), x);
    rest = fused(whole, broadcast(2.12194440e-4f), rest);
    Floats series = broadcast(1.9875691500e-4f);
    series = fused(series, rest, broadcast(1.3981999507e-3f));
    series = fused(series, rest, broadcast(8.3334519073e-3f));
    series = fused(series, rest, broadcast(4.1665795894e-2f));
    series = fused(series, rest, broadcast(1.6666665459e-1f));
    series = fused(series, rest, broadcast(5.0000001201e-1f));
    series = fused(series, rest * rest, rest + 1.0f);
    // The low mantissa bits of `shifted` hold the integer part: no conversion needed.
    const Words exponent = ((Words)shifted + 127u) << 23;
    const Floats value = series * (Floats)exponent;
    return vanishes ? Floats{} : value;
}

constexpr int64_t round_up(int64_t value, int64_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

}  // namespace journeyman
