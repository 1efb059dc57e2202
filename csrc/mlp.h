// A feed-forward block in training: rows go through both products while they lie in a core's cache.
#pragma once
#include "engine.h"

namespace ef {

struct FeedForward {
  bool gated;
  Activation activation;
  Dtype dtype;  // of all rows
  float dropout;
  uint64_t seed;
};

// `h` keeps the result of the up-projection, unless absent.
void mlp_forward(const FeedForward& block, const Packed& up, const Packed& down, const Matrix& x, const Matrix& h,
                 const Matrix& out, int64_t rows, int threads);

// What is absent is not wanted; an absent `h` is computed again.
struct MlpGradient {
  const Packed *up, *up_turned, *down_turned;  // turned: of the transposed weight; `up_turned` is for d_x alone
  Matrix x, h, d_y;
  Matrix d_h, inner;  // gradient of the up-projection's result, and what the down-projection read
  Matrix d_x;
};
void mlp_backward(const FeedForward& block, const MlpGradient& g, int64_t rows, int threads);

}  // namespace ef
