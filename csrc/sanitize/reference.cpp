#include "reference.h"

#include <algorithm>
#include <cmath>

namespace ef::test {
namespace {

// Probabilities (n, n), 0 where a key is out of sight; and the log-sum-exp of each row.
Row probabilities(const HeadProblem& p, Row& lse) {
  Row result(p.n * p.n);
  lse.assign(p.n, 0);
  for (int64_t i = 0; i < p.n; i++) {
    double sum = 0;
    for (int64_t j = 0; j < p.n; j++) {
      if (std::fabs(p.columns[i] - p.columns[j]) > p.half) continue;
      double score = 0;
      for (int64_t d = 0; d < p.D; d++) score += p.q[i * p.D + d] * p.k[j * p.D + d];
      sum += result[i * p.n + j] = std::exp(score * p.scale);
    }
    for (int64_t j = 0; j < p.n; j++) result[i * p.n + j] /= sum;
    lse[i] = std::log(sum);
  }
  return result;
}

}  // namespace

void attention_reference(const HeadProblem& p, Row& o, Row& lse) {
  Row weights = probabilities(p, lse);
  o.assign(p.n * p.D, 0);
  for (int64_t i = 0; i < p.n; i++)
    for (int64_t j = 0; j < p.n; j++)
      for (int64_t d = 0; d < p.D; d++) o[i * p.D + d] += weights[i * p.n + j] * p.v[j * p.D + d];
}

void attention_gradients(const HeadProblem& p, const Row& d_o, Row& d_q, Row& d_k, Row& d_v) {
  Row lse, weights = probabilities(p, lse), d_weights(p.n);
  d_q.assign(p.n * p.D, 0), d_k = d_v = d_q;
  for (int64_t i = 0; i < p.n; i++) {
    double mean = 0;
    for (int64_t j = 0; j < p.n; j++) {
      d_weights[j] = 0;
      for (int64_t d = 0; d < p.D; d++) {
        d_weights[j] += d_o[i * p.D + d] * p.v[j * p.D + d];
        d_v[j * p.D + d] += weights[i * p.n + j] * d_o[i * p.D + d];
      }
      mean += weights[i * p.n + j] * d_weights[j];
    }
    for (int64_t j = 0; j < p.n; j++) {
      double d_score = weights[i * p.n + j] * (d_weights[j] - mean) * p.scale;
      for (int64_t d = 0; d < p.D; d++) {
        d_q[i * p.D + d] += d_score * p.k[j * p.D + d];
        d_k[j * p.D + d] += d_score * p.q[i * p.D + d];
      }
    }
  }
}

double activation_reference(Activation activation, double x) {
  switch (activation) {
    case GELU: return x * 0.5 * std::erfc(-x / std::sqrt(2.0));
    case GELU_TANH: return x * 0.5 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case RELU: return std::max(x, 0.0);
    case SILU: return x / (1 + std::exp(-x));
    case TANH: return std::tanh(x);
    default: return x;
  }
}

Row linear_reference(const Row& x, const Row& weight, const Row& bias, int64_t K, int64_t N) {
  int64_t rows = x.size() / K;
  Row out(rows * N);
  for (int64_t row = 0; row < rows; row++)
    for (int64_t n = 0; n < N; n++) {
      double sum = bias.empty() ? 0 : bias[n];
      for (int64_t k = 0; k < K; k++) sum += x[row * K + k] * weight[n * K + k];
      out[row * N + n] = sum;
    }
  return out;
}

Row activated_reference(const Row& x, int64_t N, Activation activation, bool gated) {
  int64_t width = gated ? N / 2 : N, rows = x.size() / N;
  Row out(rows * width);
  for (int64_t row = 0; row < rows; row++)
    for (int64_t i = 0; i < width; i++) {
      double gate = gated ? x[row * N + width + i] : 1;
      out[row * width + i] = activation_reference(activation, x[row * N + i]) * gate;
    }
  return out;
}

Row norm_reference(const Row& x, const Row& weight, const Row& bias, double eps) {
  int64_t W = weight.size(), rows = x.size() / W;
  Row out(x.size());
  for (int64_t row = 0; row < rows; row++) {
    const double* from = &x[row * W];
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < W; i++) mean += from[i] / W;
    for (int64_t i = 0; i < W; i++) variance += (from[i] - mean) * (from[i] - mean) / W;
    for (int64_t i = 0; i < W; i++)
      out[row * W + i] = (from[i] - mean) / std::sqrt(variance + eps) * weight[i] + (bias.empty() ? 0 : bias[i]);
  }
  return out;
}

}  // namespace ef::test
