// Attention, forward and backward, on random lengths, widths, windows, holes and strides.
#include "check.h"
#include "parallel.h"
#include "reference.h"

namespace ef::test {
namespace {

Sequences random_sequences(Random& random, int64_t longest) {
  Sequences s;
  s.cu = {0};
  int64_t B = random.whole(0, 4);
  bool holes = random.chance(0.3);
  for (int64_t b = 0; b < B; b++) {
    int64_t n = random.one_of<int64_t>({0, 1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 66, 127, 130, 195, 257});
    n = std::min(n, longest);
    s.cu.push_back(s.cu.back() + int32_t(n));
    int64_t column = random.whole(0, 5);
    for (int64_t i = 0; holes && i < n; i++)
      s.columns.push_back(column += random.chance(0.2) ? random.whole(1, 40) : 1);
  }
  return s;
}

// (T, H, D) of any strides: heads of a token side by side with room between them, or tokens of a head.
struct Layout {
  int64_t token, head, size;
};
Layout random_layout(Random& random, int64_t T, int64_t H, int64_t D) {
  int64_t gap = random.one_of<int64_t>({0, 0, 1, 7, 2 * H * D}), token, head;
  if (random.chance(0.7)) head = D + random.one_of<int64_t>({0, 0, 3}), token = H * head + gap;
  else token = D + gap, head = T * token + random.whole(0, 3);
  return {token, head, T == 0 ? 0 : (T - 1) * token + (H - 1) * head + D};
}

struct Problem {
  Sequences sequences;
  int64_t T, H, D;
  Dtype dtype;
  Attention call{};
  Layout in, out, d_in, d_out;
  Numbers q, k, v, o, d_o, d_q, d_k, d_v, lse;

  Problem(Random& random, const Sequences& s, int64_t H, int64_t D, Dtype dtype)
      : sequences(s), T(s.T()), H(H), D(D), dtype(dtype), in(random_layout(random, T, H, D)),
        out(random_layout(random, T, H, D)), d_in(random_layout(random, T, H, D)),
        d_out(random_layout(random, T, H, D)), q(filled(random, in)), k(filled(random, in)), v(filled(random, in)),
        o(dtype, out.size), d_o(filled(random, d_out)), d_q(dtype, d_in.size), d_k(dtype, d_in.size),
        d_v(dtype, d_in.size), lse(FP32, T * H) {
    call.q = q.data(), call.k = k.data(), call.v = v.data(), call.o = o.data();
    call.token_stride = in.token, call.head_stride = in.head;
    call.o_token_stride = out.token, call.o_head_stride = out.head;
    call.lse = static_cast<float*>(lse.data()), call.cu_seqlens = sequences.cu.data();
    call.columns = sequences.columns.empty() ? nullptr : sequences.columns.data();
    call.B = s.B(), call.H = int32_t(H), call.D = int32_t(D), call.dtype = call.compute = dtype;
    call.half = random.one_of<int64_t>({-1, -1, 0, 1, 63, 64, 65, 1000});
    call.scale = float(1 / std::sqrt(double(D)));
    call.dropout = random.chance(0.2) ? 0.3f : 0.0f, call.seed = random.engine();
  }

  Numbers filled(Random& random, const Layout& layout) const {
    Numbers numbers(dtype, layout.size);
    for (int64_t t = 0; t < T; t++)
      for (int64_t h = 0; h < H; h++)
        for (int64_t d = 0; d < D; d++) numbers.set(t * layout.token + h * layout.head + d, random.normal());
    return numbers;
  }

