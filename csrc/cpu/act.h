// Activations on lanes, with their derivatives.
#pragma once
#include "types.h"
#include "vec.h"

namespace {

// erfc(|z|) = e^(-z^2) P(1 / (1 + 0.33 |z|)): P fitted to scipy's erfcx on [0, 10] with equal relative error, 9.4e-8
// (4.7e-7 with fp32 rounding). Unlike 1 + erf(z), it keeps its relative accuracy where the result is small.
inline F erfc_over_exp(F z) {
  F t = 1.0f / (0.33f * z + 1.0f);
  F p = splat(-0.13534677f);
  p = p * t + 0.46024188f;
  p = p * t - 0.3511585f;
  p = p * t + 0.40850866f;
  p = p * t + 0.047215678f;
  p = p * t + 0.20122553f;
  p = p * t + 0.18295565f;
  p = p * t + 0.18635783f;
  return p * t;
}

// erf(z) for |z| <= 1: z Q(z^2), fitted in the same way, 1.2e-9 (1.6e-7 with fp32 rounding).
inline F erf_near_zero(F z) {
  F s = z * z;
  F q = splat(7.853744e-05f);
  q = q * s - 0.00080101623f;
  q = q * s + 0.0051883245f;
  q = q * s - 0.026853811f;
  q = q * s + 0.11283585f;
  q = q * s - 0.37612626f;
  q = q * s + 1.1283791f;
  return z * q;
}

struct Active {
  F value, slope;
};

// x Phi(x), slope Phi(x) + x phi(x).
inline Active gelu(F x) {
  F size = x < 0.0f ? -x : x;
  F e = exp_negative(x * x * -0.5f);
  F tail = 0.5f * e * erfc_over_exp(size * 0.70710678f), near = 0.5f + 0.5f * erf_near_zero(x * 0.70710678f);
  F far = x < 0.0f ? tail : 1.0f - tail;
  F below = size < 1.4f ? near : far;  // Phi(x)
  return {x * below, below + x * e * 0.39894228f};
}

// 1 / (1 + e^-x)
inline F logistic(F x) {
  F e = exp_negative(x < 0.0f ? x : -x);
  F small = e / (1.0f + e);
  return x < 0.0f ? small : 1.0f - small;
}
// Near 0, 2 logistic(2x) - 1 has no accurate digits left: there the series to x^7 has.
inline F hyperbolic_tangent(F x) {
  F s = x * x;
  F near = x * (1.0f + s * (-1.0f / 3 + s * (2.0f / 15 + s * (-17.0f / 315))));
  F size = x < 0.0f ? -x : x;
  F e = exp_negative(size * -2.0f);
  F far = (1.0f - e) / (1.0f + e);
  far = x < 0.0f ? -far : far;
  return size < 0.2f ? near : far;
}

// x / 2 (1 + tanh(y)) = x logistic(2y), y = sqrt(2 / pi) (x + 0.044715 x^3).
inline Active gelu_tanh(F x) {
  F s = x * x;
  F p = logistic(x * (s * 0.044715f + 1.0f) * 1.59576912f);
  return {x * p, p + x * p * (1.0f - p) * (s * 0.134145f + 1.0f) * 1.59576912f};
}

inline Active silu(F x) {
  F p = logistic(x);
  return {x * p, p + x * p * (1.0f - p)};
}

inline Active hyperbolic(F x) {
  F t = hyperbolic_tangent(x);
  return {t, 1.0f - t * t};
}

// NaN passes through all of them.
inline Active activate(ef::Activation activation, F x) {
  switch (activation) {
    case ef::GELU: return gelu(x);
    case ef::GELU_TANH: return gelu_tanh(x);
    case ef::RELU: return {x < 0.0f ? F{} : x, x > 0.0f ? splat(1.0f) : F{}};
    case ef::SILU: return silu(x);
    case ef::TANH: return hyperbolic(x);
    default: return {x, splat(1.0f)};
  }
}

}  // namespace
