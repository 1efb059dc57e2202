// Python's door to the ops that pass once over rows. Pointers are integers, 0 for null: the Python side has checked
// shapes, dtypes and strides and keeps the tensors alive.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings.h"
#include "cpu/dispatch.h"
#include "rows.h"

namespace py = pybind11;

namespace ef {
namespace {

using Address = uintptr_t;
using Strided = std::pair<Address, int64_t>;                  // and numbers from row to row
using Rows = std::tuple<Address, int64_t, Address, int64_t>;  // an `Addend`

void add_norm_forward(const std::vector<Rows>& addends, Address s, Address y, Address mean, Address rstd,
                      Address weight, Address bias, int64_t T, int64_t W, float eps, int dtype, int parameters,
                      int threads) {
  Norm norm{};
  for (const auto& [data, stride, index, rows] : addends)
    norm.addends[norm.count++] = {pointer<void>(data), stride, pointer<int64_t>(index), rows};
  norm.s = pointer<void>(s), norm.y = pointer<void>(y);
  norm.mean = pointer<float>(mean), norm.rstd = pointer<float>(rstd);
  norm.weight = pointer<void>(weight), norm.bias = pointer<void>(bias);
  norm.W = W, norm.eps = eps, norm.dtype = Dtype(dtype), norm.parameters = Dtype(parameters);
  norm_forward(current_tier(), norm, T, threads);
}

void add_norm_backward(Strided d_y, Strided d_s, Strided s, Address mean, Address rstd, Address weight, Address d_x,
                       Address d_weight, Address d_bias, int64_t T, int64_t W, int dtype, int parameters, int threads) {
  NormBackward norm{};
  norm.d_y = pointer<void>(d_y.first), norm.d_y_stride = d_y.second;
  norm.d_s = pointer<void>(d_s.first), norm.d_s_stride = d_s.second;
  norm.s = pointer<void>(s.first), norm.s_stride = s.second;
  norm.mean = pointer<float>(mean), norm.rstd = pointer<float>(rstd), norm.weight = pointer<void>(weight);
  norm.d_x = pointer<void>(d_x), norm.W = W, norm.dtype = Dtype(dtype), norm.parameters = Dtype(parameters);
  norm_backward(current_tier(), norm, T, pointer<void>(d_weight), pointer<void>(d_bias), threads);
}

void turn(Address in, std::array<int64_t, 3> strides, Address out, Address cosine, Address sine, int64_t T, int64_t H,
          int64_t D, float sign, int dtype, int threads) {
  Rope call{pointer<void>(in), strides[0], strides[1], strides[2], pointer<void>(out), pointer<float>(cosine),
            pointer<float>(sine), H, D, sign, Dtype(dtype)};
  rope(current_tier(), call, T, threads);
}

void gather_backward(Address d, Address index, Address table, int64_t T, int64_t rows, int64_t W, int64_t skipped,
                     int dtype, int threads) {
  TableGradient gradient{pointer<void>(d), W, nullptr, pointer<void>(table), Dtype(dtype)};
  table_gradient(current_tier(), gradient, pointer<int64_t>(index), T, rows, skipped, threads);
}

Pool pool_of(Strided x, Address cu_seqlens, Address y, int64_t W, int mode, int dtype) {
  Pool pool{};
  pool.x = pointer<void>(x.first), pool.stride = x.second, pool.W = W;
  pool.cu_seqlens = pointer<int32_t>(cu_seqlens), pool.y = pointer<float>(y);
  pool.mode = PoolMode(mode), pool.dtype = Dtype(dtype);
  return pool;
}
void pool(Strided x, Address cu_seqlens, Address y, int64_t B, int64_t T, int64_t W, int mode, int dtype, int threads) {
  pool_forward(current_tier(), pool_of(x, cu_seqlens, y, W, mode, dtype), B, T, threads);
}
// x and y are read for the maximum only.
void pool_gradient(Strided x, Address cu_seqlens, Address y, int64_t B, int64_t T, int64_t W, int mode, int dtype,
                   Strided d_y, Address d_x, int threads) {
  Pool call = pool_of(x, cu_seqlens, y, W, mode, dtype);
  call.d_y = pointer<float>(d_y.first), call.d_y_stride = d_y.second, call.d_x = pointer<void>(d_x);
  pool_backward(current_tier(), call, B, T, threads);
}

}  // namespace

void bind_rows(py::module_& m) {
  using release = py::call_guard<py::gil_scoped_release>;
  m.def("add_norm", &add_norm_forward, release());
  m.def("add_norm_backward", &add_norm_backward, release());
  m.def("rope", &turn, release());
  m.def("gather_backward", &gather_backward, release());
  m.def("pool", &pool, release());
  m.def("pool_backward", &pool_gradient, release());
}

}  // namespace ef
