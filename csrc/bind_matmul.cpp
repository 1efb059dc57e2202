// Python's door to what only training and the vocabulary loss need. Pointers are integers, as in bind_engine.cpp.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>

#include "bindings.h"
#include "cpu/dispatch.h"
#include "matmul.h"
#include "mlp.h"
#include "sizes.h"

namespace py = pybind11;

namespace ef {
namespace {

using Rows = std::array<int64_t, 4>;     // address, rows, columns, distance of rows: numbers of a row lie side by side
using Strided = std::array<int64_t, 5>;  // address, rows, columns, and both strides

// Rows of a matrix as a product's n, its columns as k.
Source source_of(const Strided& m, Dtype dtype) {
  return {pointer<void>(m[0]), m[3], m[4], m[1], m[2], dtype, PLAIN, 0, 0};
}
Source columns_as_n(const Rows& m, Dtype dtype) {
  return {pointer<void>(m[0]), 1, m[3], m[2], m[1], dtype, PLAIN, 0, 0};
}
Matrix matrix_of(const Rows& m, Dtype dtype) {
  return {pointer<char>(m[0]), m[3] * size_of(dtype), m[2], dtype, m[0] ? GLOBAL : ABSENT};
}

void gradient_of_weight(const Rows& d_y, const Rows& x, int dtype, int compute, uintptr_t d_weight, uintptr_t d_bias,
                        int threads) {
  WeightGradient g{columns_as_n(d_y, Dtype(dtype)), columns_as_n(x, Dtype(dtype)), pointer<void>(d_weight),
                   Dtype(dtype), Dtype(compute), pointer<float>(d_bias)};
  weight_gradient(current_tier(), g, threads);
}

// `h` is the result of the up-projection: rows without an address are not kept.
void train_forward(const Packed& up, const Packed& down, bool gated, int activation, const Rows& x, const Rows& h,
                   const Rows& out, int dtype, float dropout, uint64_t seed, int threads) {
  FeedForward block{gated, Activation(activation), Dtype(dtype), dropout, seed};
  auto at = [&](const Rows& m) { return matrix_of(m, block.dtype); };
  mlp_forward(block, up, down, at(x), at(h), at(out), x[1], threads);
}

// An `MlpGradient`: rows without an address are not wanted.
void train_backward(const Packed& up, const Packed* up_turned, const Packed& down_turned, bool gated, int activation,
                    const Rows& x, const Rows& h, const Rows& d_y, const Rows& d_h, const Rows& inner, const Rows& d_x,
                    int dtype, float dropout, uint64_t seed, int threads) {
  FeedForward block{gated, Activation(activation), Dtype(dtype), dropout, seed};
  auto at = [&](const Rows& m) { return matrix_of(m, block.dtype); };
  MlpGradient g{&up, up_turned, &down_turned, at(x), at(h), at(d_y), at(d_h), at(inner), at(d_x)};
  mlp_backward(block, g, d_y[1], threads);
}

VocabularyLoss loss_of(const Strided& weight, uintptr_t bias, const Strided& x, uintptr_t labels, uintptr_t kept,
                       int dtype, int compute) {
  return {source_of(weight, Dtype(dtype)), source_of(x, Dtype(dtype)), pointer<float>(bias), pointer<int64_t>(labels),
          pointer<float>(kept), Dtype(compute)};
}

void scores_of_words(const Strided& weight, uintptr_t bias, const Strided& x, uintptr_t labels, uintptr_t kept,
                     int dtype, int compute, std::array<uintptr_t, 3> results, int threads) {
  vocabulary_scores(current_tier(), loss_of(weight, bias, x, labels, kept, dtype, compute), pointer<float>(results[0]),
                    pointer<float>(results[1]), pointer<float>(results[2]), threads);
}

// `by_token`: lse, slope, flat, hot of `ScoreGradients`; `results`: d_x, d_weight, d_bias.
void gradients_of_words(const Strided& weight, uintptr_t bias, const Strided& x, uintptr_t labels, uintptr_t kept,
                        int dtype, int compute, std::array<uintptr_t, 4> by_token, std::array<uintptr_t, 3> results,
                        int threads) {
  VocabularyGradient g{pointer<float>(by_token[0]), pointer<float>(by_token[1]), pointer<float>(by_token[2]),
                       pointer<float>(by_token[3]), pointer<void>(results[0]), pointer<void>(results[1]),
                       pointer<float>(results[2])};
  vocabulary_gradient(current_tier(), loss_of(weight, bias, x, labels, kept, dtype, compute), g, threads);
}

}  // namespace

void bind_matmul(py::module_& m) {
  using release = py::call_guard<py::gil_scoped_release>;
  m.def("gradient_of_weight", &gradient_of_weight, release());
  m.def("mlp_forward", &train_forward, release());
  m.def("mlp_backward", &train_backward, release());
  m.def("scores_of_words", &scores_of_words, release());
  m.def("gradients_of_words", &gradients_of_words, release());
}

}  // namespace ef
