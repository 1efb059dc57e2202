// Random cases on every tier of this machine: ef_sanitize [cases [seed]]. Exit status 1 at the first wrong result; the
// sanitizer it is built with ends it at the first wrong access or race.
#include <cstdio>
#include <thread>

#include "check.h"
#include "cpu/dispatch.h"

namespace ef::test {
namespace {

struct Kind {
  const char* name;
  void (*run)(Random&, const Tier&, int threads);
};
constexpr Kind KINDS[] = {{"attention", fuzz_attention}, {"chain", fuzz_chain}, {"encoder", fuzz_encoder},
                          {"matmul", fuzz_matmul},       {"mlp", fuzz_mlp},     {"packs", fuzz_packs},
                          {"rows", fuzz_rows}};
constexpr int THREADS = 4;  // more than cores, so that threads meet in many orders

// Also on two threads at once, as two Python threads that use one model.
void run_case(const Kind& kind, const Tier& tier, uint64_t seed, bool twice) {
  std::string failures[2];
  auto attempt = [&](int i) {
    try {
      Random random{std::mt19937_64(seed)};
      kind.run(random, tier, 1 + int(seed % THREADS));
    } catch (const std::exception& error) {
      failures[i] = error.what();
    }
  };
  std::thread other;
  if (twice) other = std::thread(attempt, 1);
  attempt(0);
  if (other.joinable()) other.join();
  for (const std::string& failure : failures)
    if (!failure.empty()) throw std::runtime_error(failure);
}

}  // namespace
}  // namespace ef::test

int main(int count, char** arguments) {
  using namespace ef::test;
  uint64_t cases = count > 1 ? std::strtoull(arguments[1], nullptr, 10) : 40;
  uint64_t first = count > 2 ? std::strtoull(arguments[2], nullptr, 10) : 1;
  bool wrong = false;
  for (const std::string& name : ef::usable_tiers()) {
    ef::use_tier(name);
    for (const Kind& kind : KINDS) {
      uint64_t seed = first;
      try {
        for (; seed < first + cases; seed++) run_case(kind, ef::current_tier(), seed, seed % 8 == 0);
        std::printf("%-12s %-10s %llu cases\n", name.c_str(), kind.name, (unsigned long long)cases);
      } catch (const std::exception& error) {
        std::printf("%-12s %-10s seed %llu: %s\n", name.c_str(), kind.name, (unsigned long long)seed, error.what());
        wrong = true;
      }
      std::fflush(stdout);
    }
  }
  return wrong;
}
