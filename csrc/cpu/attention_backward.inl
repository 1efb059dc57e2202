// Gradients of attention of one sequence and head. Probabilities are computed again from the scores and the forward's
// log-sum-exp, block by block:
//
//   P = exp(scale S - lse), S = Q K^T
//   dS = P (dP - delta), dP = dO V^T, delta = the sum of dO O over a row
//   dV += P^T dO, dQ += scale dS K, dK += scale dS^T Q
//
// All sums are fp32 in this thread's scratch, in one order: the result is the same bits in every run.
#pragma once
#include "attention.inl"

namespace {

// Of a block. 2026-12-01, Zen 4, one busy core, bf16, 2048 tokens x 64: 64 keys 170 GFLOP/s, 96 and 128 keys 181.
constexpr int64_t BACKWARD_KEYS = 96;

template <class T>
struct BackwardRoom {
  typedef typename T::unit Unit;
  int64_t units, width;                          // of a packed row of D numbers, and of a row of pairs
  Unit *rows, *q, *g, *o;                        // queries, output gradients and outputs, queries in lanes
  Unit *q_pairs, *g_pairs;                       // the same with units along queries
  Unit *k, *v;                                   // rows of units along D
  Turned<T> k_turned;                            // rows of units along keys
  Lanes lanes;
  Unit *p_rows, *ds_rows, *ds;                   // a block of P and dS: rows of units along queries, and along keys
  float *s, *dq, *dk, *dv, *turned, *lse, *rest, *delta, *factor;

  BackwardRoom(Room& room, int64_t D, int64_t n)
      : units(row_units_of<T>(D)), width(up_to(D, L)), k_turned(room, D, n), lanes(room, BACKWARD_KEYS) {
    rows = room.take<Unit>(QUERIES * units), q = room.take<Unit>(units * QUERIES);
    g = room.take<Unit>(units * QUERIES), o = room.take<Unit>(units * QUERIES);
    q_pairs = room.take<Unit>(QUERIES / T::numbers * width), g_pairs = room.take<Unit>(QUERIES / T::numbers * width);
    k = room.take<Unit>((n + L) * units), v = room.take<Unit>((n + L) * units);
    p_rows = room.take<Unit>(BACKWARD_KEYS * QUERIES / T::numbers);
    ds_rows = room.take<Unit>(BACKWARD_KEYS * QUERIES / T::numbers);
    ds = room.take<Unit>((BACKWARD_KEYS / T::numbers + UNIT_STEP) * QUERIES);
    s = room.take<float>(BACKWARD_KEYS * QUERIES);
    dq = room.take<float>(width * QUERIES), turned = room.take<float>(QUERIES * width);
    dk = room.take<float>(n * width), dv = room.take<float>(n * width);
    lse = room.take<float>(QUERIES), rest = room.take<float>(QUERIES);
    delta = room.take<float>(QUERIES), factor = room.take<float>(QUERIES);
  }
};

// A vector of lanes to its place in a row of numbers.
inline void store_numbers(float* row, int64_t lane, F x) { store(row + lane, x); }
#if EF_BF16_DOT
// Unlike narrow_store, makes denormal numbers 0, as `exp_negative_rough` asks.
inline void store_numbers(uint32_t* row, int64_t lane, F x) {
  __m256i pairs = (__m256i)_mm512_cvtneps_pbh((__m512)x);
  memcpy((uint16_t*)row + lane, &pairs, sizeof pairs);
}
#endif

template <class T>
struct BackwardBlock {
  const BackwardRoom<T>& w;
  const Sequence& sequence;
  const Dropout& dropout;
  Range queries;
  int64_t D, lanes;
  float scale, kept;

  template <bool MASKED>
  void score(int64_t k, int64_t keys) const {
    auto keep = [&]<int R, int V>(Count<R>, int64_t row, int64_t column, F(&c)[R][V]) __attribute__((always_inline)) {
      for (int i = 0; i < R; i++)
        for (int j = 0; j < V; j++) {
          int64_t lane = column + j * L;
          store(w.s + (row + i) * QUERIES + lane, MASKED ? w.lanes.seen(c[i][j], row + i, lane) : c[i][j]);
        }
    };
    product<T>(w.k + k * w.units, w.units, w.q, QUERIES, keys, lanes, packed_units(D, T::numbers), keep);
  }

