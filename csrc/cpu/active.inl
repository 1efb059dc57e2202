// Activation, gate and dropout of a feed-forward block by rows, forward and backward: what training runs between two
// products, on rows that are still in the cache.
#pragma once
#include "act.h"

namespace {

// As many of L numbers as there are; zero for the others.
template <class Number>
inline F lanes_at(const Number* from, int64_t count) {
  if (count >= L) return wide_load(from);
  Number padded[L] = {};
  memcpy(padded, from, count * sizeof *from);
  return wide_load(padded);
}
template <class Number>
inline void put_lanes(Number* to, F x, int64_t count) {
  if (count >= L) return narrow_store(to, x);
  for (int64_t l = 0; l < count; l++) narrow(x[l], to + l);
}

// 0 for numbers that dropout takes, 1 / (1 - share) for the others; the same in both directions.
inline F kept_share(const ef::Step& s, int64_t row, int64_t column) {
  U lanes;
  for (int l = 0; l < L; l++) lanes[l] = (uint32_t)(column + l);
  U limit = U{} + dropout_limit(s.dropout);
  return hash(s.seed, (uint32_t)row, lanes) >= limit ? splat(kept_scale(s.dropout)) : F{};
}

template <class Saved, class Out>
void activate_row(const ef::Step& s, int64_t row, const Saved* h, Out* to) {
  int64_t width = s.width;
  for (int64_t i = 0; i < width; i += L) {
    F x = activate(s.activation, lanes_at(h + i, width - i)).value;
    if (s.gated) x *= lanes_at(h + width + i, width - i);
    if (s.dropout > 0.0f) x *= kept_share(s, row, i);
    put_lanes(to + i, x, width - i);
  }
  for (int64_t i = width; i < s.out.columns; i++) narrow(0.0f, to + i);
}

// Gradient `d` of the inner activation to that of the projection that it came from.
template <class Saved, class Out>
void slope_row(const ef::Step& s, int64_t row, const float* d, const Saved* h, Out* to) {
  int64_t width = s.width;
  for (int64_t i = 0; i < width; i += L) {
    Active a = activate(s.activation, lanes_at(h + i, width - i));
    F back = lanes_at(d + i, width - i);
    if (s.dropout > 0.0f) back *= kept_share(s, row, i);
    if (s.gated) {
      put_lanes(to + width + i, back * a.value, width - i);
      back *= lanes_at(h + width + i, width - i);
    }
    put_lanes(to + i, back * a.slope, width - i);
  }
  for (int64_t i = s.gated ? 2 * width : width; i < s.out.columns; i++) narrow(0.0f, to + i);
}

}  // namespace
