// Products whose operands both change from call to call: gradients of weights, and the vocabulary loss.
#pragma once
#include "cpu/types.h"

namespace ef {

// dW (N x K) = dY^T X and db = the column sums of dY.
struct WeightGradient {
  Source d_y, x;  // k counts tokens in both; rows n of d_y are outputs, columns n of x are inputs
  void* d_weight;  // (N, K), contiguous; null: not wanted
  Dtype dtype, compute;
  float* d_bias;  // (N), added to; or null
};
void weight_gradient(const Tier& tier, const WeightGradient& g, int threads);

struct VocabularyLoss {
  Source weight, x;  // words and tokens are n
  const float* bias;
  const int64_t* labels;  // arrays by token are padded to a multiple of 64
  float* kept;  // of the forward for the backward, V for each padded token; or null
  Dtype compute;
};
// Log-sum-exp, sum of the scores and score of the label of each token.
void vocabulary_scores(const Tier& tier, const VocabularyLoss& loss, float* lse, float* plain, float* of_label,
                       int threads);

// The parts of `ScoreGradients` by token, and results of the dtypes of their operands; null: not wanted.
struct VocabularyGradient {
  const float *lse, *slope, *flat, *hot;
  void *d_x, *d_weight;
  float* d_bias;
};
void vocabulary_gradient(const Tier& tier, const VocabularyLoss& loss, const VocabularyGradient& g, int threads);

}  // namespace ef
