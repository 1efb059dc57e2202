// One vector for each sequence, and the gradients of its tokens.
#pragma once
#include "rows.inl"

namespace {

// Which rows of the batch a sequence's vector comes from.
struct Span {
  int64_t first, last;
};
inline Span span_of(const ef::Pool& p, int64_t b) {
  int64_t first = p.cu_seqlens[b], last = p.cu_seqlens[b + 1];
  if (first == last) return {first, last};
  if (p.mode == ef::POOL_CLS) return {first, first + 1};
  if (p.mode == ef::POOL_LAST) return {last - 1, last};
  return {first, last};
}
// The sum over a sequence is divided by this.
inline float divisor(ef::PoolMode mode, int64_t length) {
  double n = length;
  if (mode == ef::POOL_WEIGHTED) return n * (n + 1) / 2;
  return mode == ef::POOL_MEAN_SQRT_LEN ? sqrt(n) : n;
}

// Sums of so many numbers join that of the others, at two levels: few roundings meet a large sum.
constexpr int64_t PART = 64, PARTS = 64 * PART;

template <class Number>
void pool_sum(const ef::Pool& p, int64_t b, int64_t first, int64_t last) {
  Span span = span_of(p, b);
  float all = divisor(p.mode, span.last - span.first);
  each_group(first, last, [&](int64_t column, auto n, auto V) {
    F sums[V] = {}, parts[V] = {};
    for (int64_t start = span.first; start < span.last; start += PART) {
      if ((start - span.first) % PARTS == 0)
        for (int v = 0; v < V; v++) sums[v] += parts[v], parts[v] = F{};
      F part[V] = {};
      int64_t end = start + PART < span.last ? start + PART : span.last;
      for (int64_t t = start; t < end; t++) {
        float share = p.mode == ef::POOL_WEIGHTED ? t - span.first + 1 : 1;
        for (int v = 0; v < V; v++) part[v] += take((const Number*)p.x + t * p.stride + column + v * L, n) * share;
      }
      for (int v = 0; v < V; v++) parts[v] += part[v];
    }
    for (int v = 0; v < V; v++) sums[v] += parts[v];
    for (int v = 0; v < V; v++)
      give(p.y + b * p.W + column + v * L, n, span.first == span.last ? F{} : sums[v] / all);
  });
}

template <class Number>
void pool_max(const ef::Pool& p, int64_t b, int64_t first, int64_t last) {
  Span span = span_of(p, b);
  each_group(first, last, [&](int64_t column, auto n, auto V) {
    F best[V] = {};
    for (int64_t t = span.first; t < span.last; t++)
      for (int v = 0; v < V; v++) {
        F x = take((const Number*)p.x + t * p.stride + column + v * L, n);
        // NaN wins, and is not less than what follows.
        best[v] = t == span.first ? x : ((x > best[v]) | (x != x)) ? x : best[v];
      }
    for (int v = 0; v < V; v++) give(p.y + b * p.W + column + v * L, n, best[v]);
  });
}

void pool_rows(const ef::Pool* p, int64_t b, int64_t first, int64_t last) {
  bool narrow = p->dtype == ef::BF16;
  if (p->mode == ef::POOL_MAX)
    return narrow ? pool_max<uint16_t>(*p, b, first, last) : pool_max<float>(*p, b, first, last);
  narrow ? pool_sum<uint16_t>(*p, b, first, last) : pool_sum<float>(*p, b, first, last);
}

template <class Number>
void pool_sum_backward(const ef::Pool& p, int64_t b, int64_t first, int64_t last) {
  Span span = span_of(p, b);
  float all = divisor(p.mode, span.last - span.first);
  each_group(first, last, [&](int64_t column, auto n, auto V) {
    F d[V];
    for (int v = 0; v < V; v++) d[v] = take(p.d_y + b * p.d_y_stride + column + v * L, n) / all;
    for (int64_t t = span.first; t < span.last; t++) {
      float share = p.mode == ef::POOL_WEIGHTED ? t - span.first + 1 : 1;
      for (int v = 0; v < V; v++) give((Number*)p.d_x + t * p.W + column + v * L, n, d[v] * share);
    }
  });
}

// Tokens that share the maximum share its gradient. A NaN is its own maximum.
template <class Number>
void pool_max_backward(const ef::Pool& p, int64_t b, int64_t first, int64_t last) {
  Span span = span_of(p, b);
  each_group(first, last, [&](int64_t start, auto n, auto V) {
    for (int64_t column = start; column < start + V * L; column += L) {
      F best = take(p.y + b * p.W + column, n), d = take(p.d_y + b * p.d_y_stride + column, n), winners{};
      auto wins = [&](int64_t t) {
        F x = take((const Number*)p.x + t * p.stride + column, n);
        return (x == best) | (x != x);
      };
      for (int64_t t = span.first; t < span.last; t++) winners += wins(t) ? F{} + 1 : F{};
      for (int64_t t = span.first; t < span.last; t++)
        give((Number*)p.d_x + t * p.W + column, n, wins(t) ? d / winners : F{});
    }
  });
}

void pool_backward_rows(const ef::Pool* p, int64_t b, int64_t first, int64_t last) {
  bool narrow = p->dtype == ef::BF16;
  if (p->mode == ef::POOL_MAX)
    return narrow ? pool_max_backward<uint16_t>(*p, b, first, last) : pool_max_backward<float>(*p, b, first, last);
  narrow ? pool_sum_backward<uint16_t>(*p, b, first, last) : pool_sum_backward<float>(*p, b, first, last);
}

}  // namespace
