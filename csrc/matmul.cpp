#include "matmul.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "packed.h"
#include "parallel.h"
#include "sizes.h"

namespace ef {
namespace {

constexpr int64_t PANEL = 64;
constexpr int64_t BLOCK = 96;      // rows of one item; a multiple of every tile's rows
constexpr int64_t TOKENS = 2048;   // of one part of K: both operands of an item stay in 1 MB of cache
constexpr int64_t GROUP = 4608;    // words whose gradients are in memory at a time
static_assert(GROUP % WORDS == 0 && WORDS % 2 == 0 && BLOCK % 16 == 0);


// `count` numbers along k, from number `first`.
Source part_of(Source source, int64_t first, int64_t count) {
  source.data = static_cast<const char*>(source.data) + first * source.k_stride * size_of(source.dtype);
  source.K = count;
  return source;
}
Source columns_of(Source source, int64_t first, int64_t count) {
  source.data = static_cast<const char*>(source.data) + first * source.n_stride * size_of(source.dtype);
  source.N = count;
  return source;
}
Source turned(const Source& source) {
  Source other = source;
  std::swap(other.n_stride, other.k_stride);
  std::swap(other.N, other.K);
  return other;
}

// Memory of one call, kept for the next one of the same thread. `lay_out` takes its slices, once to count them.
class Slices {
 public:
  template <class Layout>
  explicit Slices(Layout lay_out) {
    lay_out(*this);
    base_ = arena().at_least(used_);
    used_ = 0;
    lay_out(*this);
  }
  ~Slices() { arena().trim(); }
  Slices(const Slices&) = delete;

  template <class T = char>
  T* take(size_t bytes) {
    size_t start = used_;
    used_ += up_to(bytes, PANEL);
    return base_ ? reinterpret_cast<T*>(base_ + start) : nullptr;
  }

 private:
  static Arena& arena() {
    static thread_local Arena kept;
    return kept;
  }
  char* base_ = nullptr;
  size_t used_ = 0;
};

// One part of a product, shared by the threads of a region: both operands are packed, then blocks of the result are
// claimed. The order of sums is fixed, so the bits do not depend on who claims what.
class Part {
 public:
  Part(const Tier& tier, Dtype unit) : tier_(tier), unit_(unit) {}

  // Room for parts of up to `K` numbers.
  void place(Slices& memory, int64_t M, int64_t N, int64_t K) {
    int64_t units = tier_.chain.row_units(unit_, K);
    a_ = memory.take(up_to(M, 16) * units * 4);
    b_ = memory.take(up_to(N, PANEL) * units * 4);
  }

  // `sums` of the rows of A are added to, unless null.
  void pack(const Source& a, const Source& b, float* sums, Stage& stage) {
    int64_t units = tier_.chain.row_units(unit_, a.K), rows = blocks(a.N, PANEL), panels = blocks(b.N, PANEL);
    Weight to{b_, nullptr, nullptr, nullptr, b.N, b.K, units, panels, unit_};
    stage.run(rows + panels, [&](int64_t i) {
      if (i >= rows) return tier_.chain.pack(&b, &to, nullptr, i - rows, i - rows + 1);
      int64_t first = i * PANEL, last = std::min(a.N, first + PANEL);
      tier_.matmul.pack_rows(&a, unit_, units, first, last, a_ + first * units * 4, sums);
    });
  }

  void multiply(Multiply m, int64_t M, int64_t K, Stage& stage) {
    m.a = a_, m.b = b_, m.unit = unit_, m.a_row = m.units = tier_.chain.row_units(unit_, K);
    int64_t high = blocks(M, BLOCK), wide = blocks(m.N, PANEL);
    stage.run(high * wide, [&](int64_t i) {
      int64_t first = i % high * BLOCK, panel = i / high;
      tier_.matmul.multiply(&m, first, std::min(M, first + BLOCK), panel, panel + 1);
    });
  }

