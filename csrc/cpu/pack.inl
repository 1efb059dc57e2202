// Rows and weights in the form that `product` reads.
#pragma once
#include "repack.inl"
#include "types.h"

namespace {

constexpr int64_t PANEL = 64;

// The number type whose rows, side by side, are units: fp32, or bf16 in pairs.
template <class T>
struct NumberOf {
  typedef float type;
};
#if EF_BF16_DOT
template <>
struct NumberOf<Bf16> {
  typedef uint16_t type;
};
#endif

// Copies a row of `count` numbers, converting, and writes zeros up to `padded`.
template <class To, class From>
inline void convert_row(To* to, const From* from, int64_t count, int64_t padded) {
  int64_t i = 0;
  for (; i + L <= count; i += L) narrow_store(to + i, wide_load(from + i));
  for (; i < count; i++) narrow(widen(from[i]), to + i);
  for (; i < padded; i++) narrow(0.0f, to + i);
}
inline void convert_row(uint16_t* to, const uint16_t* from, int64_t count, int64_t padded) {
  memcpy(to, from, count * 2);
  memset(to + count, 0, (padded - count) * 2);
}

inline int64_t packed_units(int64_t K, int numbers) { return up_to((K + numbers - 1) / numbers, UNIT_STEP); }

// Where packed column `c` comes from, or -1 for padding. `head` counts columns of a head, 2 * N of HALVES_OF_ALL.
inline int64_t source_column(ef::Order order, int64_t c, int64_t N, int64_t head, int64_t rotated) {
  if (order == ef::PLAIN || (order == ef::HALVES_OF_HEADS && c >= rotated)) return c < N ? c : -1;
  int64_t group = c / (2 * L), place = c % (2 * L), lane = place % L;
  if (order == ef::HALVES_OF_ALL) {
    int64_t column = group * L + lane;
    if (column >= N / 2) return -1;
    return place < L ? column : N / 2 + column;
  }
  int64_t in_head = group % (head / (2 * L)), start = group / (head / (2 * L)) * head;
  return start + in_head * L + lane + (place < L ? 0 : head / 2);
}

inline int64_t packed_columns(ef::Order order, int64_t N) {
  return order == ef::HALVES_OF_ALL ? up_to(up_to(N / 2, L) * 2, PANEL) : up_to(N, PANEL);
}

// One panel of B (K x N), whose element (k, n) lies at from[k * k_stride + n * n_stride].
template <class T, class From>
void pack_panel(typename T::unit* to, const From* from, int64_t k_stride, int64_t n_stride, int64_t K,
                int64_t row_units, const int64_t* columns) {
  typedef typename NumberOf<T>::type Number;
  Number* out = (Number*)to;
  if (row_units == 0) return;  // no tokens: there may be no memory either
  memset(to, 0, row_units * PANEL * sizeof *to);
  for (int64_t group = 0; group < PANEL; group += L) {
    int64_t start = columns[group], packed = 0;
    if (start >= 0 && columns[group + L - 1] == start + L - 1) {
      uint32_t* at = (uint32_t*)to + group;
      if (n_stride == 1) pack_neighbours<T>(at, PANEL, from + start, k_stride, K), packed = K;
      else if (k_stride == 1) packed = pack_columns<T>(at, PANEL, from + start * n_stride, n_stride, K);
    }
    for (int64_t n = group; n < group + L; n++) {
      if (columns[n] < 0) continue;
      const From* column = from + columns[n] * n_stride;
      for (int64_t k = packed; k < K; k++) {
        int64_t place = (k / T::numbers * PANEL + n) * T::numbers + k % T::numbers;
        narrow(widen(column[k * k_stride]), out + place);
      }
    }
  }
}

}  // namespace