  // dP in registers, and from it P and dS of keys [k, k + keys), packed. dS lacks the factor `scale`.
  template <bool DROPS>
  void differentiate(int64_t k, int64_t keys) const {
    constexpr int N = T::numbers;
    for (int64_t u = (keys + N - 1) / N; u % UNIT_STEP; u++) memset(w.ds + u * QUERIES, 0, QUERIES * sizeof *w.ds);
    auto step = [&]<int R, int V>(Count<R>, int64_t row, int64_t column, F(&c)[R][V]) __attribute__((always_inline)) {
      for (int j = 0; j < V; j++) {
        int64_t lane = column + j * L;
        F lse = load(w.lse + lane), rest = load(w.rest + lane), delta = load(w.delta + lane), last = {};
        for (int i = 0; i < R; i++) {
          int64_t key = row + i;
          F p = T::exp(load(w.s + key * QUERIES + lane) * scale - lse - rest), used = p, dp = c[i][j];
          if constexpr (DROPS) {
            used = dropout.kept(p, k + key, queries.first + lane);
            dp = dropout.kept(dp * kept, k + key, queries.first + lane);
          }
          F ds = p * (dp - delta);
          store_numbers(w.p_rows + key * (QUERIES / N), lane, used);
          store_numbers(w.ds_rows + key * (QUERIES / N), lane, ds);
          if constexpr (N == 1) store(w.ds + key * QUERIES + lane, ds);
          else if (i % 2) store(w.ds + key / 2 * QUERIES + lane, T::join(last, ds));
          else if (R == 1) store(w.ds + key / 2 * QUERIES + lane, T::join(ds, F{}));
          last = ds;
        }
      }
    };
    product<T>(w.v + k * w.units, w.units, w.g, QUERIES, keys, lanes, packed_units(D, N), step);
  }

  // The three products that follow, each added to its sum.
  void accumulate(int64_t k, int64_t keys) const {
    constexpr int N = T::numbers;
    auto add_to = [](float* sum, int64_t stride) {
      return [sum, stride]<int R, int V>(Count<R>, int64_t row, int64_t column, F(&c)[R][V])
          __attribute__((always_inline)) {
            for (int i = 0; i < R; i++)
              for (int j = 0; j < V; j++) {
                float* x = sum + (row + i) * stride + column + j * L;
                store(x, load(x) + c[i][j]);
              }
          };
    };
    int64_t row = QUERIES / N, width = w.width;
    product<T>(w.p_rows, row, w.g_pairs, width, keys, width, lanes / N, add_to(w.dv + k * width, width));
    product<T>(w.ds_rows, row, w.q_pairs, width, keys, width, lanes / N, add_to(w.dk + k * width, width));
    product<T>(w.k_turned.at(k), w.k_turned.row, w.ds, QUERIES, D, lanes, (keys + N - 1) / N, add_to(w.dq, QUERIES));
  }