 private:
  const Tier& tier_;
  Dtype unit_;
  char *a_ = nullptr, *b_ = nullptr;
};

// Running totals of a result that needs several parts: its own memory where that is fp32.
struct Totals {
  Buffer own;
  float* sums;
  Totals(void* out, Dtype dtype, int64_t count, int64_t parts) : sums(static_cast<float*>(out)) {
    if (dtype == FP32) return;
    if (parts > 1) own = large_buffer(count * 4);
    sums = reinterpret_cast<float*>(own.get());
  }
};

}  // namespace

void weight_gradient(const Tier& tier, const WeightGradient& g, int threads) {
  int64_t N = g.d_y.N, K = g.x.N, T = g.x.K, parts = std::max<int64_t>(1, blocks(T, TOKENS));
  Part part(tier, tier.chain.unit_dtype(g.compute));
  Slices memory([&](Slices& s) { part.place(s, N, K, std::min(T, TOKENS)); });
  Totals totals(g.d_weight, g.dtype, N * K, g.d_weight ? parts : 0);
  std::vector<Stage> stages(2 * parts);
  threads = usable_threads(threads);
  parallel(threads, tier, [&](int) {
    for (int64_t i = 0; i < parts; i++) {
      int64_t first = i * TOKENS, count = std::min(T - first, TOKENS);
      Source x = part_of(g.x, first, count);
      if (!g.d_weight) x.N = 0;
      part.pack(part_of(g.d_y, first, count), x, g.d_bias, stages[2 * i]);
      Multiply m{nullptr, nullptr, 0, 0, x.N, totals.sums, g.d_weight, g.dtype, FP32, i == 0, i + 1 == parts};
      part.multiply(m, N, count, stages[2 * i + 1]);
    }
  });
}

// ---------------------------------------------------------------------------------------------- vocabulary

namespace {

// Tokens as packed columns, and what kernels read of the whole.
struct Tokens {
  Vocabulary v{};
  int64_t padded;

  Tokens(const Tier& tier, const VocabularyLoss& loss, int64_t first, int64_t count) {
    Dtype unit = tier.chain.unit_dtype(loss.compute);
    v.weight = loss.weight, v.bias = loss.bias, v.tokens = count, v.unit = unit;
    v.units = tier.chain.row_units(unit, loss.x.K);
    v.labels = loss.labels + first, v.kept = loss.kept ? loss.kept + first * loss.weight.N : nullptr;
    padded = up_to(count, PANEL);
  }
  void place(Slices& memory) { v.x = memory.take(padded * v.units * 4); }
  void pack(const Tier& tier, const VocabularyLoss& loss, int64_t first, Stage& stage) const {
    Source x = columns_of(loss.x, first, v.tokens);
    int64_t panels = padded / PANEL;
    Weight to{v.x, nullptr, nullptr, nullptr, x.N, x.K, v.units, panels, v.unit};
    stage.run(panels, [&](int64_t i) { tier.chain.pack(&x, &to, nullptr, i, i + 1); });
  }
};

// By token, over the blocks of words in their order.
void join_scores(const float* parts, int64_t blocks, int64_t padded, int64_t t, float* lse, float* plain) {
  const float *largest = parts + t, *total = largest + blocks * padded, *sum = total + blocks * padded;
  float most = largest[0];
  for (int64_t b = 1; b < blocks; b++) most = std::max(most, largest[b * padded]);
  double exponentials = 0, scores = 0;
  for (int64_t b = 0; b < blocks; b++) {
    exponentials += double(total[b * padded]) * std::exp(double(largest[b * padded]) - most);
    scores += sum[b * padded];
  }
  lse[t] = float(most + std::log(exponentials));
  plain[t] = float(scores);
}

}  // namespace

void vocabulary_scores(const Tier& tier, const VocabularyLoss& loss, float* lse, float* plain, float* of_label,
                       int threads) {
  int64_t N = loss.x.N, V = loss.weight.N, high = blocks(V, WORDS);
  threads = usable_threads(threads);
  for (int64_t first = 0; first < N; first += TOKENS) {
    Tokens tokens(tier, loss, first, std::min(N - first, TOKENS));
    size_t scratch = up_to(tier.matmul.words_scratch(&tokens.v), PANEL);
    char* own;
    float* parts;
    Slices memory([&](Slices& s) {
      tokens.place(s);
      own = s.take(scratch * threads);
      parts = s.take<float>(3 * high * tokens.padded * 4);
    });
    Stage stages[3];
    parallel(threads, tier, [&](int thread) {
      tokens.pack(tier, loss, first, stages[0]);
      stages[1].run(high, [&](int64_t i) {
        float* largest = parts + i * tokens.padded;
        int64_t step = high * tokens.padded;
        Scores scores{largest, largest + step, largest + 2 * step, of_label + first};
        tier.matmul.words_forward(&tokens.v, i * WORDS, std::min(V, (i + 1) * WORDS), &scores, own + thread * scratch);
      });
      stages[2].run(blocks(tokens.v.tokens, PANEL), [&](int64_t i) {
        for (int64_t t = i * PANEL; t < std::min(tokens.v.tokens, (i + 1) * PANEL); t++)
          join_scores(parts, high, tokens.padded, t, lse + first, plain + first);
      });
    });
  }
}

namespace {

// The gradients of up to TOKENS tokens: group by group of words, their dz is computed, then d_weight of the group and
// the group's part of d_x.
struct TokenGradients {
  const Tier& tier;
  const VocabularyLoss& loss;
  const VocabularyGradient& g;
  int64_t first, W, V, groups;
  bool begins, ends;  // the sums over tokens
  Tokens tokens;
  Part part;
  float* weight_sums;
  size_t scratch;
  char *d, *x_panels, *own;  // x_panels: x again, with tokens along k
  float* x_sums;
  Slices memory;
  std::vector<Stage> stages;

