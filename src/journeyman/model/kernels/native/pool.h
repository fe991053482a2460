// A few threads that compute one step together.
//
// All threads run the same body; its `share(count, work)` calls are phases whose items are
// computed once each, by whoever comes first. A phase ends when its items are done, not when all
// threads have arrived: a thread that the system has preempted holds up nothing but the one item
// it is at, and skips the phases it missed. Which thread computes an item never shows in the
// result. Waiting spins for some microseconds and then sleeps: other processes need these cores.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "vector.h"

namespace journeyman {

INLINE void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

// A number that threads wait on until it changes.
class Gate {
  public:
    uint32_t value() const { return value_.load(std::memory_order_acquire); }

    void open(uint32_t next) {
        value_.store(next);
        if (sleepers_.load()) syscall(SYS_futex, &value_, FUTEX_WAKE_PRIVATE, INT_MAX, 0, 0, 0);
    }

    void wait_while(uint32_t seen) {
        for (int spin = 0; spin < SPINS; ++spin) {
            if (value() != seen) return;
            relax();
        }
        sleepers_.fetch_add(1);
        while (value_.load() == seen)
            syscall(SYS_futex, &value_, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
        sleepers_.fetch_sub(1);
    }

  private:
    static constexpr int SPINS = 2000;  // some 30 microseconds
    std::atomic<uint32_t> value_{0};
    std::atomic<uint32_t> sleepers_{0};
};

class Pool;

// One thread's view of the running body.
class Worker {
  public:
    Worker(Pool& pool, int rank, uint32_t phase) : pool_(pool), rank_(rank), phase_(phase) {}
    int threads() const;
    template <class Work>
    void share(int64_t count, Work&& work);  // work(item), item in [0, count)

  private:
    friend class Pool;
    Pool& pool_;
    int rank_;
    uint32_t phase_;
};

class Pool {
  public:
    explicit Pool(int threads) : queues_(std::max(threads, 1)) {
        for (auto& queue : queues_) queue.next.store(0);
        for (int rank = 1; rank < int(queues_.size()); ++rank)
            helpers_.emplace_back([this, rank] { help(rank); });
    }

    ~Pool() {
        stopping_.store(true);
        start_.open(start_.value() + 1);
        for (auto& helper : helpers_) helper.join();
    }

    int threads() const { return int(queues_.size()); }

    template <class Body>  // body(Worker&)
    void run(Body&& body) {
        body_ = [](void* target, Worker& worker) { (*static_cast<Body*>(target))(worker); };
        target_ = &body;
        first_phase_ = phase_.value();
        running_.store(true);
        start_.open(start_.value() + 1);
        Worker self(*this, 0, first_phase_);
        body(self);
        running_.store(false);
        for (int spin = 0; active_.load(); ++spin) spin < 1000 ? relax() : std::this_thread::yield();
    }

  private:
    friend class Worker;
    // Each thread has a contiguous range of the items, so that it walks through memory in order;
    // when its own is used up it takes from the others'. `next` carries the phase in its upper
    // half, so a late thread can never take an item of a phase it is not in.
    struct alignas(64) Queue {
        std::atomic<uint64_t> next{0};
    };

    void help(int rank) {
        uint32_t seen = 0;
        while (true) {
            start_.wait_while(seen);
            seen = start_.value();
            if (stopping_.load()) return;
            active_.fetch_add(1);
            if (running_.load()) {
                Worker worker(*this, rank, first_phase_);
                body_(target_, worker);
            }
            active_.fetch_sub(1);
        }
    }

    bool take(Queue& queue, uint32_t phase, int64_t length, int64_t* item) {
        uint64_t seen = queue.next.load(std::memory_order_acquire);
        while (true) {
            if (uint32_t(seen >> 32) != phase || int64_t(uint32_t(seen)) >= length) return false;
            if (queue.next.compare_exchange_weak(seen, seen + 1)) break;
        }
        *item = int64_t(uint32_t(seen));
        return true;
    }

    void finish_items(uint32_t phase, int64_t done, int64_t count) {
        if (done_.fetch_add(done) + done < count) return;
        done_.store(0);
        for (auto& queue : queues_) queue.next.store(uint64_t(phase + 1) << 32);
        phase_.open(phase + 1);
    }

    std::vector<Queue> queues_;
    std::vector<std::thread> helpers_;
    Gate start_, phase_;
    alignas(64) std::atomic<int64_t> done_{0};
    std::atomic<int> active_{0};
    std::atomic<bool> running_{false}, stopping_{false};
    uint32_t first_phase_ = 0;
    void (*body_)(void*, Worker&) = nullptr;
    void* target_ = nullptr;
};

inline int Worker::threads() const { return pool_.threads(); }

template <class Work>
void Worker::share(int64_t count, Work&& work) {
    if (count <= 0) return;
    const int64_t threads = pool_.threads();
    const uint32_t phase = phase_++;
    for (int64_t turn = 0; turn < threads; ++turn) {
        const int64_t owner = (rank_ + turn) % threads;
        const int64_t begin = count * owner / threads;
        const int64_t length = count * (owner + 1) / threads - begin;
        int64_t item, done = 0;
        while (pool_.take(pool_.queues_[owner], phase, length, &item)) {
            work(begin + item);
            ++done;
        }
        if (done) pool_.finish_items(phase, done, count);
    }
    if (pool_.phase_.value() == phase) pool_.phase_.wait_while(phase);
}

}  // namespace journeyman
