// One parallel region with work that threads claim item by item, so that a thread on a busy core takes less of it.
#pragma once
#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>

#include "cpu/types.h"
#ifdef _OPENMP
#include <omp.h>
#endif

namespace ef {

// Memory that is kept for the next call of the same caller thread, up to KEPT bytes: fresh pages cost more than the
// kernels of a small batch.
class Arena {
 public:
  static constexpr size_t KEPT = size_t(64) << 20;
  ~Arena() { std::free(data_); }

  char* at_least(size_t bytes) {
    if (bytes > size_) {
      std::free(data_);
      size_ = 0;
      size_t rounded = (bytes + 63) / 64 * 64;
      data_ = static_cast<char*>(std::aligned_alloc(64, rounded));
      if (!data_) throw std::bad_alloc();
      size_ = rounded;
    }
    return data_;
  }
  void trim() {
    if (size_ <= KEPT) return;
    std::free(data_);
    data_ = nullptr;
    size_ = 0;
  }

 private:
  char* data_ = nullptr;
  size_t size_ = 0;
};

// Runs body(thread) on `threads` threads of the OpenMP pool that torch uses too. `body` must not throw.
template <class Body>
void parallel(int threads, const Tier& tier, Body body) {
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
  {
    tier.enter();
    body(omp_get_thread_num());
    tier.leave();
  }
#else
  (void)threads;
  tier.enter();
  body(0);
  tier.leave();
#endif
}

// How many threads a region that wants so many may start.
inline int usable_threads(int wanted) {
#ifdef _OPENMP
  return omp_in_parallel() ? 1 : (wanted < 1 ? 1 : wanted);
#else
  (void)wanted;
  return 1;
#endif
}

// Items that threads claim one by one. A thread leaves the stage when every item is done, not when every thread has
// come by: one that lost its core to another program holds nobody up, unless it has an item in hand.
class alignas(64) Stage {
 public:
  // Calls f(item) for the items that this thread claims, and returns when all `items` are done.
  template <class Body>
  void run(int64_t items, Body f) {
    for (int64_t item = claimed_.fetch_add(1, std::memory_order_relaxed); item < items;
         item = claimed_.fetch_add(1, std::memory_order_relaxed)) {
      f(item);
      done_.fetch_add(1, std::memory_order_release);
    }
    for (int turn = 0; done_.load(std::memory_order_acquire) < items; turn++)
      turn < SPINS ? pause() : std::this_thread::yield();
  }

 private:
  static constexpr int SPINS = 2000;  // some 50 us: the end of an item is near

  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  std::atomic<int64_t> claimed_{0}, done_{0};
};

}  // namespace ef
