// What GCC calls for the OpenMP pragmas of parallel.h, on std::thread, whose synchronisation the sanitizers understand.
#include <barrier>
#include <thread>
#include <vector>

namespace {
thread_local std::barrier<>* team = nullptr;
thread_local int number = 0;
}  // namespace

extern "C" {

void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned) {
  std::barrier<> here(threads);
  auto run = [&](int thread) {
    team = &here, number = thread;
    body(data);
    team = nullptr, number = 0;
  };
  std::vector<std::thread> others;
  for (unsigned thread = 1; thread < threads; thread++) others.emplace_back(run, thread);
  run(0);
  for (std::thread& other : others) other.join();
}

void GOMP_barrier() {
  if (team) team->arrive_and_wait();
}

int omp_get_thread_num() { return number; }
int omp_in_parallel() { return team != nullptr; }

}  // extern "C"
