// LayerNorm of the sum of up to three rows, forward and backward. A row is read from memory once; what follows finds it
// in the first-level cache.
#pragma once
#include "rows.inl"

namespace {

// What is left of fp32 lanes after a store as such numbers.
inline F rounded(F x, const float*) { return x; }
inline F rounded(F x, const uint16_t*) {
  U b = (U)x;
  return x == x ? (F)((b + 0x7fff + ((b >> 16) & 1)) & 0xffff0000) : x;
}

// Keeps the compiler from fusing a product with the difference that follows: two roundings of one product must be the
// same where they cancel, as in the gradient of a row whose deviation is zero.
inline F product_of(F a, F b) {
  F x = a * b;
#if defined(__AVX512F__)
  __asm__("" : "+v"(x));
#elif defined(__x86_64__)
  __asm__("" : "+x"(x));
#elif defined(__aarch64__)
  __asm__("" : "+w"(x));
#endif
  return x;
}

template <int COUNT, class Number>
inline float add_rows(const Number* const (&from)[3], Number* to, int64_t W) {
  F sums[SLOTS] = {};
  each_vector(W, [&](int64_t i, auto n, auto slot) {
    F x = take(from[0] + i, n);
    for (int k = 1; k < COUNT; k++) x += take(from[k] + i, n);
    if (COUNT > 1) x = rounded(x, to);
    if (to) give(to + i, n, x);
    sums[slot] += x;
  });
  return total(sums);
}

template <class Number>
inline const Number* addend_row(const ef::Addend& a, int64_t t) {
  return (const Number*)a.data + (a.index ? a.index[t] : t) * a.stride;
}

// Where the sum of a row is: in `s` if that is wanted, else in `y`, whose place it leaves to the result. One row alone
// stays where it is.
template <class Number>
inline const Number* summed(const ef::Norm& norm, int64_t t, float* sum) {
  const Number* from[3];
  for (int k = 0; k < norm.count; k++) from[k] = addend_row<Number>(norm.addends[k], t);
  Number* to = norm.s ? (Number*)norm.s : norm.count > 1 ? (Number*)norm.y : nullptr;
  if (to) to += t * norm.W;
  switch (norm.count) {
    case 1: *sum = add_rows<1>(from, to, norm.W); break;
    case 2: *sum = add_rows<2>(from, to, norm.W); break;
    default: *sum = add_rows<3>(from, to, norm.W);
  }
  return to ? to : from[0];
}

template <class Number, class Parameter>
void norm_each(const ef::Norm& norm, int64_t first, int64_t last) {
  const Parameter *weight = (const Parameter*)norm.weight, *bias = (const Parameter*)norm.bias;
  for (int64_t t = first; t < last; t++) {
    float sum;
    const Number* x = summed<Number>(norm, t, &sum);
    float mean = sum / norm.W;
    // Memory would rest while the row is in the cache.
    const Number* next = addend_row<Number>(norm.addends[0], t + 1 < last ? t + 1 : t);
    for (int64_t i = 0; i < norm.W; i += 64 / sizeof(Number)) __builtin_prefetch(next + i);
    float rstd = rstd_of(x, norm.W, mean, norm.eps);
    write_normal(x, norm.W, mean, rstd, weight, bias, (Number*)norm.y + t * norm.W);
    if (norm.mean) norm.mean[t] = mean, norm.rstd[t] = rstd;
  }
}
void norm_rows(const ef::Norm* norm, int64_t first, int64_t last) {
  if (norm->dtype == ef::FP32) return norm_each<float, float>(*norm, first, last);
  if (norm->parameters == ef::BF16) return norm_each<uint16_t, uint16_t>(*norm, first, last);
  norm_each<uint16_t, float>(*norm, first, last);
}

// With x' = (x - mean) rstd and g = d_y weight:  d_x = rstd (g - mean(g) - x' mean(g x')),
// d_weight = sum over rows of d_y x',  d_bias = sum of d_y.
template <class Number, class Parameter>
void differentiate_each(const ef::NormBackward& norm, int64_t first, int64_t last, float* d_weight, float* d_bias) {
  const Parameter* weight = (const Parameter*)norm.weight;
  for (int64_t t = first; t < last; t++) {
    const Number* x = (const Number*)norm.s + t * norm.s_stride;
    const Number* d_y = (const Number*)norm.d_y + t * norm.d_y_stride;
    const Number* d_s = norm.d_s ? (const Number*)norm.d_s + t * norm.d_s_stride : nullptr;
    float mean = norm.mean[t], rstd = norm.rstd[t];
    F plain[SLOTS] = {}, crossed[SLOTS] = {};
    each_vector(norm.W, [&](int64_t i, auto n, auto slot) {
      F d = take(d_y + i, n), normal = (take(x + i, n) - mean) * rstd, g = product_of(d, take(weight + i, n));
      plain[slot] += g;
      crossed[slot] += g * only(normal, n);
      if (d_weight) give(d_weight + i, n, take(d_weight + i, n) + d * normal);
      if (d_bias) give(d_bias + i, n, take(d_bias + i, n) + d);
    });
    if (!norm.d_x) continue;
    float level = total(plain) / norm.W, slope = total(crossed) / norm.W;
    Number* d_x = (Number*)norm.d_x + t * norm.W;
    each_vector(norm.W, [&](int64_t i, auto n, auto) {
      F normal = (take(x + i, n) - mean) * rstd, g = product_of(take(d_y + i, n), take(weight + i, n));
      F d = (g - level - normal * slope) * rstd;
      give(d_x + i, n, d_s ? d + take(d_s + i, n) : d);
    });
  }
}
void norm_backward_rows(const ef::NormBackward* norm, int64_t first, int64_t last, float* d_weight, float* d_bias) {
  if (d_weight) memset(d_weight, 0, norm->W * 4);
  if (d_bias) memset(d_bias, 0, norm->W * 4);
  if (norm->dtype == ef::FP32) return differentiate_each<float, float>(*norm, first, last, d_weight, d_bias);
  if (norm->parameters == ef::BF16) return differentiate_each<uint16_t, uint16_t>(*norm, first, last, d_weight, d_bias);
  differentiate_each<uint16_t, float>(*norm, first, last, d_weight, d_bias);
}

}  // namespace
