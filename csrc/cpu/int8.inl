// Dynamic int8: each row of activations has one scale, each packed column of a weight has one.
//
// Activations are stored as a + 128, since the instructions multiply unsigned by signed numbers; the 128 times the sum
// of a weight's column that this adds is taken off again. A row carries its scale in the last four bytes of its stride.
#pragma once
#include "pack.inl"

namespace {

inline float* scale_of(const ef::Matrix& m, uint8_t* row) { return (float*)(row + m.stride - 4); }

inline float largest_size(const float* x, int64_t count) {
  F most{};
  float tail = 0;
  int64_t i = 0;
  for (; i + L <= count; i += L) {
    F v = load(x + i);
    most = larger(most, v < 0.0f ? -v : v);
  }
  for (; i < count; i++) tail = fmaxf(tail, fabsf(x[i]));
  for (int l = 0; l < L; l++) tail = most[l] > tail ? most[l] : tail;
  return tail;
}

// A whole number of lanes of `x`, scaled and rounded to nearest: -127 to 127 for what `largest_size` has seen.
inline I quantised(F x, float inverse) { return (I)(x * inverse + ROUNDING_MAGIC) - (I)splat(ROUNDING_MAGIC); }

// A row that is not finite gets a scale that is not finite: its results are NaN, and no number is made up.
inline void quantise_row(const ef::Matrix& m, uint8_t* to, const float* x, int64_t count) {
  typedef uint8_t B_any __attribute__((vector_size(L), aligned(1), may_alias));
  float most = largest_size(x, count), scale = most > 0 ? most / 127.0f : 1.0f, inverse = 1.0f / scale;
  F rest{};
  int64_t i = 0;
  for (; i + L <= count; i += L) {
    F v = load(x + i);
    rest += v * 0.0f;
    *(B_any*)(to + i) = __builtin_convertvector(quantised(v, inverse) + 128, B_any);
  }
  float tail = lane_sum(rest);
  for (; i < count; i++) {
    to[i] = (uint8_t)(quantised(splat(x[i]), inverse)[0] + 128);
    tail += x[i] * 0.0f;
  }
  memset(to + count, 128, m.columns - count);
  *scale_of(m, to) = scale + tail;
}

// One panel of int8 units, with the scale and the sum of each column.
template <class From>
void pack_int8_panel(int8_t* to, const From* from, const ef::Source& s, int64_t row_units, const int64_t* columns,
                     float* scales, int32_t* sums) {
  memset(to, 0, row_units * PANEL * 4);
  for (int64_t n = 0; n < PANEL; n++) {
    scales[n] = 0;
    sums[n] = 0;
    if (columns[n] < 0) continue;
    const From* column = from + columns[n] * s.n_stride;
    float most = 0, rest = 0;
    for (int64_t k = 0; k < s.K; k++) most = fmaxf(most, fabsf(widen(column[k * s.k_stride])));
    for (int64_t k = 0; k < s.K; k++) rest += widen(column[k * s.k_stride]) * 0.0f;
    float scale = most > 0 ? most / 127.0f : 1.0f, inverse = 1.0f / scale;
    for (int64_t k = 0; k < s.K; k++) {
      int8_t q = (int8_t)quantised(splat(widen(column[k * s.k_stride])), inverse)[0];
      to[(k / 4 * PANEL + n) * 4 + k % 4] = q;
      sums[n] += q;
    }
    scales[n] = scale + rest;
  }
}

#if EF_VNNI
template <int R, int V>
inline void descale(const ef::Weight& w, const ef::Matrix& in, const uint8_t* a, int64_t row, int64_t place,
                    const I (&c)[R][V], F (&to)[R][V]) {
  for (int i = 0; i < R; i++) {
    float scale = *scale_of(in, (uint8_t*)a + (row + i) * in.stride);
    for (int j = 0; j < V; j++) {
      I whole = c[i][j] - 128 * load(w.sums + place + j * L);
      to[i][j] = __builtin_convertvector(whole, F) * (load(w.scale + place + j * L) * scale);
    }
  }
}
#endif

}  // namespace
