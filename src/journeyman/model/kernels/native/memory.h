// Zeroed memory on huge pages: weights and KV cache are read in long streams, and small pages
// would spend a tenth of the time in the page walker.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace journeyman {

template <class T>
class Buffer {
  public:
    Buffer() = default;
    explicit Buffer(int64_t count) { reserve(count); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    Buffer(Buffer&& other) noexcept { swap(other); }
    Buffer& operator=(Buffer&& other) noexcept {
        swap(other);
        return *this;
    }
    ~Buffer() { release(); }

    // Room for `count` elements, zeroed if it had to grow; never shrinks.
    void reserve(int64_t count) {
        if (count <= count_) return;
        release();
        const size_t bytes = size_t(count) * sizeof(T);
        void* fresh = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (fresh == MAP_FAILED) throw std::bad_alloc();
        madvise(fresh, bytes, MADV_HUGEPAGE);
        data_ = static_cast<T*>(fresh);
        count_ = count;
    }

    void release() {
        if (data_) munmap(data_, size_t(count_) * sizeof(T));
        data_ = nullptr;
        count_ = 0;
    }

    T* data() { return data_; }
    const T* data() const { return data_; }
    int64_t count() const { return count_; }

  private:
    void swap(Buffer& other) {
        std::swap(data_, other.data_);
        std::swap(count_, other.count_);
    }
    T* data_ = nullptr;
    int64_t count_ = 0;
};

}  // namespace journeyman
