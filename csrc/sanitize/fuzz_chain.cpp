// Linear layers and feed-forward blocks of odd sizes, as chains of steps over packed weights.
#include "check.h"
#include "engine.h"
#include "reference.h"

namespace ef::test {
namespace {

// A weight (N, K), stored either way round, and its bias.
struct Parameters {
  int64_t N, K;
  Row weight, bias;  // as the kernels see them
  std::unique_ptr<Packed> packed;

  Parameters(Random& random, const Tier& tier, int64_t N, int64_t K, Dtype dtype, Dtype unit, Order order)
      : N(N), K(K) {
    bool turned = random.chance(0.3), biased = random.chance(0.7);
    int64_t row = (turned ? N : K) + random.one_of<int64_t>({0, 0, 5});
    Numbers numbers(dtype, ((turned ? K : N) - 1) * row + (turned ? N : K));
    Source source{numbers.data(), turned ? 1 : row, turned ? row : 1, N, K, dtype, order, 0, 0};
    weight.resize(N * K);
    for (int64_t n = 0; n < N; n++)
      for (int64_t k = 0; k < K; k++) {
        int64_t place = n * source.n_stride + k * source.k_stride;
        numbers.set(place, random.normal() / std::sqrt(double(K)));
        weight[n * K + k] = numbers.at(place);
      }
    Numbers biases = normal_numbers(random, dtype, biased ? N : 0);
    for (int64_t n = 0; n < biases.count; n++) bias.push_back(biases.at(n));
    packed = std::make_unique<Packed>(tier, source, unit, biases.data(), int(random.whole(1, 4)));
    if (!packed->fits(numbers.data(), biases.data())) throw std::runtime_error("a fresh pack does not fit its weight");
  }
};

Step activated(StepKind kind, const Matrix& in, const Packed& packed, const Matrix& out, Activation activation) {
  Step step = product(kind, in, packed, out);
  step.activation = activation;
  return step;
}

int64_t any_width(Random& random) {
  return random.one_of<int64_t>({1, 2, 3, 15, 16, 17, 31, 33, 63, 64, 65, 96, 129});
}

}  // namespace

void fuzz_chain(Random& random, const Tier& tier, int threads) {
  Dtype dtype = random.one_of({FP32, BF16});
  bool int8 = tier.chain.int8 && random.chance(0.25), gated = random.chance(0.5), mlp = random.chance(0.6);
  Dtype compute = dtype == FP32 && random.chance(0.3) ? BY_3 : dtype;
  Dtype unit = int8 ? INT8 : tier.chain.unit_dtype(compute);
  int64_t rows = random.one_of<int64_t>({0, 1, 2, 5, 6, 7, 16, 31, 32, 33, 97, 130, 300});
  if (std::string(tier.name) == "amx_emulated") rows = std::min<int64_t>(rows, 40);
  int64_t K = any_width(random), inner = any_width(random), N = any_width(random);
  Activation activation = random.one_of({NONE, GELU, GELU_TANH, RELU, SILU, TANH});
  RowsOf x(random, dtype, rows, K);
  x.fill(random);

  gated = gated && mlp;
  int64_t width = mlp ? (gated ? 2 * inner : inner) : N;
  Parameters up(random, tier, width, K, dtype, unit, gated ? HALVES_OF_ALL : PLAIN);
  Chain chain;
  Matrix in = chain.take_in(tier, *up.packed, x.matrix);
  Row want = activated_reference(linear_reference(x.values(), up.weight, up.bias, K, width), width, activation, gated);
  RowsOf out(random, dtype, rows, N);
  if (mlp) {
    Parameters down(random, tier, N, inner, dtype, tier.chain.unit_dtype(compute), PLAIN);
    Matrix between = chain.local(tier, down.packed->weight.dtype, inner);
    chain.steps.push_back(activated(gated ? GATED : PRODUCT, in, *up.packed, between, activation));
    chain.steps.push_back(product(PRODUCT, between, *down.packed, out.matrix));
    want = linear_reference(want, down.weight, down.bias, inner, N);
    run_chain(tier, chain, rows, threads);
  } else {
    chain.steps.push_back(activated(PRODUCT, in, *up.packed, out.matrix, activation));
    run_chain(tier, chain, rows, threads);
  }
  Comparison comparison;
  Row got = out.values();
  for (size_t i = 0; i < want.size(); i++) comparison.see(got[i], want[i]);
  comparison.require(mlp ? "mlp" : "linear", int8 ? 5e-2 : dtype == BF16 ? 1.5e-2 : compute == BY_3 ? 5e-5 : 1e-5);
}

}  // namespace ef::test
