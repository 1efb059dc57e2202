// Gradients of weights, the vocabulary loss in both directions, and the steps of a feed-forward block in training.
#include "check.h"
#include "engine.h"
#include "matmul.h"

namespace ef::test {
namespace {

int64_t size_between(Random& random, int64_t least) {
  return std::max(least, random.one_of<int64_t>({0, 1, 2, 5, 15, 16, 17, 33, 63, 64, 65, 97, 130}));
}

// The matrix with its rows as n, or turned.
Source source_of(RowsOf& m) {
  return {m.matrix.data, m.stride, 1, m.rows, m.matrix.columns, m.matrix.dtype, PLAIN, 0, 0};
}
Source turned_source_of(RowsOf& m) {
  return {m.matrix.data, 1, m.stride, m.matrix.columns, m.rows, m.matrix.dtype, PLAIN, 0, 0};
}

Row transposed(const Row& x, int64_t rows, int64_t columns) {
  Row out(x.size());
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < columns; j++) out[j * rows + i] = x[i * columns + j];
  return out;
}

Dtype any_compute(Random& random, Dtype dtype) {
  return dtype == BF16 ? BF16 : random.one_of({FP32, FP32, BF16, BY_3});
}
double tolerance(Dtype dtype, Dtype compute) {
  return dtype == BF16 || compute == BF16 ? 3e-2 : compute == BY_3 ? 2e-4 : 2e-5;
}

void compare(const char* what, const Row& got, const Row& want, double allowed) {
  Comparison comparison;
  for (size_t i = 0; i < want.size(); i++) comparison.see(got[i], want[i]);
  comparison.require(what, allowed);
}
Row values_of(const Numbers& numbers) {
  Row all;
  for (int64_t i = 0; i < numbers.count; i++) all.push_back(numbers.at(i));
  return all;
}

void weight_case(Random& random, const Tier& tier, Dtype dtype, Dtype compute, int threads, int64_t T) {
  int64_t N = size_between(random, 1), K = size_between(random, 1);
  RowsOf d_y(random, dtype, T, N), x(random, dtype, T, K);
  d_y.fill(random), x.fill(random);
  Numbers d_weight(dtype, N * K), d_bias(FP32, N);
  bool wants_weight = random.chance(0.8), wants_bias = random.chance(0.8);
  for (int64_t n = 0; n < N; n++) d_bias.set(n, 0);
  WeightGradient g{turned_source_of(d_y), turned_source_of(x), wants_weight ? d_weight.data() : nullptr, dtype, compute,
                   wants_bias ? static_cast<float*>(d_bias.data()) : nullptr};
  weight_gradient(tier, g, threads);
  Row turned_d = transposed(d_y.values(), T, N), turned_x = transposed(x.values(), T, K), ones(T, 1);
  // Sums of T numbers of size 1 are of the size of its root; those of d_y are not rounded to bf16.
  double allowed = tolerance(dtype, compute) * std::sqrt(1 + double(T)) / 4;
  Row want = T ? linear_reference(turned_d, turned_x, {}, T, K) : Row(N * K, 0);
  if (wants_weight) compare("d_weight", values_of(d_weight), want, allowed);
  if (wants_bias && T) compare("d_bias", values_of(d_bias), linear_reference(turned_d, ones, {}, T, 1), allowed);
}

// One vocabulary and its labelled tokens; scores and gradients in double.
struct Loss {
  int64_t N, V, W;
  RowsOf weight, x;
  Numbers bias;
  std::vector<int64_t> labels;
  Row z, lse, plain, of_label;

