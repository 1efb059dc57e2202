// Python's door to packed weights, linear layers, feed-forward blocks and whole encoders. Pointers are integers: the
// Python side has checked shapes, dtypes and strides and keeps the tensors alive.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <stdexcept>
#include <string>

#include "bindings.h"
#include "cpu/dispatch.h"
#include "engine.h"
#include "sizes.h"

namespace py = pybind11;

namespace ef {
namespace {

Matrix rows_at(uintptr_t address, int64_t columns, int64_t stride, Dtype dtype) {
  return {pointer<char>(address), stride * size_of(dtype), columns, dtype, GLOBAL};
}

std::unique_ptr<Packed> pack(uintptr_t weight, int64_t N, int64_t K, int64_t n_stride, int64_t k_stride, int dtype,
                             uintptr_t bias, int order, int64_t head, int64_t rotated, int compute, int threads) {
  Source source{pointer<void>(weight), n_stride, k_stride, N, K, Dtype(dtype), Order(order), head, rotated};
  const Tier& tier = current_tier();
  if (source.order == HALVES_OF_HEADS && !tier.chain.pairs(head)) source.order = PLAIN;
  if (compute == INT8 && !tier.chain.int8)
    throw std::invalid_argument(std::string("precision: got 'int8', but tier ") + tier.name + " has no int8 products");
  Dtype unit = compute == INT8 ? INT8 : tier.chain.unit_dtype(Dtype(compute));
  return std::make_unique<Packed>(tier, source, unit, pointer<void>(bias), threads);
}

void linear(const Packed& packed, uintptr_t x, int64_t x_stride, uintptr_t out, int64_t out_stride, int dtype,
            int64_t rows, int threads) {
  Chain chain;
  const Tier& tier = *packed.tier;
  Matrix in = chain.take_in(tier, packed, rows_at(x, packed.weight.K, x_stride, Dtype(dtype)));
  Matrix to = rows_at(out, packed.weight.N, out_stride, Dtype(dtype));
  chain.steps.push_back(product(PRODUCT, in, packed, to));
  run_chain(tier, chain, rows, threads);
}

void mlp(const Packed& up, const Packed& down, bool gated, int activation, uintptr_t x, int64_t x_stride, uintptr_t out,
         int64_t out_stride, int dtype, int64_t rows, int threads) {
  Chain chain;
  const Tier& tier = *up.tier;
  Matrix in = chain.take_in(tier, up, rows_at(x, up.weight.K, x_stride, Dtype(dtype)));
  Matrix inner = chain.input_of(tier, down);
  chain.steps.push_back(product(gated ? GATED : PRODUCT, in, up, inner));
  chain.steps.back().activation = Activation(activation);
  Matrix to = rows_at(out, down.weight.N, out_stride, Dtype(dtype));
  chain.steps.push_back(product(PRODUCT, inner, down, to));
  run_chain(tier, chain, rows, threads);
}

// The layers of one model, which a forward is given its tokens for.
struct Stack {
  struct Part {
    std::array<const Packed*, 4> weights;  // qkv, out, up, down
    std::array<uintptr_t, 8> places;       // of those weights and biases
    std::array<uintptr_t, 4> norms;        // weight and bias after attention, then after the feed-forward part
    int rope;                              // which pair of tables, -1 for none
    int64_t half;
  };
  int64_t W, H;
  bool pre_norm, gated;
  Activation activation;
  float eps;
  Dtype dtype;
  std::vector<Part> parts;

  bool fits() const {
    for (const Part& part : parts)
      for (int i = 0; i < 4; i++) {
        const uintptr_t* at = &part.places[2 * i];
        if (!part.weights[i]->fits(pointer<void>(at[0]), pointer<void>(at[1]))) return false;
      }
    return true;
  }
};

Stack stack(int64_t W, int64_t H, bool pre_norm, bool gated, int activation, float eps, int dtype) {
  return {W, H, pre_norm, gated, Activation(activation), eps, Dtype(dtype), {}};
}

void add_layer(Stack& s, const Packed& qkv, const Packed& out, const Packed& up, const Packed& down,
               std::array<uintptr_t, 8> places, std::array<uintptr_t, 4> norms, int rope, int64_t half) {
  s.parts.push_back({{&qkv, &out, &up, &down}, places, norms, rope, half});
}

// `ropes`: addresses of cos and sin, (T, D / 2), of each pair of tables.
void run(const Stack& s, int64_t T, uintptr_t x, uintptr_t out, uintptr_t cu_seqlens, int32_t B, uintptr_t columns,
         const std::vector<std::array<uintptr_t, 2>>& ropes, int threads) {
  Encoder e{};
  e.T = T, e.W = s.W, e.H = s.H, e.D = s.W / s.H, e.pre_norm = s.pre_norm, e.gated = s.gated;
  e.activation = s.activation, e.eps = s.eps, e.x = pointer<void>(x), e.out = pointer<void>(out), e.dtype = s.dtype;
  e.cu_seqlens = pointer<int32_t>(cu_seqlens), e.B = B, e.columns = pointer<int64_t>(columns);
  for (const Stack::Part& part : s.parts) {
    const float* norms[4];
    for (int i = 0; i < 4; i++) norms[i] = e.widened(pointer<void>(part.norms[i]), s.W, s.dtype);
    std::array<uintptr_t, 2> rope = part.rope < 0 ? std::array<uintptr_t, 2>{0, 0} : ropes.at(part.rope);
    const auto& w = part.weights;
    e.layers.push_back({w[0], w[1], w[2], w[3], norms[0], norms[1], norms[2], norms[3], pointer<float>(rope[0]),
                        pointer<float>(rope[1]), part.half});
  }
  run_encoder(*s.parts.at(0).weights[0]->tier, e, threads);
}

}  // namespace

void bind_engine(py::module_& m) {
  using release = py::call_guard<py::gil_scoped_release>;
  py::class_<Packed>(m, "Packed", "A weight in the layout of one tier.")
      .def_property_readonly("tier", [](const Packed& p) { return p.tier->name; })
      .def("fits",
           [](const Packed& p, uintptr_t weight, uintptr_t bias) {
             return p.fits(pointer<void>(weight), pointer<void>(bias));
           })
      .def("fill",
           [](Packed& p, uintptr_t weight, uintptr_t bias, int threads) {
             p.fill(pointer<void>(weight), pointer<void>(bias), threads);
           },
           release());
  m.def("has_by_3", [] { return current_tier().chain.unit_dtype(BY_3) == BY_3; },
        "Does the tier in use multiply fp32 numbers by three bf16 products?");
  m.def("has_int8", [] { return current_tier().chain.int8 != 0; }, "Has the tier in use int8 products?");
  m.def("pack", &pack, release());
  m.def("linear", &linear, release());
  m.def("mlp", &mlp, release());
  py::class_<Stack>(m, "Stack", "The layers of one model.")
      .def(py::init(&stack))
      .def("add_layer", &add_layer, py::keep_alive<1, 2>(), py::keep_alive<1, 3>(), py::keep_alive<1, 4>(),
           py::keep_alive<1, 5>())
      .def("fits", &Stack::fits)
      .def("run", &run, release());
}

}  // namespace ef
