// Attention and the row-wise operations of an encoder in double precision, as plainly as they can be written.
#pragma once
#include <vector>

#include "cpu/types.h"

namespace ef::test {

using Row = std::vector<double>;

struct Sequences {
  std::vector<int32_t> cu;       // (B + 1)
  std::vector<int64_t> columns;  // (T); empty: the index in the sequence
  int64_t T() const { return cu.back(); }
  int32_t B() const { return int32_t(cu.size()) - 1; }
  int64_t column(int32_t b, int64_t i) const { return columns.empty() ? i : columns[cu[b] + i]; }
};

// One sequence and head; q, k, v and the results are (n, D), lse is (n).
struct HeadProblem {
  int64_t n, D;
  Row q, k, v, columns;
  double half, scale;
};
void attention_reference(const HeadProblem& problem, Row& o, Row& lse);
void attention_gradients(const HeadProblem& problem, const Row& d_o, Row& d_q, Row& d_k, Row& d_v);

double activation_reference(Activation activation, double x);
// (rows, K) times (N, K) transposed, plus bias (N) or nothing.
Row linear_reference(const Row& x, const Row& weight, const Row& bias, int64_t K, int64_t N);
// act(first half) * second half, or act.
Row activated_reference(const Row& x, int64_t N, Activation activation, bool gated);
Row norm_reference(const Row& x, const Row& weight, const Row& bias, double eps);

}  // namespace ef::test
