// What is run on the tiers: chains of row steps, and the forward of a whole encoder.
#pragma once
#include <deque>
#include <vector>

#include "cpu/types.h"
#include "packed.h"

namespace ef {

// Steps over rows that depend on nothing but their own row. LOCAL matrices take `local_row` bytes a row together.
struct Chain {
  std::vector<Step> steps;
  int64_t local_row = 0;

  // A LOCAL matrix of `columns` numbers, padded to what a product reads.
  Matrix local(const Tier& tier, Dtype unit, int64_t columns);
  // The rows that `packed` reads, in a place of their own; and with a step that brings `x` there.
  Matrix input_of(const Tier& tier, const Packed& packed);
  Matrix take_in(const Tier& tier, const Packed& packed, const Matrix& x);
};

Step product(StepKind kind, const Matrix& in, const Packed& packed, const Matrix& out);
Step copy(const Matrix& in, const Matrix& out, int64_t width);

void run_chain(const Tier& tier, const Chain& chain, int64_t rows, int threads);

struct Layer {
  const Packed *qkv, *out, *up, *down;
  const float *attention_norm, *attention_norm_bias;  // after attention
  const float *mlp_norm, *mlp_norm_bias;              // after the feed-forward part
  const float *cos, *sin;                             // null without rope
  int64_t half;                                       // window, -1 for global
};

struct Encoder {
  std::vector<Layer> layers;
  int64_t T, W, H, D;
  bool pre_norm, gated;
  Activation activation;
  float eps;
  const void* x;  // (T, W), contiguous, as `out`
  void* out;
  Dtype dtype;
  const int32_t* cu_seqlens;
  const int64_t* columns;
  int32_t B;

  // `count` numbers as fp32, kept with the encoder; null stays null.
  const float* widened(const void* data, int64_t count, Dtype dtype);

 private:
  std::deque<std::vector<float>> kept_;
};

void run_encoder(const Tier& tier, const Encoder& encoder, int threads);

}  // namespace ef
