// Packs that are filled anew while other threads compute with packs of their own, and what `fits` notices.
#include <thread>

#include "check.h"
#include "engine.h"

namespace ef::test {
namespace {

struct Changing {
  int64_t N, K;
  Numbers weight, bias;
  std::unique_ptr<Packed> packed;

  Changing(Random& random, const Tier& tier, int64_t N, int64_t K, Dtype dtype, Dtype unit)
      : N(N), K(K), weight(normal_numbers(random, dtype, N * K)), bias(normal_numbers(random, dtype, N)) {
    Source source{weight.data(), K, 1, N, K, dtype, PLAIN, 0, 0};
    packed = std::make_unique<Packed>(tier, source, unit, bias.data(), 1);
  }

  void step(Random& random, int threads) {
    for (int64_t i = 0; i < N * K; i++) weight.set(i, random.normal());
    for (int64_t i = 0; i < N; i++) bias.set(i, random.normal());
    if (packed->fits(weight.data(), bias.data())) throw std::runtime_error("a pack fits numbers that all changed");
    packed->fill(weight.data(), bias.data(), threads);
    bool fits = packed->fits(weight.data(), bias.data());
    if (!fits) throw std::runtime_error("a pack does not fit what it was filled with");
  }

  void check(Random& random, const Tier& tier, Dtype dtype, double allowed, int threads) const {
    RowsOf x(random, dtype, 7, K), out(random, dtype, 7, N);
    x.fill(random);
    Chain chain;
    chain.steps.push_back(product(PRODUCT, chain.take_in(tier, *packed, x.matrix), *packed, out.matrix));
    run_chain(tier, chain, 7, threads);
    Row w, b, got = out.values();
    for (int64_t i = 0; i < N * K; i++) w.push_back(weight.at(i));
    for (int64_t i = 0; i < N; i++) b.push_back(bias.at(i));
    Row want = linear_reference(x.values(), w, b, K, N);
    Comparison comparison;
    for (size_t i = 0; i < want.size(); i++) comparison.see(got[i], want[i]);
    comparison.require("a product after a fill", allowed);
  }
};

}  // namespace

// Each of two threads trains a weight of its own: fill, product, fill, ...
void fuzz_packs(Random& random, const Tier& tier, int threads) {
  Dtype dtype = random.one_of({FP32, BF16}), compute = dtype == FP32 && random.chance(0.3) ? BY_3 : dtype;
  Dtype unit = tier.chain.int8 && random.chance(0.25) ? INT8 : tier.chain.unit_dtype(compute);
  double allowed = unit == INT8 ? 5e-2 : dtype == BF16 ? 2e-2 : 2e-4;
  int64_t N = random.one_of<int64_t>({1, 17, 64, 65, 130}), K = random.one_of<int64_t>({1, 15, 33, 64, 129});
  uint64_t seeds[2] = {random.engine(), random.engine()};
  std::string failures[2];
  auto train = [&](int i) {
    try {
      Random own{std::mt19937_64(seeds[i])};
      Changing weight(own, tier, N, K, dtype, unit);
      for (int step = 0; step < 3; step++) {
        weight.step(own, threads);
        weight.check(own, tier, dtype, allowed, threads);
      }
    } catch (const std::exception& error) {
      failures[i] = error.what();
    }
  };
  std::thread other(train, 1);
  train(0);
  other.join();
  for (const std::string& failure : failures)
    if (!failure.empty()) throw std::runtime_error(failure);
}

}  // namespace ef::test
