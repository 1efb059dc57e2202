// Attention of one sequence and head, forward: online softmax over blocks of keys.
//
// A block of keys is so long that what 64 queries see through the usual window is one block: then nothing is scaled
// twice, and local attention needs no code of its own. Only keys that not all queries of a block see are masked.
#pragma once
#include "attention_parts.inl"

namespace {

// Of a block: 64 queries and 64 columns on either side. 128 and 256 keys are as fast, within 5 %.
constexpr int64_t KEYS = 192;

template <class T>
struct ForwardRoom {
  typedef typename T::unit Unit;
  Unit *rows, *q, *k, *p;
  Turned<T> v;
  Lanes lanes;
  float *s, *o, *turned;
  float *top, *m, *l, *alpha;  // for each query: largest score of a block and so far, sum, what to scale by

  ForwardRoom(Room& room, int64_t D, int64_t keys) : v(room, D, keys), lanes(room, KEYS) {
    int64_t units = row_units_of<T>(D);
    rows = room.take<Unit>(QUERIES * units);
    q = room.take<Unit>(units * QUERIES);
    k = room.take<Unit>((keys + L) * units);  // L: products may read up to ROW_STEP rows beyond
    p = room.take<Unit>((KEYS / T::numbers + UNIT_STEP) * QUERIES);
    s = room.take<float>(KEYS * QUERIES);
    o = room.take<float>(up_to(D, L) * QUERIES);
    turned = room.take<float>(QUERIES * up_to(D, L));
    top = room.take<float>(QUERIES), m = room.take<float>(QUERIES);
    l = room.take<float>(QUERIES), alpha = room.take<float>(QUERIES);
  }
};

// One block of queries and the loop over its keys.
template <class T>
struct ForwardBlock {
  const ForwardRoom<T>& w;
  const Sequence& sequence;
  Range queries;
  int64_t D, lanes;  // lanes in use, up to L
  float scale;

  // Scores of keys [first, last), whose packed rows begin at `k`, and the largest of each lane.
  template <bool MASKED>
  void score(const typename T::unit* k, int64_t keys) const {
    for (int64_t j = 0; j < lanes; j += L) store(w.top + j, splat(-INFINITY));
    auto keep = [&]<int R, int V>(Count<R>, int64_t row, int64_t column, F(&c)[R][V]) __attribute__((always_inline)) {
      for (int j = 0; j < V; j++) {
        int64_t lane = column + j * L;
        F top = load(w.top + lane);
        for (int i = 0; i < R; i++) {
          F s = MASKED ? w.lanes.seen(c[i][j], row + i, lane) : c[i][j];
          store(w.s + (row + i) * QUERIES + lane, s);
          top = larger(top, s);
        }
        store(w.top + lane, top);
      }
    };
    product<T>(k, row_units_of<T>(D), w.q, QUERIES, keys, lanes, packed_units(D, T::numbers), keep);
  }

  // Has a new maximum moved any lane? Then what was summed before is to be scaled by alpha.
  bool move_maximum() const {
    I moved = {};
    for (int64_t j = 0; j < lanes; j += L) {
      F old = load(w.m + j), now = larger(old, load(w.top + j) * scale);
      moved |= now != old;
      store(w.m + j, now);
      store(w.alpha + j, exp_negative(old - now));
    }
    int32_t any = 0;
    for (int i = 0; i < L; i++) any |= moved[i];
    return any != 0;
  }

  // Scores to probabilities without their divisor, packed along keys, for V vectors of lanes. The divisor counts what
  // dropout removes.
  template <bool DROPS, int V>
  void soften(const Dropout& dropout, int64_t first, int64_t keys, int64_t lane) const {
    constexpr int N = T::numbers;
    F m[V], sum[V] = {}, part[V] = {};
    for (int j = 0; j < V; j++) m[j] = load(w.m + lane + j * L);
    auto unit = [&](int64_t u, int count) __attribute__((always_inline)) {
      for (int j = 0; j < V; j++) {
        int64_t at = lane + j * L;
        F p[N] = {};
        for (int i = 0; i < count; i++) {
          p[i] = T::exp(load(w.s + (u * N + i) * QUERIES + at) * scale - m[j]);
          part[j] += p[i];
          if constexpr (DROPS) p[i] = dropout.kept(p[i], first + u * N + i, queries.first + at);
        }
        if constexpr (N == 2) store(w.p + u * QUERIES + at, T::join(p[0], p[1]));
        else store(w.p + u * QUERIES + at, p[0]);
      }
    };
    // Sums of few numbers first: one long chain of additions would lose a digit more than torch's sums.
    auto add_part = [&]() __attribute__((always_inline)) {
      for (int j = 0; j < V; j++) sum[j] += part[j], part[j] = F{};
    };
    int64_t u = 0;
    for (; u < keys / N; u++) {
      unit(u, N);
      if (u % 8 == 7) add_part();
    }
    if (keys % N) unit(u++, 1);
    add_part();
    for (; u % UNIT_STEP; u++) unit(u, 0);
    for (int j = 0; j < V; j++) {
      float* l = w.l + lane + j * L;
      store(l, load(l) * load(w.alpha + lane + j * L) + sum[j]);
    }
  }
  template <bool DROPS>
  void soften_all(const Dropout& dropout, int64_t first, int64_t keys) const {
    int64_t lane = 0;
    for (; lane + VECTORS * L <= lanes; lane += VECTORS * L) soften<DROPS, VECTORS>(dropout, first, keys, lane);
    for (; lane < lanes; lane += L) soften<DROPS, 1>(dropout, first, keys, lane);
  }