  TokenGradients(const Tier& tier, const VocabularyLoss& loss, const VocabularyGradient& g, int64_t first,
                 float* weight_sums, int threads)
      : tier(tier), loss(loss), g(g), first(first), W(loss.x.K), V(loss.weight.N), groups(blocks(V, GROUP)),
        begins(first == 0), ends(first + TOKENS >= loss.x.N),
        tokens(tier, loss, first, std::min(loss.x.N - first, TOKENS)), part(tier, tokens.v.unit),
        weight_sums(weight_sums), scratch(up_to(tier.matmul.words_scratch(&tokens.v), PANEL)),
        memory([&](Slices& s) { place(s, threads); }), stages(2 + 3 * groups) {}

  void place(Slices& s, int threads) {
    int64_t group = std::min(V, GROUP), count = tokens.v.tokens;
    tokens.place(s);
    own = s.take(scratch * threads);
    d = s.take(up_to(group, 16) * d_units() * 4);
    x_panels = s.take(g.d_weight ? up_to(W, PANEL) * x_units() * 4 : 0);
    x_sums = s.take<float>(g.d_x ? count * W * 4 : 0);
    if (g.d_x) part.place(s, count, W, group);
  }
  int64_t x_units() const { return tier.chain.row_units(tokens.v.unit, tokens.v.tokens); }
  int64_t d_units() const { return tokens.padded * size_of(tokens.v.unit) / 4; }

  void pack_x(Stage& stage) {
    Source x = turned(columns_of(loss.x, first, tokens.v.tokens));
    int64_t panels = blocks(W, PANEL);
    Weight to{x_panels, nullptr, nullptr, nullptr, x.N, x.K, x_units(), panels, tokens.v.unit};
    if (g.d_weight) stage.run(panels, [&](int64_t i) { tier.chain.pack(&x, &to, nullptr, i, i + 1); });
  }

  // dz of one block of words, and with it the rows of d_weight.
  void words(int64_t group, int64_t i, char* own) {
    int64_t inside = i * WORDS, word = group * GROUP + inside, last = std::min(V, word + WORDS);
    char* to = d + inside * d_units() * 4;
    ScoreGradients s{g.lse + first, g.slope + first, g.flat + first, g.hot + first, to,
                     g.d_bias ? g.d_bias + word : nullptr};
    tier.matmul.words_backward(&tokens.v, word, last, &s, own);
    if (!g.d_weight) return;
    char* out = static_cast<char*>(g.d_weight) + word * W * size_of(loss.weight.dtype);
    Multiply m{to, x_panels, d_units(), x_units(), W, weight_sums + word * W, out, loss.weight.dtype, tokens.v.unit,
               begins, ends};
    tier.matmul.multiply(&m, 0, last - word, 0, blocks(W, PANEL));
  }

  void run(int thread) {
    Stage* stage = stages.data();
    tokens.pack(tier, loss, first, *stage++);
    pack_x(*stage++);
    for (int64_t group = 0; group < groups; group++, stage += 3) {
      int64_t start = group * GROUP, count = std::min(V - start, GROUP);
      stage[0].run(blocks(count, WORDS), [&](int64_t i) { words(group, i, own + thread * scratch); });
      if (!g.d_x) continue;
      Source scores{d, 1, tokens.padded, tokens.v.tokens, count, tokens.v.unit, PLAIN, 0, 0};
      part.pack(scores, turned(columns_of(loss.weight, start, count)), nullptr, stage[1]);
      char* out = static_cast<char*>(g.d_x) + first * W * size_of(loss.x.dtype);
      Multiply m{nullptr, nullptr, 0, 0, W, x_sums, out, loss.x.dtype, FP32, group == 0, group + 1 == groups};
      part.multiply(m, tokens.v.tokens, count, stage[2]);
    }
  }
};

}  // namespace

void vocabulary_gradient(const Tier& tier, const VocabularyLoss& loss, const VocabularyGradient& g, int threads) {
  int64_t N = loss.x.N;
  Totals totals(g.d_weight, loss.weight.dtype, loss.weight.N * loss.x.K, g.d_weight ? blocks(N, TOKENS) : 0);
  threads = usable_threads(threads);
  for (int64_t first = 0; first < N; first += TOKENS) {
    TokenGradients part(tier, loss, g, first, totals.sums, threads);
    parallel(threads, tier, [&](int thread) { part.run(thread); });
  }
}

}  // namespace ef
