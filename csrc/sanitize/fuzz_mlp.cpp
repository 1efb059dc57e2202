// Feed-forward blocks in training, both directions: strides, dropout, what is kept and what is computed again, and
// packs that two threads share.
#include <thread>

#include "check.h"
#include "mlp.h"

namespace ef::test {
namespace {

void compare(const std::string& what, const Row& got, const Row& want, double allowed) {
  Comparison comparison;
  for (size_t i = 0; i < want.size(); i++) comparison.see(got[i], want[i]);
  comparison.require(what, allowed);
}

// A weight (N, K) and its bias, in rows of any stride or in columns of one.
struct Linear {
  int64_t N, K;
  bool by_columns;
  RowsOf weight;
  Numbers bias;

  Linear(Random& random, Dtype dtype, int64_t N, int64_t K)
      : N(N), K(K), by_columns(random.chance(0.3)), weight(random, dtype, by_columns ? K : N, by_columns ? N : K),
        bias(normal_numbers(random, dtype, random.chance(0.5) ? N : 0)) {
    for (int64_t row = 0; row < weight.rows; row++)
      for (int64_t i = 0; i < weight.matrix.columns; i++)
        weight.numbers.set(row * weight.stride + i, random.normal() / std::sqrt(double(K)));
  }
  std::unique_ptr<Packed> packed(const Tier& tier, Dtype unit) {
    return std::make_unique<Packed>(tier, source(by_columns, N, K), unit, bias.data(), 2);
  }
  std::unique_ptr<Packed> turned(const Tier& tier, Dtype unit) {
    return std::make_unique<Packed>(tier, source(!by_columns, K, N), unit, nullptr, 2);
  }
  Row values() const { return by_columns ? transposed() : weight.values(); }
  Row values_turned() const { return by_columns ? weight.values() : transposed(); }
  Row biases() const {
    Row all;
    for (int64_t n = 0; n < bias.count; n++) all.push_back(bias.at(n));
    return all;
  }

 private:
  Source source(bool columns, int64_t n, int64_t k) {
    int64_t row = weight.stride;
    return {weight.matrix.data, columns ? 1 : row, columns ? row : 1, n, k, weight.matrix.dtype, PLAIN, 0, 0};
  }
  Row transposed() const {
    Row from = weight.values(), to;
    for (int64_t i = 0; i < weight.matrix.columns; i++)
      for (int64_t row = 0; row < weight.rows; row++) to.push_back(from[row * weight.matrix.columns + i]);
    return to;
  }
};

// Results of one run of both directions; those that are not wanted are of no rows.
struct Results {
  RowsOf h, out, d_h, inner, d_x;
  Results(Random& random, Dtype dtype, int64_t T, int64_t K, int64_t up, int64_t F, int64_t N, double wanted)
      : h(random, dtype, random.chance(wanted) ? T : 0, up), out(random, dtype, T, N),
        d_h(random, dtype, random.chance(wanted) ? T : 0, up), inner(random, dtype, random.chance(wanted) ? T : 0, F),
        d_x(random, dtype, random.chance(wanted) ? T : 0, K) {}
};

Matrix present(const RowsOf& rows) { return rows.rows ? rows.matrix : Matrix{}; }

void require_same(const char* what, const RowsOf& got, const RowsOf& want) {
  got.require_gaps(what);
  if (got.rows && got.values() != want.values())
    throw std::runtime_error(std::string(what) + ": other bits where less was kept or more threads ran");
}

struct MlpCase {
  int64_t T, K, F, N, width;
  Dtype dtype, unit;
  FeedForward block;
  Linear up, down;
  RowsOf x, d_y;
  std::unique_ptr<Packed> packs[4];  // up, down, and both turned

  MlpCase(Random& random, const Tier& tier, int64_t T, Dtype dtype, Dtype compute)
      : T(T), K(any_width(random)), F(any_width(random)), N(any_width(random)), dtype(dtype),
        unit(tier.chain.unit_dtype(compute)), block(any_block(random)),
        up(random, weights(random), (block.gated ? 2 : 1) * F, K), down(random, weights(random), N, F),
        x(random, dtype, T, K), d_y(random, dtype, T, N) {
    width = up.N;
    x.fill(random), d_y.fill(random);
    packs[0] = up.packed(tier, unit), packs[1] = down.packed(tier, unit);
    packs[2] = up.turned(tier, unit), packs[3] = down.turned(tier, unit);
  }