  void run(bool drops) const {
    Range seen = sequence.seen(queries.first, queries.last), by_all = sequence.seen_by_all(queries.first, queries.last);
    memset(w.dq, 0, D * QUERIES * sizeof *w.dq);
    for (int64_t k = seen.first; k < seen.last; k += BACKWARD_KEYS) {
      Range keys = {k, k + BACKWARD_KEYS < seen.last ? k + BACKWARD_KEYS : seen.last};
      int64_t count = keys.last - k;
      if (k < by_all.first || keys.last > by_all.last) {
        w.lanes.find(sequence, keys, queries);
        score<true>(k, count);
      } else {
        score<false>(k, count);
      }
      if (drops) differentiate<true>(k, count);
      else differentiate<false>(k, count);
      accumulate(k, count);
    }
  }
};

// What a block of queries reads: the packed forms, log-sum-exp and delta. Lanes beyond the last query hold zeros.
template <class T, class Number>
void take_queries(const BackwardRoom<T>& w, const ef::AttentionBackward* call, int64_t start, int32_t h, Range queries,
                  int64_t lanes) {
  const ef::Attention& a = call->forward;
  auto q = rows_of<const Number>(a.q, start, h, a.token_stride, a.head_stride);
  auto g = rows_of<const Number>(call->d_o, start, h, call->d_o_token_stride, call->d_o_head_stride);
  auto o = rows_of<const Number>(a.o, start, h, a.o_token_stride, a.o_head_stride);
  pack_queries<T>(w.q, w.rows, q, queries, a.D, lanes);
  pack_queries<T>(w.g, w.rows, g, queries, a.D, lanes);
  pack_queries<T>(w.o, w.rows, o, queries, a.D, lanes);
  pack_along_tokens<T>(w.q_pairs, q, queries, a.D, lanes / T::numbers);
  pack_along_tokens<T>(w.g_pairs, g, queries, a.D, lanes / T::numbers);
  // In the order of the product that makes dP: a query that sees only itself has dP equal to delta, to the bit.
  for (int64_t j = 0; j < lanes; j += L) {
    typename T::Sum sum = {};
    for (int64_t u = 0; u < packed_units(a.D, T::numbers); u++)
      sum = T::add(sum, T::lanes(w.o + u * QUERIES + j), T::lanes(w.g + u * QUERIES + j));
    store(w.delta + j, sum);
  }
  for (int64_t i = 0; i < lanes; i++) {
    bool real = queries.first + i < queries.last;
    int64_t at = (start + queries.first + i) * a.H + h;
    w.lse[i] = real ? a.lse[at] : 0.0f;
    w.rest[i] = real && a.lse_rest ? a.lse_rest[at] : 0.0f;
  }
}

template <class Number>
inline void put_rows(Rows<Number> to, float* from, float scale, int64_t count, int64_t D) {
  int64_t width = up_to(D, L);
  for (int64_t i = 0; i < count; i++, from += width) {
    for (int64_t d = 0; d < width; d += L) store(from + d, load(from + d) * scale);
    convert_row(to.at(i), (const float*)from, D, D);
  }
}

template <class T, class Number>
void backward(const ef::AttentionBackward* call, int32_t b, int32_t h, void* scratch) {
  const ef::Attention& a = call->forward;
  Sequence sequence = sequence_of(&a, b);
  int64_t n = sequence.length, start = sequence.start;
  Room room{(uintptr_t)scratch};
  BackwardRoom<T> w(room, a.D, n);
  auto keys = rows_of<const Number>(a.k, start, h, a.token_stride, a.head_stride);
  pack_rows<T>(w.k, keys, {0, n}, a.D);
  w.k_turned.pack(keys, {0, n}, a.D);
  pack_rows<T>(w.v, rows_of<const Number>(a.v, start, h, a.token_stride, a.head_stride), {0, n}, a.D);
  memset(w.dk, 0, n * w.width * sizeof *w.dk);
  memset(w.dv, 0, n * w.width * sizeof *w.dv);
  auto gradient = [&](void* x) { return rows_of<Number>(x, start, h, call->d_token_stride, call->d_head_stride); };
  for (int64_t j = 0; j < QUERIES; j += L) store(w.factor + j, splat(a.scale));
  Dropout dropout = dropout_of(&a, b, h);
  bool drops = a.dropout > 0;
  float kept = drops ? dropout.scale : 1.0f;
  // Products over queries read whole steps of units.
  constexpr int64_t STEP = UNIT_STEP * T::numbers > L ? UNIT_STEP * T::numbers : L;
  for (int64_t q = 0; q < n; q += QUERIES) {
    Range queries = {q, q + QUERIES < n ? q + QUERIES : n};
    int64_t lanes = up_to(queries.last - q, STEP);
    take_queries<T, Number>(w, call, start, h, queries, lanes);
    BackwardBlock<T>{w, sequence, dropout, queries, a.D, lanes, a.scale, kept}.run(drops);
    put_back(gradient(call->d_q), queries, w.dq, w.factor, w.turned, a.D);
  }
  put_rows(gradient(call->d_k), w.dk, a.scale, n, a.D);
  put_rows(gradient(call->d_v), w.dv, kept, n, a.D);
}

// ------------------------------------------------------------------------------------------- doors

size_t attention_backward_scratch(const ef::AttentionBackward* call, int64_t longest) {
  Room room{0};
#if EF_BF16_DOT
  if (in_bf16(&call->forward)) return BackwardRoom<Bf16>(room, call->forward.D, longest), room.used;
#endif
  return BackwardRoom<Fp32>(room, call->forward.D, longest), room.used;
}

void attention_backward(const ef::AttentionBackward* call, int32_t b, int32_t h, void* scratch) {
  const ef::Attention& a = call->forward;
#if EF_BF16_DOT
  if (a.dtype == ef::BF16) return backward<Bf16, uint16_t>(call, b, h, scratch);
  if (a.compute == ef::BF16) return backward<Bf16, float>(call, b, h, scratch);
#endif
#if EF_AMX
  if (a.compute == ef::BY_3 && a.dtype == ef::FP32) return backward<By3, float>(call, b, h, scratch);
#endif
  if (a.dtype == ef::BF16) return backward<Fp32, uint16_t>(call, b, h, scratch);
  backward<Fp32, float>(call, b, h, scratch);
}

}  // namespace
