// The one matrix product of every kernel: C (rows x width) = A (rows x K) B (K x width), all operands packed.
//
// K is counted in units of 32 bits: one fp32 number, two bf16 numbers or four int8 numbers, along K. A is row-major in
// units; B has one row of `width` units for each unit of K, so its columns lie in lanes. Both are zero beyond K, up to
// a multiple of UNIT_STEP units; A has readable rows up to a multiple of ROW_STEP. C stays in registers (or tiles) and
// is handed to `each(Count<R>, row, column, c)`, R rows of V vectors at a time: the epilogue of the kernel.
//
// 2026-11-30, Zen 4: a 6 x 64 tile with A broadcast runs at 234 GFLOP/s a core in bf16 and 116 in fp32, the machine's
// peak; the same on AVX2 registers is 6 x 16.
#pragma once
#include "vec.h"

namespace {

struct Fp32 {
  typedef float unit;
  typedef F Sum;
  static constexpr int numbers = 1;
  // Units that are summed before they are added to the others: the rounding error of a sum grows with the root of its
  // length. In one run, a 384-wide model has twice torch's error.
  static constexpr int64_t RUN = 32;
  static constexpr bool rough = false;
  static inline F exp(F x) { return exp_negative(x); }
  static inline F splat(const unit* a) { return F{} + *a; }
  static inline F lanes(const unit* b) { return load(b); }
  static inline F add(F c, F a, F b) { return c + a * b; }
};

#if EF_BF16_DOT
struct Bf16 {
  typedef uint32_t unit;
  typedef F Sum;
  static constexpr int numbers = 2;
  static constexpr int64_t RUN = 0;  // no runs: rounding to bf16 outweighs the sums
  static constexpr bool rough = true;
  static inline F exp(F x) { return exp_negative_rough(x); }
  static inline __m512bh splat(const unit* a) { return (__m512bh)_mm512_set1_epi32((int)*a); }
  static inline __m512bh lanes(const unit* b) { return (__m512bh)_mm512_loadu_si512(b); }
  static inline F add(F c, __m512bh a, __m512bh b) { return (F)_mm512_dpbf16_ps((__m512)c, a, b); }
  // Two rows of fp32 lanes to one row of pairs, to nearest.
  static inline U join(F first, F second) {
    __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,  //
                                           23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return (U)_mm512_permutexvar_epi16(order, both);
  }
};
#endif

#if EF_VNNI
// A unsigned, B signed. With signed activations stored as a + 128, subtract 128 times the column sum of B.
struct Int8 {
  typedef uint32_t unit;
  typedef I Sum;
  static constexpr int numbers = 4;
  static constexpr int64_t RUN = 0;  // sums are exact
  static inline __m512i splat(const unit* a) { return _mm512_set1_epi32((int)*a); }
  static inline __m512i lanes(const unit* b) { return _mm512_loadu_si512(b); }
  static inline I add(I c, __m512i a, __m512i b) { return (I)_mm512_dpbusd_epi32((__m512i)c, a, b); }
};
#endif

// Registers of a tile: 24 of 32 with AVX-512, 12 of 16 with AVX2 and SSE2.
constexpr int VECTORS = L == 16 ? 4 : 2;
constexpr int ROWS = 6;

#if EF_AMX
constexpr int64_t UNIT_STEP = 16, ROW_STEP = 16, TILE_ROWS = 32;
#else
constexpr int64_t UNIT_STEP = 1, ROW_STEP = 1, TILE_ROWS = ROWS;
#endif
inline int64_t up_to(int64_t x, int64_t step) { return (x + step - 1) / step * step; }

template <int R>
struct Count {
  static constexpr int value = R;
};

// The memory that the next product begins with, fetched while this one computes: one line of the cache for each unit of
// a tile. Few rows pass over B so quickly that it would else wait for memory, twice as long as it computes.
struct Ahead {
  const char* next = nullptr;
  const char* end = nullptr;
  void fetch(int64_t unit) const { __builtin_prefetch(next + unit * 64, 0, 2); }
};

template <class T, int R, int V, bool AHEAD>
inline __attribute__((always_inline)) void multiply(typename T::Sum (&c)[R][V], const typename T::unit* a,
                                                    int64_t a_row, const typename T::unit* b, int64_t b_row,
                                                    int64_t units, Ahead ahead) {
  for (int64_t u = 0; u < units; u++) {
    if constexpr (AHEAD) ahead.fetch(u);
    decltype(T::lanes(b)) lanes[V];
    for (int j = 0; j < V; j++) lanes[j] = T::lanes(b + u * b_row + j * L);
    for (int i = 0; i < R; i++) {
      auto number = T::splat(a + i * a_row + u);
      for (int j = 0; j < V; j++) c[i][j] = T::add(c[i][j], number, lanes[j]);
    }
  }
}

template <class T, int R, int V, bool AHEAD>
inline __attribute__((always_inline)) void sum_in_runs(typename T::Sum (&c)[R][V], const typename T::unit* a,
                                                       int64_t a_row, const typename T::unit* b, int64_t b_row,
                                                       int64_t units, Ahead ahead) {
  int64_t run = T::RUN && units > T::RUN ? T::RUN : units;
  multiply<T, R, V, AHEAD>(c, a, a_row, b, b_row, run, ahead);
  for (int64_t u = run; u < units; u += run) {
    typename T::Sum more[R][V] = {};
    int64_t count = units - u < run ? units - u : run;
    multiply<T, R, V, AHEAD>(more, a + u, a_row, b + u * b_row, b_row, count, {ahead.next + u * 64, ahead.end});
    for (int i = 0; i < R; i++)
      for (int j = 0; j < V; j++) c[i][j] += more[i][j];
  }
}

template <class T, int R, int V, class Each>
inline __attribute__((always_inline)) void tile(const typename T::unit* a, int64_t a_row, const typename T::unit* b,
                                                int64_t b_row, int64_t units, int64_t row, int64_t column, Each& each,
                                                Ahead& ahead) {
  typename T::Sum c[R][V] = {};
  a += row * a_row, b += column;
  if (R == ROWS && ahead.next < ahead.end) {
    sum_in_runs<T, R, V, true>(c, a, a_row, b, b_row, units, ahead);
    ahead.next += units * 64;
  } else {
    sum_in_runs<T, R, V, false>(c, a, a_row, b, b_row, units, ahead);
  }
  each(Count<R>(), row, column, c);
}

template <class T, int V, class Each>
inline __attribute__((always_inline)) void tiles_of_columns(const typename T::unit* a, int64_t a_row,
                                                            const typename T::unit* b, int64_t b_row, int64_t rows,
                                                            int64_t units, int64_t column, Each& each, Ahead& ahead) {
  int64_t r = 0;
  for (; r + ROWS <= rows; r += ROWS) tile<T, ROWS, V>(a, a_row, b, b_row, units, r, column, each, ahead);
  for (; r + 2 <= rows; r += 2) tile<T, 2, V>(a, a_row, b, b_row, units, r, column, each, ahead);
  if (r < rows) tile<T, 1, V>(a, a_row, b, b_row, units, r, column, each, ahead);
}

template <class T>
constexpr bool SPLITS = false;
#if EF_AMX
}  // namespace
#include "tile_amx.h"
#include "tile_by_3.h"
namespace {
#else
template <class T>
constexpr bool HAS_TILES = false;
#endif

// `width` is a multiple of L. `each` sees every (row, column) of C once.
template <class T, class Each>
inline void product(const typename T::unit* a, int64_t a_row, const typename T::unit* b, int64_t b_row, int64_t rows,
                    int64_t width, int64_t units, Each each, Ahead ahead = {}) {
#if EF_AMX
  if constexpr (SPLITS<T>) return product_by_3(a, a_row, b, b_row, rows, width, units, each);
  if constexpr (HAS_TILES<T>) return product_in_tiles<T>(a, a_row, b, b_row, rows, width, units, each, ahead);
#endif
  int64_t column = 0;
  for (; column + VECTORS * L <= width; column += VECTORS * L)
    tiles_of_columns<T, VECTORS>(a, a_row, b, b_row, rows, units, column, each, ahead);
  if constexpr (VECTORS == 4)
    for (; column + 2 * L <= width; column += 2 * L)
      tiles_of_columns<T, 2>(a, a_row, b, b_row, rows, units, column, each, ahead);
  for (; column + L <= width; column += L)
    tiles_of_columns<T, 1>(a, a_row, b, b_row, rows, units, column, each, ahead);
}

}  // namespace