  Results run(Random& random, double wanted, int threads) const {
    Results r(random, dtype, T, K, width, F, N, wanted);
    mlp_forward(block, *packs[0], *packs[1], x.matrix, present(r.h), r.out.matrix, T, threads);
    MlpGradient g{packs[0].get(), r.d_x.rows ? packs[2].get() : nullptr, packs[3].get(), x.matrix, present(r.h),
                  d_y.matrix, present(r.d_h), present(r.inner), present(r.d_x)};
    mlp_backward(block, g, T, threads);
    return r;
  }

  // Against the formulas. What dropout took is where the inner activation is 0; the activation's slope is that at the
  // engine's own `h`, since relu's jumps where a rounding changes the sign.
  void check(const Results& r, double allowed) const {
    Row h = r.h.values(), inner = r.inner.values();
    compare("h of the mlp", h, linear_reference(x.values(), up.values(), up.biases(), K, width), allowed);
    Row plain = activated_reference(h, width, block.activation, block.gated), scale(T * F, 1), d_h(T * width);
    int64_t taken = 0;
    for (int64_t i = 0; block.dropout > 0 && i < T * F; i++)
      taken += inner[i] == 0, scale[i] = inner[i] == 0 ? 0 : 1 / (1 - double(block.dropout));
    for (int64_t i = 0; i < T * F; i++) plain[i] *= scale[i];
    compare("inner of the mlp", inner, plain, allowed);
    if (T * F > 2000 && block.dropout > 0 && block.activation != RELU)
      compare("what dropout took", {double(taken) / double(T * F)}, {double(block.dropout)}, 0.06);
    compare("out of the mlp", r.out.values(), linear_reference(plain, down.values(), down.biases(), F, N), allowed);
    Row d_inner = linear_reference(d_y.values(), down.values_turned(), {}, N, F);
    for (int64_t t = 0; t < T; t++)
      for (int64_t i = 0; i < F; i++) {
        double *to = &d_h[t * width + i], at = h[t * width + i], d = d_inner[t * F + i] * scale[t * F + i];
        double gate = block.gated ? h[t * width + F + i] : 1;
        *to = d * gate * slope(at);
        if (block.gated) to[F] = d * activation_reference(block.activation, at);
      }
    compare("d_h of the mlp", r.d_h.values(), d_h, allowed);
    compare("d_x of the mlp", r.d_x.values(), linear_reference(d_h, up.values_turned(), {}, width, K), allowed);
  }

 private:
  static int64_t any_width(Random& random) {
    return random.one_of<int64_t>({1, 2, 3, 15, 16, 17, 31, 33, 63, 64, 65, 97, 130});
  }
  static FeedForward any_block(Random& random);
  Dtype weights(Random& random) const { return random.chance(0.3) ? FP32 : dtype; }  // as under autocast
  double slope(double x) const {
    double nudge = 1e-4;
    if (block.activation == RELU) return x > 0;
    return (activation_reference(block.activation, x + nudge) - activation_reference(block.activation, x - nudge)) /
           (2 * nudge);
  }
};

FeedForward MlpCase::any_block(Random& random) {
  FeedForward block{random.chance(0.5), random.one_of({GELU, GELU_TANH, RELU, SILU, TANH}), FP32, 0, random.engine()};
  block.dropout = random.one_of({0.0f, 0.0f, 0.1f, 0.5f});
  return block;
}

}  // namespace

void fuzz_mlp(Random& random, const Tier& tier, int threads) {
  Dtype dtype = random.one_of({FP32, BF16}), compute = dtype == BF16 ? BF16 : random.one_of({FP32, FP32, BF16, BY_3});
  int64_t T = random.one_of<int64_t>({0, 1, 2, 5, 15, 16, 17, 33, 64, 97, 130, 300});
  if (std::string(tier.name) == "amx_emulated") T = std::min<int64_t>(T, 33);
  MlpCase mlp(random, tier, T, dtype, compute);
  mlp.block.dtype = dtype;
  Results all = mlp.run(random, 1, threads);
  mlp.check(all, compute == BF16 ? 3e-2 : compute == BY_3 ? 3e-4 : 3e-5);
  // As the backward of two models with the same weights, each with what it wants.
  uint64_t seeds[2] = {random.engine(), random.engine()};
  std::string failures[2];
  auto again = [&](int i) {
    try {
      Random own{std::mt19937_64(seeds[i])};
      Results some = mlp.run(own, 0.5, 1 + i * threads);
      require_same("h", some.h, all.h), require_same("out", some.out, all.out), require_same("d_h", some.d_h, all.d_h);
      require_same("inner", some.inner, all.inner), require_same("d_x", some.d_x, all.d_x);
    } catch (const std::exception& error) {
      failures[i] = error.what();
    }
  };
  std::thread other(again, 1);
  again(0);
  other.join();
  for (const std::string& failure : failures)
    if (!failure.empty()) throw std::runtime_error(failure);
}

}  // namespace ef::test
