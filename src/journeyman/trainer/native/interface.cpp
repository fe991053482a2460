// The C interface that Python calls through ctypes. Errors come back as text, never as exceptions.
#include <cstdio>
#include <exception>
#include <stdexcept>

#include "training.h"

using namespace journeyman;

namespace {

constexpr size_t ERROR_BYTES = 512;

template <class Work>
int guarded(char* error, Work&& work) {
    try {
        work();
    } catch (const std::exception& problem) {
        std::snprintf(error, ERROR_BYTES, "%s", problem.what());
        return 1;
    }
    return 0;
}

Training& training(void* handle) { return *static_cast<Training*>(handle); }

}  // namespace

#define EXPORT __attribute__((visibility("default")))

extern "C" {

EXPORT void* journeyman_training(const JourneymanShape* shape, int32_t threads, char* error) {
    Training* made = nullptr;
    guarded(error, [&] {
#if defined(__AMX_BF16__)
        if (!request_amx())
            throw std::runtime_error("the kernel does not grant AMX tile state to this process");
#endif
        made = new Training(*shape, threads);
    });
    return made;
}

EXPORT void journeyman_free_training(void* handle) { delete static_cast<Training*>(handle); }

EXPORT int32_t journeyman_training_load(void* handle, const JourneymanWeights* weights,
                                        char* error) {
    return guarded(error, [&] { training(handle).load_weights(*weights); });
}

EXPORT int32_t journeyman_forward(void* handle, const JourneymanPack* pack, char* error) {
    return guarded(error, [&] { training(handle).forward(*pack); });
}

EXPORT int32_t journeyman_choose_rows(void* handle, const int32_t* nodes, int64_t rows,
                                      char* error) {
    return guarded(error, [&] { training(handle).choose_rows(nodes, rows); });
}

EXPORT int32_t journeyman_score(void* handle, int64_t first, int64_t count, const int32_t* targets,
                                float temperature, float* logprobs, float* entropies,
                                char* error) {
    return guarded(error, [&] {
        training(handle).score(first, count, targets, temperature, logprobs, entropies);
    });
}

EXPORT int32_t journeyman_add_slopes(void* handle, const float* slopes, float* head_gradient,
                                     char* error) {
    return guarded(error, [&] { training(handle).add_slopes(slopes, head_gradient); });
}

EXPORT int32_t journeyman_backward(void* handle, const JourneymanPack* pack,
                                   const JourneymanGradients* gradients, char* error) {
    return guarded(error, [&] { training(handle).backward(*pack, *gradients); });
}
}
