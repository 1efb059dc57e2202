#include "mlp.h"

namespace ef {
namespace {

Step active(const FeedForward& block, StepKind kind, const Matrix& in, const Matrix& h, const Matrix& out, int64_t F) {
  Step step = copy(in, out, F);
  step.kind = kind, step.also = h, step.activation = block.activation, step.gated = block.gated;
  step.dropout = block.dropout, step.seed = block.seed;
  return step;
}

// `h` where it is kept, else a place for the rows of one block, rounded alike.
Matrix up_result(Chain& chain, const FeedForward& block, const Packed& up, const Matrix& h) {
  return h.place == GLOBAL ? h : chain.local(*up.tier, block.dtype, up.weight.N);
}

}  // namespace

void mlp_forward(const FeedForward& block, const Packed& up, const Packed& down, const Matrix& x, const Matrix& h,
                 const Matrix& out, int64_t rows, int threads) {
  const Tier& tier = *up.tier;
  Chain chain;
  Matrix in = chain.take_in(tier, up, x), between = up_result(chain, block, up, h);
  chain.steps.push_back(product(PRODUCT, in, up, between));
  Matrix inner = chain.input_of(tier, down);
  chain.steps.push_back(active(block, ACTIVATED, between, {}, inner, down.weight.K));
  chain.steps.push_back(product(PRODUCT, inner, down, out));
  run_chain(tier, chain, rows, threads);
}

void mlp_backward(const FeedForward& block, const MlpGradient& g, int64_t rows, int threads) {
  const Packed& up = *g.up;
  const Tier& tier = *up.tier;
  int64_t F = g.down_turned->weight.N, width = up.weight.N;
  Chain chain;
  Matrix between = up_result(chain, block, up, g.h);
  if (between.place == LOCAL) {
    Matrix in = chain.take_in(tier, up, g.x);
    chain.steps.push_back(product(PRODUCT, in, up, between));
  }
  Matrix d_in = chain.take_in(tier, *g.down_turned, g.d_y), d_inner = chain.local(tier, FP32, F);
  chain.steps.push_back(product(PRODUCT, d_in, *g.down_turned, d_inner));
  if (g.inner.place) chain.steps.push_back(active(block, ACTIVATED, between, {}, g.inner, F));
  Matrix local = chain.local(tier, up.weight.dtype, width);
  chain.steps.push_back(active(block, SLOPED, d_inner, between, local, F));
  if (g.d_h.place) chain.steps.push_back(copy(local, g.d_h, width));
  if (g.d_x.place) chain.steps.push_back(product(PRODUCT, local, *g.up_turned, g.d_x));
  run_chain(tier, chain, rows, threads);
}

}  // namespace ef