  Loss(Random& random, Dtype dtype, bool slow)
      : N(std::min<int64_t>(size_between(random, 1), slow ? 20 : 200)), V(size_between(random, 1)),
        W(size_between(random, 1)), weight(random, dtype, V, W), x(random, dtype, N, W),
        bias(normal_numbers(random, FP32, random.chance(0.5) ? V : 0)), labels((N + 63) / 64 * 64, -1) {
    weight.fill(random), x.fill(random);
    for (int64_t t = 0; t < N; t++) labels[t] = random.whole(0, V - 1);
    z = linear_reference(x.values(), weight.values(), values_of(bias), W, V);
    for (int64_t t = 0; t < N; t++) {
      double most = -HUGE_VAL, total = 0, sum = 0;
      for (int64_t v = 0; v < V; v++) most = std::max(most, z[t * V + v]), sum += z[t * V + v];
      for (int64_t v = 0; v < V; v++) total += std::exp(z[t * V + v] - most);
      lse.push_back(most + std::log(total)), plain.push_back(sum), of_label.push_back(z[t * V + labels[t]]);
    }
  }
};

struct ByToken {
  Numbers numbers;
  explicit ByToken(size_t padded) : numbers(FP32, int64_t(padded)) {
    for (int64_t i = 0; i < numbers.count; i++) numbers.set(i, 0);
  }
  float* data() { return static_cast<float*>(numbers.data()); }
};

void loss_case(Random& random, const Tier& tier, Dtype dtype, Dtype compute, int threads, bool slow) {
  Loss p(random, dtype, slow);
  size_t padded = p.labels.size();
  bool keeps = random.chance(0.5);
  Numbers kept(FP32, keeps ? p.V * int64_t(padded) : 0);
  VocabularyLoss loss{source_of(p.weight), source_of(p.x), static_cast<const float*>(p.bias.data()), p.labels.data(),
                      static_cast<float*>(kept.data()), compute};
  ByToken lse(padded), plain(padded), of_label(padded), slope(padded), flat(padded), hot(padded);
  vocabulary_scores(tier, loss, lse.data(), plain.data(), of_label.data(), threads);
  double allowed = tolerance(dtype, compute) * std::sqrt(double(p.W)), all = allowed * std::sqrt(double(p.V));
  compare("lse", values_of(lse.numbers), p.lse, allowed);
  compare("sum of scores", values_of(plain.numbers), p.plain, all);
  compare("score of the label", values_of(of_label.numbers), p.of_label, allowed);

  Row d(p.N * p.V);
  for (int64_t t = 0; t < p.N; t++) {
    slope.numbers.set(t, 1 + 0.1 * random.normal()), flat.numbers.set(t, -0.01), hot.numbers.set(t, -0.9);
    lse.numbers.set(t, p.lse[t]);
    for (int64_t v = 0; v < p.V; v++)
      d[t * p.V + v] = std::exp(p.z[t * p.V + v] - lse.numbers.at(t)) * slope.numbers.at(t) + flat.numbers.at(t) +
                       (v == p.labels[t] ? hot.numbers.at(t) : 0);
  }
  Numbers d_x(dtype, p.N * p.W), d_weight(dtype, p.V * p.W), d_bias(FP32, p.V);
  for (int64_t v = 0; v < p.V; v++) d_bias.set(v, 0);
  bool x = random.chance(0.8), w = random.chance(0.8), b = random.chance(0.8);
  VocabularyGradient g{lse.data(), slope.data(), flat.data(), hot.data(), x ? d_x.data() : nullptr,
                       w ? d_weight.data() : nullptr, b ? static_cast<float*>(d_bias.data()) : nullptr};
  vocabulary_gradient(tier, loss, g, threads);
  // Scores off by `allowed` move each exponential by that share.
  double more = 4 * allowed * std::sqrt(double(p.N));
  Row turned_d = transposed(d, p.N, p.V), ones(p.N, 1);
  Row words = transposed(p.weight.values(), p.V, p.W), tokens = transposed(p.x.values(), p.N, p.W);
  if (x) compare("d_x of the loss", values_of(d_x), linear_reference(d, words, {}, p.V, p.W), more);
  if (w) compare("d_weight of the loss", values_of(d_weight), linear_reference(turned_d, tokens, {}, p.N, p.W), more);
  if (b) compare("d_bias of the loss", values_of(d_bias), linear_reference(turned_d, ones, {}, p.N, 1), more);
}

// ACTIVATED and SLOPED, dropout and gate: what is dropped in one direction is dropped in the other.
void activation_case(Random& random, const Tier& tier, Dtype dtype, int threads) {
  int64_t T = size_between(random, 0), F = size_between(random, 1);
  bool gated = random.chance(0.5);
  RowsOf h(random, dtype, T, gated ? 2 * F : F), d(random, FP32, T, F);
  RowsOf inner(random, dtype, T, F), d_h(random, dtype, T, gated ? 2 * F : F);
  h.fill(random), d.fill(random);
  Step step = copy(h.matrix, inner.matrix, F);
  step.kind = ACTIVATED, step.gated = gated, step.activation = random.one_of({GELU, GELU_TANH, RELU, SILU, TANH});
  step.dropout = random.one_of({0.0f, 0.0f, 0.4f, 1.0f}), step.seed = random.engine();
  Step back = step;
  back.kind = SLOPED, back.in = d.matrix, back.also = h.matrix, back.out = d_h.matrix;
  Chain chain;
  chain.steps = {step, back};
  run_chain(tier, chain, T, threads);
  Row from = h.values(), got = inner.values(), got_d = d_h.values(), d_in = d.values();
  Row plain = activated_reference(from, gated ? 2 * F : F, step.activation, gated);
  double kept = step.dropout < 1 ? 1 / (1 - double(step.dropout)) : 0, nudge = 1e-4;
  Comparison forward, backward;
  for (int64_t t = 0; t < T; t++)
    for (int64_t i = 0; i < F; i++) {
      int64_t at = t * (gated ? 2 * F : F) + i, place = t * F + i;
      bool dropped = step.dropout > 0 && got[place] == 0;
      double scale = dropped ? 0 : step.dropout > 0 ? kept : 1, gate = gated ? from[at + F] : 1;
      forward.see(got[place], scale * plain[place]);
      double slope = (activation_reference(step.activation, from[at] + nudge) -
                      activation_reference(step.activation, from[at] - nudge)) / (2 * nudge);
      // An activation may be 0 without dropout, and relu has no slope at 0.
      if ((dropped && step.dropout < 1) || std::fabs(from[at]) < 1e-3) continue;
      backward.see(got_d[at], scale * d_in[place] * gate * slope);
      if (gated) backward.see(got_d[at + F], scale * d_in[place] * activation_reference(step.activation, from[at]));
    }
  forward.require("activated", dtype == BF16 ? 1e-2 : 1e-5);
  backward.require("sloped", dtype == BF16 ? 1e-2 : 1e-4);
}

}  // namespace

void fuzz_matmul(Random& random, const Tier& tier, int threads) {
  Dtype dtype = random.one_of({FP32, BF16}), compute = any_compute(random, dtype);
  bool slow = std::string(tier.name) == "amx_emulated";
  // 2048 tokens are one part of a sum.
  int64_t T = slow ? random.whole(0, 40) : random.one_of<int64_t>({0, 1, 3, 64, 97, 500, 2049});
  switch (random.whole(0, 2)) {
    case 0: return weight_case(random, tier, dtype, compute, threads, T);
    case 1: return loss_case(random, tier, dtype, compute, threads, slow);
    default: return activation_case(random, tier, dtype, threads);
  }
}

}  // namespace ef::test
