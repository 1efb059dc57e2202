// Whole encoders of one to three layers: pre- and post-norm, gated or not, rope, windows, any number of threads.
#include <thread>

#include "check.h"
#include "engine.h"
#include "reference.h"

namespace ef::test {
namespace {

struct Weights {
  Row values, bias;
  std::unique_ptr<Packed> packed;

  Weights(Random& random, const Tier& tier, int64_t N, int64_t K, Dtype dtype, Order order, int64_t head,
          int64_t rotated) {
    Numbers numbers = normal_numbers(random, dtype, N * K, 1 / std::sqrt(double(K)));
    Numbers biases = normal_numbers(random, dtype, random.chance(0.5) ? N : 0, 0.1);
    Source source{numbers.data(), K, 1, N, K, dtype, order, head, rotated};
    if (order == HALVES_OF_HEADS && !tier.chain.pairs(head)) source.order = PLAIN;
    for (int64_t i = 0; i < numbers.count; i++) values.push_back(numbers.at(i));
    for (int64_t i = 0; i < biases.count; i++) bias.push_back(biases.at(i));
    packed = std::make_unique<Packed>(tier, source, tier.chain.unit_dtype(dtype), biases.data(), 2);
  }
};

struct NormWeights {
  std::vector<float> weight, bias;

  NormWeights(Random& random, int64_t W) {
    bool biased = random.chance(0.5);
    for (int64_t i = 0; i < W; i++) weight.push_back(float(1 + 0.2 * random.normal()));
    for (int64_t i = 0; biased && i < W; i++) bias.push_back(float(0.2 * random.normal()));
  }
  Row operator()(const Row& x, double eps) const {
    return norm_reference(x, Row(weight.begin(), weight.end()), Row(bias.begin(), bias.end()), eps);
  }
  const float* bias_or_null() const { return bias.empty() ? nullptr : bias.data(); }
};

struct TestLayer {
  Weights qkv, out, up, down;
  NormWeights attention_norm, mlp_norm;
  int64_t half;
};

struct Model {
  Sequences sequences;
  int64_t T, W, H, D, F;
  Dtype dtype;
  bool pre_norm, gated, rope;
  Activation activation;
  double eps = 1e-5;
  std::vector<float> cos, sin;
  std::vector<TestLayer> layers;

  Model(Random& random, const Tier& tier) {
    sequences.cu = {0};
    for (int64_t b = random.whole(1, 3); b-- > 0;)
      sequences.cu.push_back(sequences.cu.back() + int32_t(random.one_of<int64_t>({0, 1, 5, 17, 40, 66, 150})));
    if (std::string(tier.name) == "amx_emulated") sequences.cu = {0, 0, 3, 37};
    T = sequences.T(), H = random.whole(1, 3), D = random.one_of<int64_t>({2, 6, 8, 16, 32, 64});
    W = H * D, F = random.one_of<int64_t>({5, 48, 65, 96});
    dtype = random.one_of({FP32, FP32, BF16});
    pre_norm = random.chance(0.5), gated = random.chance(0.5), rope = random.chance(0.5);
    activation = random.one_of({GELU, GELU_TANH, RELU, SILU});
    for (int64_t i = 0; i < T * (D / 2); i++) {
      double angle = 3 * random.normal();
      cos.push_back(float(std::cos(angle))), sin.push_back(float(std::sin(angle)));
    }
    for (int64_t i = random.whole(1, 3); i-- > 0;) add_layer(random, tier);
  }

  void add_layer(Random& random, const Tier& tier) {
    int64_t inner = gated ? 2 * F : F;
    layers.push_back({{random, tier, 3 * W, W, dtype, rope ? HALVES_OF_HEADS : PLAIN, rope ? D : 0, rope ? 2 * W : 0},
                      {random, tier, W, W, dtype, PLAIN, 0, 0},
                      {random, tier, inner, W, dtype, gated ? HALVES_OF_ALL : PLAIN, 0, 0},
                      {random, tier, W, F, dtype, PLAIN, 0, 0},
                      {random, W},
                      {random, W},
                      random.one_of<int64_t>({-1, 2, 64})});
  }

  Encoder encoder(Numbers& x, Numbers& out) const {
    Encoder e{};
    e.T = T, e.W = W, e.H = H, e.D = D, e.pre_norm = pre_norm, e.gated = gated, e.activation = activation;
    e.eps = float(eps), e.x = x.data(), e.out = out.data(), e.dtype = dtype;
    e.cu_seqlens = sequences.cu.data(), e.B = sequences.B();
    for (const TestLayer& l : layers)
      e.layers.push_back({l.qkv.packed.get(), l.out.packed.get(), l.up.packed.get(), l.down.packed.get(),
                          l.attention_norm.weight.data(), l.attention_norm.bias_or_null(), l.mlp_norm.weight.data(),
                          l.mlp_norm.bias_or_null(), rope ? cos.data() : nullptr, rope ? sin.data() : nullptr, l.half});
    return e;
  }