  // The (n, D) numbers of one sequence and head.
  Row part(const Numbers& numbers, const Layout& layout, int32_t b, int32_t h) const {
    Row row;
    for (int64_t t = sequences.cu[b]; t < sequences.cu[b + 1]; t++)
      for (int64_t d = 0; d < D; d++) row.push_back(numbers.at(t * layout.token + h * layout.head + d));
    return row;
  }
};

void run_forward(const Problem& p, const Tier& tier, int64_t chunk, int threads) {
  struct Item {
    int32_t b, h;
    int64_t first, last;
  };
  std::vector<Item> items;
  int64_t longest = 0;
  for (int32_t b = 0; b < p.call.B; b++) {
    int64_t n = p.sequences.cu[b + 1] - p.sequences.cu[b];
    longest = std::max(longest, n);
    for (int32_t h = 0; h < p.H; h++)
      for (int64_t first = 0; first < n; first += chunk) items.push_back({b, h, first, std::min(n, first + chunk)});
  }
  Stage stage;
  parallel(threads, tier, [&](int) {
    Scratch scratch(tier.attention.scratch(&p.call, longest));
    stage.run(items.size(), [&](int64_t i) {
      tier.attention.forward(&p.call, items[i].b, items[i].h, items[i].first, items[i].last, scratch.data);
    });
  });
}

void run_backward(Problem& p, const Tier& tier, int threads) {
  AttentionBackward call{};
  call.forward = p.call, call.d_o = p.d_o.data();
  call.d_o_token_stride = p.d_out.token, call.d_o_head_stride = p.d_out.head;
  call.d_q = p.d_q.data(), call.d_k = p.d_k.data(), call.d_v = p.d_v.data();
  call.d_token_stride = p.d_in.token, call.d_head_stride = p.d_in.head;
  int64_t longest = 0;
  for (int32_t b = 0; b < p.call.B; b++)
    longest = std::max<int64_t>(longest, p.sequences.cu[b + 1] - p.sequences.cu[b]);
  Stage stage;
  parallel(threads, tier, [&](int) {
    Scratch scratch(tier.attention.backward_scratch(&call, longest));
    stage.run(p.call.B * p.H, [&](int64_t i) {
      tier.attention.backward(&call, int32_t(i / p.H), int32_t(i % p.H), scratch.data);
    });
  });
}

struct Errors {
  Comparison o, lse, d_q, d_k, d_v;
};

void see_all(Comparison& comparison, const Row& got, const Row& want) {
  for (size_t i = 0; i < want.size(); i++) comparison.see(got[i], want[i]);
}

void compare_head(const Problem& p, int32_t b, int32_t h, Errors& errors) {
  int64_t n = p.sequences.cu[b + 1] - p.sequences.cu[b];
  HeadProblem head{n, p.D, p.part(p.q, p.in, b, h), p.part(p.k, p.in, b, h), p.part(p.v, p.in, b, h), {},
                   p.call.half < 0 ? HUGE_VAL : double(p.call.half), p.call.scale};
  for (int64_t i = 0; i < n; i++) head.columns.push_back(double(p.sequences.column(b, i)));
  Row o, lse, d_q, d_k, d_v;
  attention_reference(head, o, lse);
  attention_gradients(head, p.part(p.d_o, p.d_out, b, h), d_q, d_k, d_v);
  for (int64_t i = 0; i < n; i++) errors.lse.see(p.lse.at((p.sequences.cu[b] + i) * p.H + h), lse[i]);
  bool random = p.call.dropout > 0;  // then only that the results are numbers
  Row zeros(o.size(), 0);
  auto see = [&](Comparison& comparison, const Numbers& numbers, const Layout& layout, const Row& want) {
    Row got = p.part(numbers, layout, b, h);
    for (double& x : got) x *= random ? (std::isfinite(x) ? 0.0 : HUGE_VAL) : 1.0;
    see_all(comparison, got, random ? zeros : want);
  };
  see(errors.o, p.o, p.out, o);
  see(errors.d_q, p.d_q, p.d_in, d_q);
  see(errors.d_k, p.d_k, p.d_in, d_k);
  see(errors.d_v, p.d_v, p.d_in, d_v);
}

}  // namespace

void fuzz_attention(Random& random, const Tier& tier, int threads) {
  bool slow = std::string(tier.name) == "amx_emulated";
  Sequences sequences = random_sequences(random, slow ? 66 : 257);
  int64_t D = random.one_of<int64_t>({1, 2, 3, 7, 8, 15, 16, 17, 32, 33, 40, 64, 80, 96, 127, 128});
  Dtype dtype = random.one_of({FP32, BF16});
  Problem p(random, sequences, random.whole(1, 3), D, dtype);
  if (dtype == FP32 && random.chance(0.4)) p.call.compute = random.one_of({BF16, BY_3});
  double size = p.call.compute == BF16 ? 1 : p.call.compute == BY_3 ? 1e-2 : 2e-4;  // of errors, against bf16's
  run_forward(p, tier, random.one_of<int64_t>({64, 128, 512}), threads);
  run_backward(p, tier, threads);
  Errors errors;
  for (int32_t b = 0; b < p.call.B; b++)
    for (int32_t h = 0; h < p.H; h++) compare_head(p, b, h, errors);
  errors.o.require("attention o", size * 1e-2);
  errors.lse.require("attention lse", size * 1e-2);
  errors.d_q.require("attention d_q", size * 5e-2);
  errors.d_k.require("attention d_k", size * 5e-2);
  errors.d_v.require("attention d_v", size * 5e-2);
}

}  // namespace ef::test