  // Adds probabilities times values to `o`, which has D in rows and queries in lanes.
  void add_values(const typename T::unit* v, int64_t keys, bool fresh, bool moved) const {
    auto add = [&]<int R, int V>(Count<R>, int64_t row, int64_t column, F(&c)[R][V]) __attribute__((always_inline)) {
      for (int j = 0; j < V; j++) {
        F alpha = load(w.alpha + column + j * L);
        for (int i = 0; i < R; i++) {
          float* o = w.o + (row + i) * QUERIES + column + j * L;
          F x = c[i][j];
          if (!fresh) x = moved ? load(o) * alpha + x : load(o) + x;
          store(o, x);
        }
      }
    };
    product<T>(v, w.v.row, w.p, QUERIES, D, lanes, (keys + T::numbers - 1) / T::numbers, add);
  }

  // Keys and values are packed from key `packed` on.
  void run(const ef::Attention* a, const Dropout& dropout, int64_t packed) const {
    Range seen = sequence.seen(queries.first, queries.last), by_all = sequence.seen_by_all(queries.first, queries.last);
    for (int64_t j = 0; j < lanes; j += L) store(w.m + j, splat(-1e30f)), store(w.l + j, F{});
    for (int64_t k = seen.first; k < seen.last; k += KEYS) {
      Range keys = {k, k + KEYS < seen.last ? k + KEYS : seen.last};
      int64_t count = keys.last - keys.first;
      const auto* rows = w.k + (k - packed) * row_units_of<T>(D);
      if (keys.first < by_all.first || keys.last > by_all.last) {
        w.lanes.find(sequence, keys, queries);
        score<true>(rows, count);
      } else {
        score<false>(rows, count);
      }
      bool moved = move_maximum();
      if (a->dropout > 0) soften_all<true>(dropout, k, count);
      else soften_all<false>(dropout, k, count);
      add_values(w.v.at(k - packed), count, k == seen.first, moved);
    }
  }
};

template <class T, class Number>
void forward(const ef::Attention* a, int32_t b, int32_t h, int64_t first, int64_t last, void* scratch) {
  Sequence sequence = sequence_of(a, b);
  Range seen = sequence.seen(first, last);
  Room room{(uintptr_t)scratch};
  ForwardRoom<T> w(room, a->D, seen.last - seen.first);
  auto rows = [&](const void* x) {
    return rows_of<const Number>(x, sequence.start, h, a->token_stride, a->head_stride);
  };
  pack_rows<T>(w.k, rows(a->k), seen, a->D);
  w.v.pack(rows(a->v), seen, a->D);
  auto o = rows_of<Number>(a->o, sequence.start, h, a->o_token_stride, a->o_head_stride);
  Dropout dropout = dropout_of(a, b, h);
  for (int64_t q = first; q < last; q += QUERIES) {
    Range queries = {q, q + QUERIES < last ? q + QUERIES : last};
    int64_t count = queries.last - q, lanes = up_to(count, L);
    pack_queries<T>(w.q, w.rows, rows(a->q), queries, a->D, lanes);
    ForwardBlock<T>{w, sequence, queries, a->D, lanes, a->scale}.run(a, dropout, seen.first);
    for (int64_t i = 0; a->lse && i < count; i++) {
      double lse = w.m[i] + log((double)w.l[i]);
      int64_t at = (sequence.start + q + i) * a->H + h;
      a->lse[at] = (float)lse;
      if (a->lse_rest) a->lse_rest[at] = (float)(lse - a->lse[at]);
    }
    float kept = a->dropout > 0 ? dropout.scale : 1.0f;
    for (int64_t j = 0; j < lanes; j += L) store(w.alpha + j, kept / load(w.l + j));
    put_back(o, queries, w.o, w.alpha, w.turned, a->D);
  }
}

// ------------------------------------------------------------------------------------------- doors

#if EF_BF16_DOT
inline bool in_bf16(const ef::Attention* a) { return a->dtype == ef::BF16 || a->compute == ef::BF16; }
#endif

size_t attention_scratch(const ef::Attention* a, int64_t longest) {
  Room room{0};
#if EF_BF16_DOT
  if (in_bf16(a)) return ForwardRoom<Bf16>(room, a->D, longest), room.used;
#endif
  return ForwardRoom<Fp32>(room, a->D, longest), room.used;
}

void attention_forward(const ef::Attention* a, int32_t b, int32_t h, int64_t first, int64_t last, void* scratch) {
  if (first >= last) return;
#if EF_BF16_DOT
  if (a->dtype == ef::BF16) return forward<Bf16, uint16_t>(a, b, h, first, last, scratch);
  if (a->compute == ef::BF16) return forward<Bf16, float>(a, b, h, first, last, scratch);
#endif
#if EF_AMX
  if (a->compute == ef::BY_3 && a->dtype == ef::FP32) return forward<By3, float>(a, b, h, first, last, scratch);
#endif
  if (a->dtype == ef::BF16) return forward<Fp32, uint16_t>(a, b, h, first, last, scratch);
  forward<Fp32, float>(a, b, h, first, last, scratch);
}

}  // namespace