  void turn(Row& qkv) const {
    for (int64_t t = 0; t < T; t++)
      for (int64_t i = 0; i < 2 * H; i++)
        for (int64_t d = 0; d < D / 2; d++) {
          double &x = qkv[t * 3 * W + i * D + d], &y = qkv[t * 3 * W + i * D + d + D / 2], first = x, second = y;
          double c = cos[t * (D / 2) + d], s = sin[t * (D / 2) + d];
          x = first * c - second * s, y = second * c + first * s;
        }
  }

  Row attention(const Row& qkv, int64_t half) const {
    Row result(T * W), o, lse;
    for (int32_t b = 0; b < sequences.B(); b++)
      for (int64_t h = 0; h < H; h++) {
        int64_t start = sequences.cu[b], n = sequences.cu[b + 1] - start;
        HeadProblem p{n, D, {}, {}, {}, {}, half < 0 ? HUGE_VAL : double(half), 1 / std::sqrt(double(D))};
        for (int64_t t = 0; t < n; t++) {
          p.columns.push_back(double(t));
          const double* row = &qkv[(start + t) * 3 * W + h * D];
          p.q.insert(p.q.end(), row, row + D);
          p.k.insert(p.k.end(), row + W, row + W + D);
          p.v.insert(p.v.end(), row + 2 * W, row + 2 * W + D);
        }
        attention_reference(p, o, lse);
        for (int64_t t = 0; t < n; t++)
          for (int64_t d = 0; d < D; d++) result[(start + t) * W + h * D + d] = o[t * D + d];
      }
    return result;
  }

  Row reference(Row stream) const {
    auto add = [&](const Row& x) {
      for (size_t i = 0; i < x.size(); i++) stream[i] += x[i];
    };
    Row h = stream;
    for (const TestLayer& l : layers) {
      Row qkv = linear_reference(h, l.qkv.values, l.qkv.bias, W, 3 * W);
      if (rope) turn(qkv);
      add(linear_reference(attention(qkv, l.half), l.out.values, l.out.bias, W, W));
      h = l.attention_norm(stream, eps);
      if (!pre_norm) stream = h;
      int64_t inner = gated ? 2 * F : F;
      Row up = linear_reference(h, l.up.values, l.up.bias, W, inner);
      add(linear_reference(activated_reference(up, inner, activation, gated), l.down.values, l.down.bias, F, W));
      h = l.mlp_norm(stream, eps);
      if (!pre_norm) stream = h;
    }
    return h;
  }
};

// Two threads run the model on inputs of their own, while a third one packs and fills another weight.
void share_model(Random& random, const Tier& tier, const Model& model, const Numbers& want, const Row& input,
                 int threads) {
  uint64_t seed = random.engine();
  std::string failures[2];
  auto run = [&](int i) {
    for (int turn = 0; turn < 2; turn++) {
      Numbers x(model.dtype, want.count), out(model.dtype, want.count);
      for (int64_t k = 0; k < x.count; k++) x.set(k, input[k]);
      run_encoder(tier, model.encoder(x, out), 1 + (threads + i) % 4);
      for (int64_t k = 0; k < x.count; k++)
        if (out.at(k) != want.at(k)) failures[i] = "encoder: other bits beside another thread";
    }
  };
  std::thread second(run, 1), third([&] {
    Random own{std::mt19937_64(seed)};
    Weights other(own, tier, 3 * model.W, model.W, model.dtype, PLAIN, 0, 0);
    for (int turn = 0; turn < 3; turn++) {
      Numbers weight = normal_numbers(own, model.dtype, 3 * model.W * model.W);
      Numbers bias = normal_numbers(own, model.dtype, int64_t(other.bias.size()));
      other.packed->fill(weight.data(), bias.data(), 2);
    }
  });
  run(0);
  second.join(), third.join();
  for (const std::string& failure : failures)
    if (!failure.empty()) throw std::runtime_error(failure);
}

}  // namespace

void fuzz_encoder(Random& random, const Tier& tier, int threads) {
  Model model(random, tier);
  Numbers x = normal_numbers(random, model.dtype, model.T * model.W), out(model.dtype, x.count);
  run_encoder(tier, model.encoder(x, out), threads);
  Row input;
  for (int64_t i = 0; i < x.count; i++) input.push_back(x.at(i));
  Row want = model.reference(input);
  Comparison comparison;
  for (int64_t i = 0; i < x.count; i++) comparison.see(out.at(i), want[i]);
  // Two channels make a norm as steep as a step: no tolerance says anything there.
  if (model.W >= 8) comparison.require("encoder", model.dtype == BF16 ? 0.1 : 1e-4);
  if (random.chance(0.3)) share_model(random, tier, model, out, input, threads);
}

}  // namespace ef::test
