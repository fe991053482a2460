// The C interface that Python calls through ctypes. Errors come back as text, never as exceptions.
#include <cstdio>
#include <exception>

#include "model.h"

using namespace journeyman;

namespace {

constexpr size_t ERROR_BYTES = 512;

// 0 when `work` returns an empty text and throws nothing.
template <class Work>
int guarded(char* error, Work&& work) {
    std::string message;
    try {
        message = work();
    } catch (const std::exception& problem) {
        message = problem.what();
    }
    std::snprintf(error, ERROR_BYTES, "%s", message.c_str());
    return message.empty() ? 0 : 1;
}

struct PackedMatrix {
    Matrix matrix;
    Pool pool;
};

}  // namespace

#define EXPORT __attribute__((visibility("default")))

extern "C" {

EXPORT void* journeyman_model(const JourneymanShape* shape, int32_t threads, char* error) {
    Model* model = nullptr;
    guarded(error, [&]() -> std::string {
#if defined(__AMX_BF16__)
        if (!request_amx()) return "the kernel does not grant AMX tile state to this process";
#endif
        model = new Model(*shape, threads);
        return "";
    });
    return model;
}

EXPORT void journeyman_free_model(void* model) { delete static_cast<Model*>(model); }

EXPORT int32_t journeyman_load(void* model, const JourneymanWeights* weights, char* error) {
    return guarded(error, [&]() -> std::string {
        static_cast<Model*>(model)->load_weights(*weights);
        return "";
    });
}

EXPORT int32_t journeyman_allocate(void* model, int64_t blocks, char* error) {
    return guarded(error, [&]() -> std::string {
        static_cast<Model*>(model)->allocate(blocks);
        return "";
    });
}

EXPORT int32_t journeyman_step(void* model, const JourneymanBatch* batch, int32_t* token_ids,
                        float* logprobs, char* error) {
    return guarded(error,
                   [&] { return static_cast<Model*>(model)->step(*batch, token_ids, logprobs); });
}

// A matrix of its own, for the linear layers outside a step.
EXPORT void* journeyman_matrix(const uint16_t* weights, int64_t outputs, int64_t inputs, int32_t threads,
                        char* error) {
    PackedMatrix* packed = nullptr;
    guarded(error, [&]() -> std::string {
#if defined(__AMX_BF16__)
        if (!request_amx()) return "the kernel does not grant AMX tile state to this process";
#endif
        packed = new PackedMatrix{Matrix(outputs, inputs), Pool(threads)};
        packed->pool.run(
            [&](Worker& worker) { packed->matrix.pack(worker, weights, 0, outputs); });
        return "";
    });
    return packed;
}

EXPORT void journeyman_free_matrix(void* matrix) { delete static_cast<PackedMatrix*>(matrix); }

// inputs bf16 [rows, inputs rounded up to 32, zeros beyond], results float32
// [rows, outputs rounded up to 16]
EXPORT void journeyman_multiply(void* matrix, const uint16_t* inputs, int64_t rows, float* results) {
    auto* packed = static_cast<PackedMatrix*>(matrix);
    const int64_t stride = round_up(packed->matrix.outputs(), LANES);
    packed->pool.run([&](Worker& worker) {
        multiply(worker, inputs, packed->matrix.pairs() * 2, rows, packed->matrix,
                 [&](int64_t row, int64_t output, Floats sums)
                     INLINE_LAMBDA { store(results + row * stride + output, sums); });
    });
}

// target = exp(source), for the tests of its error bound
EXPORT void journeyman_exponential(const float* source, int64_t count, float* target) {
    for (int64_t i = 0; i < count; i += LANES) store(target + i, exponential(load(source + i)));
}
}
