// Vectors along a row of any width, and what needs little more: rope, gradients of tables.
#pragma once
#include "types.h"
#include "vec.h"

namespace {

// A count of numbers that is a whole vector, known to the compiler.
struct Whole {
  constexpr operator int64_t() const { return L; }
};
// Which of four running sums takes the next vector: one alone would wait for its last addition.
template <int K>
struct Slot {
  constexpr operator int() const { return K; }
};
constexpr int SLOTS = 4;

template <class Number>
inline F take(const Number* p, Whole) {
  return wide_load(p);
}
template <class Number>
inline void give(Number* p, Whole, F x) {
  narrow_store(p, x);
}
#if EF_BF16_DOT
// One instruction instead of seven, which are a fifth of LayerNorm's. It takes numbers below 1.2e-38 for zeros.
inline void give(uint16_t* p, Whole, F x) {
  __m256bh half = _mm512_cvtneps_pbh((__m512)x);
  memcpy(p, &half, sizeof half);
}
#endif
inline F only(F x, Whole) { return x; }

// The first n numbers, and zeros in the other lanes.
template <class Number>
inline F take(const Number* p, int64_t n) {
  Number part[L] = {};
  memcpy(part, p, n * sizeof(Number));
  return wide_load(part);
}
template <class Number>
inline void give(Number* p, int64_t n, F x) {
  Number part[L];
  narrow_store(part, x);
  memcpy(p, part, n * sizeof(Number));
}
inline F only(F x, int64_t n) {
  for (int64_t l = n; l < L; l++) x[l] = 0;
  return x;
}

// f(first number, how many, slot) for the vectors of a row.
template <class Body>
inline void each_vector(int64_t W, Body f) {
  int64_t i = 0;
  for (; i + SLOTS * L <= W; i += SLOTS * L) {
    f(i, Whole{}, Slot<0>{});
    f(i + L, Whole{}, Slot<1>{});
    f(i + 2 * L, Whole{}, Slot<2>{});
    f(i + 3 * L, Whole{}, Slot<3>{});
  }
  for (; i + L <= W; i += L) f(i, Whole{}, Slot<0>{});
  if (i < W) f(i, W - i, Slot<0>{});
}
inline float total(const F (&sums)[SLOTS]) { return lane_sum((sums[0] + sums[1]) + (sums[2] + sums[3])); }

// ---------------------------------------------------------------------------------------------- LayerNorm of a row

template <class Number>
inline float mean_of(const Number* x, int64_t W) {
  F sums[SLOTS] = {};
  each_vector(W, [&](int64_t i, auto n, auto slot) { sums[slot] += take(x + i, n); });
  return total(sums) / W;
}

// 1 / standard deviation, from a second pass over the row: E[x^2] - E[x]^2 loses all digits where the mean is large.
template <class Number>
inline float rstd_of(const Number* x, int64_t W, float mean, float eps) {
  F squares[SLOTS] = {};
  each_vector(W, [&](int64_t i, auto n, auto slot) {
    F away = only(take(x + i, n) - mean, n);
    squares[slot] += away * away;
  });
  return 1.0f / sqrtf(total(squares) / W + eps);
}

template <class Number, class Parameter, class Out>
inline void write_normal(const Number* x, int64_t W, float mean, float rstd, const Parameter* weight,
                         const Parameter* bias, Out* y) {
  each_vector(W, [&](int64_t i, auto n, auto) {
    F normal = (take(x + i, n) - mean) * rstd * take(weight + i, n);
    give(y + i, n, bias ? normal + take(bias + i, n) : normal);
  });
}

// ---------------------------------------------------------------------------------------------- rope

inline F turned_first(F x, F y, F c, F s) { return x * c - y * s; }
inline F turned_second(F x, F y, F c, F s) { return y * c + x * s; }

template <class Number>
void turn_rows(const ef::Rope& r, int64_t first, int64_t last) {
  int64_t half = r.D / 2;
  for (int64_t t = first; t < last; t++) {
    const float *cosine = r.cos + t * half, *sine = r.sin + t * half;
    for (int64_t part = 0; part < 3; part++)
      for (int64_t h = 0; h < r.H; h++) {
        const Number* from = (const Number*)r.in + t * r.token_stride + part * r.part_stride + h * r.head_stride;
        Number* to = (Number*)r.out + ((t * 3 + part) * r.H + h) * r.D;
        if (part == 2) {
          memcpy(to, from, r.D * sizeof(Number));
          continue;
        }
        each_vector(half, [&](int64_t i, auto n, auto) {
          F x = take(from + i, n), y = take(from + half + i, n);
          F c = take(cosine + i, n), s = take(sine + i, n) * r.sign;
          give(to + i, n, turned_first(x, y, c, s));
          give(to + half + i, n, turned_second(x, y, c, s));
        });
      }
  }
}
void rope_rows(const ef::Rope* r, int64_t first, int64_t last) {
  r->dtype == ef::BF16 ? turn_rows<uint16_t>(*r, first, last) : turn_rows<float>(*r, first, last);
}

// ---------------------------------------------------------------------------------------------- columns

// f(first column, how many in the last vector, V): columns [first, last) in groups of four vectors, then one by one.
template <class Body>
inline void each_group(int64_t first, int64_t last, Body f) {
  for (; first + SLOTS * L <= last; first += SLOTS * L) f(first, Whole{}, Slot<SLOTS>{});
  for (; first + L <= last; first += L) f(first, Whole{}, Slot<1>{});
  if (first < last) f(first, last - first, Slot<1>{});
}

template <class Number>
void sum_columns(const float* parts, int64_t count, int64_t stride, int64_t first, int64_t last, Number* out) {
  each_group(first, last, [&](int64_t column, auto n, auto V) {
    F sums[V] = {};
    for (int64_t i = 0; i < count; i++)
      for (int v = 0; v < V; v++) sums[v] += take(parts + i * stride + column + v * L, n);
    for (int v = 0; v < V; v++) give(out + column + v * L, n, sums[v]);
  });
}
void sum_parts(const float* parts, int64_t count, int64_t stride, int64_t first, int64_t last, void* out,
               ef::Dtype dtype) {
  if (dtype == ef::BF16) return sum_columns(parts, count, stride, first, last, (uint16_t*)out);
  sum_columns(parts, count, stride, first, last, (float*)out);
}

template <class Number>
void add_readers(const ef::TableGradient& g, const ef::Readers* readers, int64_t groups, int64_t first, int64_t last) {
  constexpr int64_t TOGETHER = 16;  // rows that stay in the first-level cache from one group of columns to the next
  alignas(64) float sums[ef::TABLE_COLUMNS];
  const Number* d = (const Number*)g.d + first;
  for (const ef::Readers* r = readers; r < readers + groups; r++) {
    memset(sums, 0, (last - first) * sizeof(float));
    for (int64_t start = r->first; start < r->last; start += TOGETHER) {
      int64_t end = start + TOGETHER < r->last ? start + TOGETHER : r->last;
      each_group(0, last - first, [&](int64_t column, auto n, auto V) {
        F sum[V];
        for (int v = 0; v < V; v++) sum[v] = take(sums + column + v * L, n);
        for (int64_t i = start; i < end; i++)
          for (int v = 0; v < V; v++) sum[v] += take(d + g.order[i] * g.W + column + v * L, n);
        for (int v = 0; v < V; v++) give(sums + column + v * L, n, sum[v]);
      });
    }
    Number* to = (Number*)g.table + r->row * g.W + first;
    each_vector(last - first, [&](int64_t i, auto n, auto) { give(to + i, n, take(sums + i, n)); });
  }
}
void table_gradient(const ef::TableGradient* g, const ef::Readers* readers, int64_t groups, int64_t first,
                    int64_t last) {
  if (g->dtype == ef::BF16) return add_readers<uint16_t>(*g, readers, groups, first, last);
  add_readers<float>(*g, readers, groups, first, last);
}

}  // namespace
