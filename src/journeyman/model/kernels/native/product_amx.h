// The same product on AMX tiles: 16 rows by three tiles of 16 outputs, 32 inputs at a time.
// A row's sums do not depend on its neighbours in the tile, so short blocks are padded with zeros.
#pragma once

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "matrix.h"

namespace journeyman {

// Linux grants tile state per process on request. True when granted.
inline bool request_amx() {
    constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_TILEDATA = 18;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_TILEDATA) == 0;
}

// Configured for each panel: other libraries in the process release the tiles after their use.
struct TileState {
    TileState() {
        struct alignas(64) {
            uint8_t palette = 1, start_row = 0, reserved[14] = {};
            uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64};
            uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16};
        } config;
        _tile_loadconfig(&config);
    }
    ~TileState() { _tile_release(); }
};

template <int V>
void amx_product(const bf16* inputs, int64_t stride, const bf16* panel, int64_t pairs,
                 float* sums) {
    constexpr int64_t WEIGHT_STRIDE = V * 64, SUM_STRIDE = PANEL * 64;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    for (int64_t pair = 0; pair < pairs; pair += 16) {
        const bf16* weights = panel + pair * V * 2 * LANES;
        _tile_loadd(3, inputs + pair * 2, stride * int64_t(sizeof(bf16)));
        _tile_loadd(4, weights, WEIGHT_STRIDE);
        _tile_dpbf16ps(0, 3, 4);
        if constexpr (V > 1) {
            _tile_loadd(5, weights + 2 * LANES, WEIGHT_STRIDE);
            _tile_dpbf16ps(1, 3, 5);
        }
        if constexpr (V > 2) {
            _tile_loadd(6, weights + 4 * LANES, WEIGHT_STRIDE);
            _tile_dpbf16ps(2, 3, 6);
        }
    }
    _tile_stored(0, sums, SUM_STRIDE);
    if constexpr (V > 1) _tile_stored(1, sums + LANES, SUM_STRIDE);
    if constexpr (V > 2) _tile_stored(2, sums + 2 * LANES, SUM_STRIDE);
}

INLINE void amx_tile(int64_t rows, int vectors, const bf16* inputs, int64_t stride,
                     const bf16* panel, int64_t pairs, float* sums) {
    static thread_local Buffer<bf16> padded;
    if (rows < LANES) {
        padded.reserve(LANES * pairs * 2);
        std::memset(padded.data(), 0, size_t(LANES * pairs * 2) * sizeof(bf16));
        for (int64_t r = 0; r < rows; ++r)
            std::memcpy(padded.data() + r * pairs * 2, inputs + r * stride,
                        size_t(pairs) * 2 * sizeof(bf16));
        inputs = padded.data();
        stride = pairs * 2;
    }
    if (vectors == 3) return amx_product<3>(inputs, stride, panel, pairs, sums);
    if (vectors == 2) return amx_product<2>(inputs, stride, panel, pairs, sums);
    return amx_product<1>(inputs, stride, panel, pairs, sums);
}

}  // namespace journeyman
