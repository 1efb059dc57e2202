// Vectors of EF_LANES fp32 numbers, written with the compiler's vector extension: one source for every tier, and the
// tier's flags decide the instructions. Everything is in an unnamed namespace, so that no tier's code serves another.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>
#if EF_BF16_DOT
#include <immintrin.h>
#endif

namespace {

constexpr int L = EF_LANES;
typedef float F __attribute__((vector_size(L * 4)));
typedef int32_t I __attribute__((vector_size(L * 4)));
typedef uint32_t U __attribute__((vector_size(L * 4)));
typedef float F_any __attribute__((vector_size(L * 4), aligned(4), may_alias));
typedef int32_t I_any __attribute__((vector_size(L * 4), aligned(4), may_alias));
typedef uint32_t U_any __attribute__((vector_size(L * 4), aligned(4), may_alias));

inline F load(const float* p) { return *(const F_any*)p; }
inline I load(const int32_t* p) { return *(const I_any*)p; }
inline U load(const uint32_t* p) { return *(const U_any*)p; }
inline void store(float* p, F x) { *(F_any*)p = x; }
inline void store(int32_t* p, I x) { *(I_any*)p = x; }
inline void store(uint32_t* p, U x) { *(U_any*)p = x; }
inline F splat(float x) { return F{} + x; }
inline F larger(F a, F b) { return a > b ? a : b; }
inline F smaller(F a, F b) { return a < b ? a : b; }

// A bit pattern in another type: what C++20 calls bit_cast, which is a library function.
template <class To, class From>
inline To bits(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To y;
  memcpy(&y, &x, sizeof y);
  return y;
}

inline float widen(uint16_t x) { return bits<float>((uint32_t)x << 16); }
inline float widen(float x) { return x; }

inline void narrow(float x, float* to) { *to = x; }
// To nearest, ties to even; NaN stays NaN.
inline void narrow(float x, uint16_t* to) {
  uint32_t b = bits<uint32_t>(x);
  *to = x != x ? 0x7fc0 : (uint16_t)((b + 0x7fff + ((b >> 16) & 1)) >> 16);
}

// L numbers of fp32 or bf16 memory as fp32 lanes.
inline F wide_load(const float* p) { return load(p); }
inline F wide_load(const uint16_t* p) {
  typedef uint16_t H_any __attribute__((vector_size(L * 2), aligned(2), may_alias));
  return (F)(__builtin_convertvector(*(const H_any*)p, U) << 16);
}
// fp32 lanes to fp32 or bf16 memory, to nearest, ties to even; NaN stays NaN.
inline void narrow_store(float* p, F x) { store(p, x); }
inline void narrow_store(uint16_t* p, F x) {
  typedef uint16_t H __attribute__((vector_size(L * 2)));
  typedef uint16_t H_any __attribute__((vector_size(L * 2), aligned(2), may_alias));
  U b = (U)x;
  U rounded = (b + 0x7fff + ((b >> 16) & 1)) >> 16;
  *(H_any*)p = __builtin_convertvector(x == x ? rounded : U{} + 0x7fc0, H);
}

// Sum of the lanes, in one fixed order: halves are added until one number is left.
inline float lane_sum(F x) {
  float part[L];
  store(part, x);
  for (int width = L / 2; width > 0; width /= 2)
    for (int i = 0; i < width; i++) part[i] += part[i + width];
  return part[0];
}

// 2^n p for a whole number n in the low bits of `magic + n`.
inline F scale_by_power(F p, F magic_plus_n) { return (F)((I)p + ((I)magic_plus_n << 23)); }
constexpr float ROUNDING_MAGIC = 12582912.0f;  // 1.5 * 2^23: adding it rounds a small number to a whole one

// e^x for x <= 0, 0 below -87: Cody and Waite's reduction, then the Taylor polynomial of degree 7 on |r| <= ln(2)/2.
// Error about 1 ulp, so that fp32 attention is as good as torch's. NaN stays NaN: `larger` returns its second argument.
inline F exp_negative(F x) {
  F inside = larger(splat(-87.0f), x);
  F shifted = inside * 1.44269504f + ROUNDING_MAGIC;
  F n = shifted - ROUNDING_MAGIC;
  F r = (inside - n * 0.693145752f) - n * 1.42860677e-6f;
  F p = splat(1.0f / 5040);
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  F y = scale_by_power(p, shifted);
  return x < -87.0f ? F{} : y;
}

// The same to 2^-13, for numbers that are rounded to bf16 next. Below -88 it is a denormal number, which Bf16 rounds
// to 0.
inline F exp_negative_rough(F x) {
  F inside = larger(splat(-88.0f), x);
  F shifted = inside * 1.44269504f + ROUNDING_MAGIC;
  F r = inside - (shifted - ROUNDING_MAGIC) * 0.693147181f;
  F p = splat(0.0416666f);
  p = p * r + 0.1666666f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  return scale_by_power(p, shifted);
}

// Dropout of a share of all elements: those whose hash is below the limit go, the others are multiplied by the scale.
inline uint32_t dropout_limit(double share) {
  double limit = share * 4294967296.0;
  return limit < 4294967295.0 ? (uint32_t)limit : 0xffffffffu;
}
inline float kept_scale(float share) { return share < 1 ? 1 / (1 - share) : 0.0f; }

// A fair 32-bit number for (seed, row, column), after the finaliser of MurmurHash3: dropout depends on the place of an
// element and on nothing about tiles or threads.
inline U hash(uint64_t seed, uint32_t row, U column) {
  U x = column * 0x9e3779b9u + (uint32_t)seed;
  x ^= (row + (uint32_t)(seed >> 32)) * 0x85ebca6bu;
  for (int round = 0; round < 2; round++) {
    x ^= x >> 16;
    x *= 0x85ebca6bu;
    x ^= x >> 13;
    x *= 0xc2b2ae35u;
    x ^= x >> 16;
    x += row;
  }
  return x;
}

}  // namespace
