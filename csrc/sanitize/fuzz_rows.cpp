// Norms of sums and gathered rows, rope, gradients of tables and pooling, against plain loops.
#include "check.h"
#include "rows.h"

namespace ef::test {
namespace {

double tolerance(Dtype dtype) { return dtype == BF16 ? 2e-2 : 2e-5; }

int64_t any_rows(Random& random) { return random.one_of<int64_t>({0, 1, 2, 3, 17, 63, 64, 65, 130, 400}); }
int64_t any_columns(Random& random) {
  return random.one_of<int64_t>({1, 2, 3, 4, 15, 16, 17, 33, 64, 65, 127, 128, 130, 300});
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
// Where less was wanted, or other threads ran.
void same(const char* what, const Numbers& got, const Numbers& want) {
  for (int64_t i = 0; i < want.count; i++)
    if (got.at(i) != want.at(i)) throw std::runtime_error(std::string(what) + ": other bits");
}
template <class Error, class Body>
void refused(const char* what, Body body) {
  try {
    body();
  } catch (const Error&) {
    return;
  }
  throw std::runtime_error(std::string(what) + " was taken");
}

// ---------------------------------------------------------------------------------------------- norms

struct NormCase {
  int64_t T, W;
  Dtype dtype, parameters;
  std::vector<RowsOf> matrices;
  std::vector<std::vector<int64_t>> indices;
  Numbers weight, bias, s, y, mean, rstd;

  NormCase(Random& random)
      : T(any_rows(random)), W(any_columns(random)), dtype(random.one_of({FP32, BF16})),
        parameters(dtype == BF16 && random.chance(0.5) ? BF16 : FP32), weight(normal_numbers(random, parameters, W)),
        bias(normal_numbers(random, parameters, random.chance(0.5) ? W : 0)), s(dtype, T * W), y(dtype, T * W),
        mean(FP32, T), rstd(FP32, T) {
    for (int64_t i = random.whole(1, 3); i-- > 0;) {
      bool gathers = random.chance(0.4);
      int64_t rows = gathers ? random.whole(1, 9) : T;
      matrices.emplace_back(random, dtype, rows, W), matrices.back().fill(random);
      indices.emplace_back();
      for (int64_t t = 0; gathers && t < T; t++) indices.back().push_back(random.whole(0, rows - 1));
    }
  }

  Norm call() {
    Norm norm{};
    norm.count = int64_t(matrices.size());
    for (int64_t i = 0; i < norm.count; i++) {
      const auto& index = indices[i];
      norm.addends[i] = {matrices[i].matrix.data, matrices[i].stride, index.empty() ? nullptr : index.data(),
                         matrices[i].rows};
    }
    norm.s = s.data(), norm.y = y.data(), norm.mean = static_cast<float*>(mean.data());
    norm.rstd = static_cast<float*>(rstd.data()), norm.weight = weight.data(), norm.bias = bias.data();
    norm.W = W, norm.eps = 1e-5f, norm.dtype = dtype, norm.parameters = parameters;
    return norm;
  }

  Row sums() const {
    Row all(T * W);
    for (size_t i = 0; i < matrices.size(); i++) {
      Row values = matrices[i].values();
      for (int64_t t = 0; t < T; t++)
        for (int64_t c = 0; c < W; c++) all[t * W + c] += values[(indices[i].empty() ? t : indices[i][t]) * W + c];
    }
    return all;
  }
};

// dx of LayerNorm with the statistics of `s`, and the sums over rows for weight and bias.
void norm_gradients(const Row& s, const Row& d_y, const Row& d_s, const Row& weight, int64_t T, int64_t W, Row& d_x,
                    Row& d_weight, Row& d_bias) {
  d_x = d_s, d_weight.assign(W, 0), d_bias = d_weight;
  for (int64_t t = 0; t < T; t++) {
    const double *x = &s[t * W], *d = &d_y[t * W];
    double mean = 0, variance = 0, along = 0, ones = 0;
    for (int64_t c = 0; c < W; c++) mean += x[c] / W;
    for (int64_t c = 0; c < W; c++) variance += (x[c] - mean) * (x[c] - mean) / W;
    double rstd = 1 / std::sqrt(variance + 1e-5);
    for (int64_t c = 0; c < W; c++) {
      double normal = (x[c] - mean) * rstd;
      ones += d[c] * weight[c] / W, along += d[c] * weight[c] * normal / W;
      d_weight[c] += d[c] * normal, d_bias[c] += d[c];
    }
    for (int64_t c = 0; c < W; c++) d_x[t * W + c] += rstd * (d[c] * weight[c] - ones - (x[c] - mean) * rstd * along);
  }
}

void refuse_index(Random& random, const Tier& tier, NormCase& p) {
  for (size_t i = 0; i < p.indices.size(); i++) {
    if (p.indices[i].empty()) continue;
    int64_t &index = p.indices[i][random.whole(0, p.T - 1)], was = index;
    index = random.one_of<int64_t>({-1, p.matrices[i].rows, INT64_MIN, INT64_MAX});
    refused<std::out_of_range>("an index beyond its table", [&] { norm_forward(tier, p.call(), p.T, 1); });
    index = was;
  }
}

struct NormGradients {
  Numbers x, weight, bias;
  explicit NormGradients(const NormCase& p)
      : x(p.dtype, p.T * p.W), weight(p.parameters, p.W), bias(p.parameters, p.W) {}
};

void norm_backward_case(Random& random, const Tier& tier, NormCase& p, const Row& sums, int threads) {
  RowsOf s(random, p.dtype, p.T, p.W), d_y(random, p.dtype, p.T, p.W), d_s(random, p.dtype, p.T, p.W);
  d_y.fill(random), d_s.fill(random);
  for (int64_t i = 0; i < p.T * p.W; i++) s.numbers.set(i / p.W * s.stride + i % p.W, sums[i]);
  bool adds = random.chance(0.5);
  NormGradients all(p), some(p);
  NormBackward b{};
  b.d_y = d_y.matrix.data, b.d_s = adds ? d_s.matrix.data : nullptr, b.s = s.matrix.data;
  b.d_y_stride = d_y.stride, b.d_s_stride = d_s.stride, b.s_stride = s.stride;
  b.mean = static_cast<float*>(p.mean.data()), b.rstd = static_cast<float*>(p.rstd.data());
  b.weight = p.weight.data(), b.d_x = all.x.data(), b.W = p.W, b.dtype = p.dtype, b.parameters = p.parameters;
  norm_backward(tier, b, p.T, all.weight.data(), all.bias.data(), threads);
  Row weight = values_of(p.weight), zeros(p.T * p.W, 0), d_x, d_weight, d_bias;
  norm_gradients(sums, d_y.values(), adds ? d_s.values() : zeros, weight, p.T, p.W, d_x, d_weight, d_bias);
  double allowed = p.dtype == BF16 ? 5e-2 : 2e-4;
  compare("norm d_x", values_of(all.x), d_x, allowed);
  compare("norm d_weight", values_of(all.weight), d_weight, allowed);
  compare("norm d_bias", values_of(all.bias), d_bias, allowed);

  bool x = random.chance(0.5), w = random.chance(0.5), bias = random.chance(0.5);
  b.d_x = x ? some.x.data() : nullptr;
  norm_backward(tier, b, p.T, w ? some.weight.data() : nullptr, bias ? some.bias.data() : nullptr, 1);
  if (x) same("norm d_x alone", some.x, all.x);
  if (w) same("norm d_weight alone", some.weight, all.weight);
  if (bias) same("norm d_bias alone", some.bias, all.bias);
}

void norm_case(Random& random, const Tier& tier, int threads) {
  NormCase p(random);
  norm_forward(tier, p.call(), p.T, threads);
  refuse_index(random, tier, p);
  Row s = values_of(p.s), weight = values_of(p.weight);
  compare("norm s", s, p.sums(), tolerance(p.dtype));
  compare("norm y", values_of(p.y), norm_reference(s, weight, values_of(p.bias), 1e-5), tolerance(p.dtype));
  // In inference, nothing is left for a backward.
  Numbers y(p.dtype, p.T * p.W);
  Norm lean = p.call();
  lean.s = nullptr, lean.mean = lean.rstd = nullptr, lean.y = y.data();
  norm_forward(tier, lean, p.T, 1);
  same("norm y alone", y, p.y);
  norm_backward_case(random, tier, p, s, threads);
}

// ---------------------------------------------------------------------------------------------- rope

void rope_case(Random& random, const Tier& tier, int threads) {
  int64_t T = any_rows(random), H = random.whole(1, 3), D = 2 * random.one_of<int64_t>({1, 3, 4, 8, 20, 32, 48});
  Dtype dtype = random.one_of({FP32, BF16});
  int64_t head = D + random.one_of<int64_t>({0, 3}), part = H * head, token = 3 * part + random.one_of<int64_t>({0, 5});
  Numbers in(dtype, T == 0 ? 0 : (T - 1) * token + 2 * part + (H - 1) * head + D), out(dtype, T * 3 * H * D);
  Numbers cos = normal_numbers(random, FP32, T * D / 2), sin = normal_numbers(random, FP32, T * D / 2);
  float sign = random.one_of({1.0f, -1.0f});
  Row want(T * 3 * H * D);
  for (int64_t t = 0; t < T; t++)
    for (int64_t i = 0; i < 3 * H; i++) {
      int64_t from = t * token + i / H * part + i % H * head, to = (t * 3 * H + i) * D;
      for (int64_t d = 0; d < D; d++) in.set(from + d, random.normal());
      for (int64_t d = 0; d < D / 2; d++) {
        double x = in.at(from + d), y = in.at(from + d + D / 2);
        double c = i < 2 * H ? cos.at(t * D / 2 + d) : 1, s = i < 2 * H ? sign * sin.at(t * D / 2 + d) : 0;
        want[to + d] = x * c - y * s, want[to + d + D / 2] = y * c + x * s;
      }
    }
  Rope call{in.data(), token, part, head, out.data(), static_cast<float*>(cos.data()), static_cast<float*>(sin.data()),
            H, D, sign, dtype};
  rope(tier, call, T, threads);
  compare("rope", values_of(out), want, tolerance(dtype));
}

// ---------------------------------------------------------------------------------------------- tables

void table_case(Random& random, const Tier& tier, int threads) {
  int64_t T = any_rows(random), W = random.chance(0.2) ? TABLE_COLUMNS + 5 : any_columns(random);
  int64_t rows = random.whole(1, 12);
  int64_t skipped = random.whole(-1, rows - 1);
  Dtype dtype = random.one_of({FP32, BF16});
  Numbers d = normal_numbers(random, dtype, T * W), table(dtype, rows * W);
  std::vector<int64_t> index;
  Row want(rows * W, 0);
  std::vector<bool> read(rows, false);
  for (int64_t t = 0; t < T; t++) {
    index.push_back(random.chance(0.5) ? 0 : random.whole(0, rows - 1));
    if (index[t] == skipped) continue;
    read[index[t]] = true;
    for (int64_t c = 0; c < W; c++) want[index[t] * W + c] += d.at(t * W + c);
  }
  TableGradient g{d.data(), W, nullptr, table.data(), dtype};
  table_gradient(tier, g, index.data(), T, rows, skipped, threads);
  Comparison comparison;
  for (int64_t row = 0; row < rows; row++)
    for (int64_t c = 0; c < W; c++) {
      double got = table.at(row * W + c);
      if (read[row]) comparison.see(got, want[row * W + c]);
      else if (got == got) throw std::runtime_error("a row of the table that nobody read was written");
    }
  comparison.require("table", tolerance(dtype));
}

// ---------------------------------------------------------------------------------------------- pooling

double share_of(PoolMode mode, int64_t i, int64_t n) {
  switch (mode) {
    case POOL_CLS: return i == 0;
    case POOL_LAST: return i == n - 1;
    case POOL_MEAN: return 1.0 / n;
    case POOL_MEAN_SQRT_LEN: return 1 / std::sqrt(double(n));
    default: return (i + 1) / (n * (n + 1) / 2.0);
  }
}

struct PoolCase {
  int64_t B, T, W;
  PoolMode mode;
  std::vector<int32_t> cu{0};
  RowsOf x, d_y;
  Row y, d_x;

  PoolCase(Random& random, Dtype dtype)
      : B(random.whole(0, 4)), W(any_columns(random)),
        mode(random.one_of({POOL_CLS, POOL_MEAN, POOL_MAX, POOL_WEIGHTED, POOL_LAST, POOL_MEAN_SQRT_LEN})),
        x((add_lengths(random), RowsOf(random, dtype, T, W))), d_y(random, FP32, B, W) {
    x.fill(random), d_y.fill(random);
    Row values = x.values(), d = d_y.values();
    y.assign(B * W, 0), d_x.assign(T * W, 0);
    for (int64_t b = 0; b < B; b++)
      for (int64_t c = 0; c < W; c++) mode == POOL_MAX ? largest(values, d, b, c) : sum(values, d, b, c);
  }
  void add_lengths(Random& random) {
    cu[0] = random.one_of({0, 0, 3});  // tokens before the first and after the last sequence belong to none
    // 4096 tokens are one sum of sums.
    int64_t longest = W < 20 && random.chance(0.3) ? 4200 : 150;
    for (int64_t b = 0; b < B; b++)
      cu.push_back(cu.back() + int32_t(random.one_of<int64_t>({0, 1, 2, 63, 64, 65, longest})));
    T = cu.back() + random.one_of<int64_t>({0, 0, 2});
  }
  void sum(const Row& values, const Row& d, int64_t b, int64_t c) {
    for (int64_t t = cu[b]; t < cu[b + 1]; t++) {
      double share = share_of(mode, t - cu[b], cu[b + 1] - cu[b]);
      y[b * W + c] += share * values[t * W + c], d_x[t * W + c] = share * d[b * W + c];
    }
  }
  void largest(const Row& values, const Row& d, int64_t b, int64_t c) {
    double best = -HUGE_VAL, winners = 0;
    for (int64_t t = cu[b]; t < cu[b + 1]; t++) best = std::max(best, values[t * W + c]);
    for (int64_t t = cu[b]; t < cu[b + 1]; t++) winners += values[t * W + c] == best;
    for (int64_t t = cu[b]; t < cu[b + 1]; t++) d_x[t * W + c] = values[t * W + c] == best ? d[b * W + c] / winners : 0;
    if (cu[b] < cu[b + 1]) y[b * W + c] = best;
  }
};

void pool_case(Random& random, const Tier& tier, int threads) {
  Dtype dtype = random.one_of({FP32, BF16});
  PoolCase p(random, dtype);
  Numbers y(FP32, p.B * p.W), d_x(dtype, p.T * p.W);
  // Rows that the mode does not read are left alone.
  for (int64_t i = 0; i < d_x.count; i++) d_x.set(i, 0);
  Pool pool{p.x.matrix.data, p.x.stride, p.W, p.cu.data(), p.mode, dtype, static_cast<float*>(y.data()),
            reinterpret_cast<float*>(p.d_y.matrix.data), p.d_y.stride, d_x.data()};
  std::vector<int32_t> wrong = p.cu;
  wrong[random.whole(0, p.B)] = random.one_of<int32_t>({-1, int32_t(p.T) + 1, INT32_MIN});
  Pool beyond = pool;
  beyond.cu_seqlens = wrong.data();
  refused<std::invalid_argument>("an offset beyond the tokens", [&] { pool_forward(tier, beyond, p.B, p.T, 1); });
  refused<std::invalid_argument>("an offset beyond the tokens", [&] { pool_backward(tier, beyond, p.B, p.T, 1); });
  pool_forward(tier, pool, p.B, p.T, threads);
  compare("pool", values_of(y), p.y, 2e-5);
  pool_backward(tier, pool, p.B, p.T, threads);
  compare("pool d_x", values_of(d_x), p.d_x, tolerance(dtype));
}

}  // namespace

void fuzz_rows(Random& random, const Tier& tier, int threads) {
  switch (random.whole(0, 4)) {
    case 0: return rope_case(random, tier, threads);
    case 1: return table_case(random, tier, threads);
    case 2: return pool_case(random, tier, threads);
    default: return norm_case(random, tier, threads);
  }
}

}  // namespace ef::test
