// Matrices in memory to units, sixteen lanes at a time: the parts of packing that cost time.
#pragma once
#include "tile.h"
#include "types.h"

namespace {

// L neighbours along n, whose numbers k and k + 1 are a unit (fp32 units have no second number).
template <class T, class From>
inline U units_across(const From* first, const From* second) {
#if EF_BF16_DOT
  if constexpr (T::numbers == 2 && sizeof(From) == 4) return Bf16::join(load(first), load(second));
  if constexpr (T::numbers == 2) return (U)wide_load(first) >> 16 | (U)wide_load(second);
#endif
  (void)second;
  return (U)wide_load(first);
}

// L units along k, from T::numbers * L numbers side by side.
template <class T, class From>
inline U units_along(const From* from) {
  if constexpr (T::numbers == 1) {
    return (U)wide_load(from);
  } else {
    uint16_t pairs[2 * L];
    if constexpr (sizeof(From) == 2) memcpy(pairs, from, sizeof pairs);
    else narrow_store(pairs, wide_load(from)), narrow_store(pairs + L, wide_load(from + L));
    return load((const uint32_t*)pairs);
  }
}

// to[i * stride + j] = from[j][i]
inline void store_turned(uint32_t* to, int64_t stride, const uint32_t (&from)[L][L]) {
  for (int i = 0; i < L; i++)
    for (int j = 0; j < L; j++) to[i * stride + j] = from[j][i];
}

// L columns of a panel whose sources lie side by side; `to` is zero beyond.
template <class T, class From>
inline void pack_neighbours(uint32_t* to, int64_t to_stride, const From* from, int64_t k_stride, int64_t K) {
  constexpr int numbers = T::numbers;
  const From zeros[L] = {};
  for (int64_t k = 0; k < K; k += numbers) {
    const From* row = from + k * k_stride;
    store(to + k / numbers * to_stride, units_across<T>(row, k + 1 < K ? row + k_stride : zeros));
  }
}

// L columns, each of which lies along memory. Packs whole groups of L units and returns how many numbers that was.
template <class T, class From>
inline int64_t pack_columns(uint32_t* to, int64_t to_stride, const From* from, int64_t n_stride, int64_t K) {
  constexpr int64_t step = L * T::numbers;
  alignas(64) uint32_t block[L][L];
  int64_t k = 0;
  for (; k + step <= K; k += step) {
    for (int n = 0; n < L; n++) store(block[n], units_along<T>(from + n * n_stride + k));
    store_turned(to + k / T::numbers * to_stride, to_stride, block);
  }
  return k;
}

}  // namespace
