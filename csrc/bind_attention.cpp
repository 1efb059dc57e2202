// Python's door to attention: pieces of the call are shared out among threads. Pointers are integers, as in
// bind_engine.cpp.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <vector>

#include "attention_items.h"
#include "bindings.h"
#include "cpu/dispatch.h"
#include "parallel.h"

namespace py = pybind11;

namespace ef {
namespace {

// Calls run(item, scratch) for each item; `scratch` is the thread's own.
template <class Run>
void share(const Tier& tier, const std::vector<AttentionItem>& items, size_t bytes, int threads, Run run) {
  static thread_local Arena arena;
  threads = std::max<int>(1, std::min<int64_t>(usable_threads(threads), items.size()));
  bytes = (bytes + 63) / 64 * 64;
  char* scratch = arena.at_least(bytes * threads);
  Stage stage;
  parallel(threads, tier, [&](int thread) {
    stage.run(items.size(), [&](int64_t i) { run(items[i], scratch + thread * bytes); });
  });
  arena.trim();
}

void forward(const Attention& a, int threads) {
  const Tier& tier = current_tier();
  share(tier, attention_items(a, queries_of_item(a, threads)), tier.attention.scratch(&a, longest_sequence(a)), threads,
        [&](const AttentionItem& p, void* scratch) { tier.attention.forward(&a, p.b, p.h, p.first, p.last, scratch); });
}

using Strides = std::array<int64_t, 2>;  // from token to token, and from head to head

void backward(const Attention& a, uintptr_t d_o, Strides d_o_strides, std::array<uintptr_t, 3> gradients,
              Strides strides, int threads) {
  AttentionBackward call{};
  call.forward = a;
  call.d_o = pointer<void>(d_o), call.d_o_token_stride = d_o_strides[0], call.d_o_head_stride = d_o_strides[1];
  call.d_q = pointer<void>(gradients[0]), call.d_k = pointer<void>(gradients[1]);
  call.d_v = pointer<void>(gradients[2]);
  call.d_token_stride = strides[0], call.d_head_stride = strides[1];
  const Tier& tier = current_tier();
  int64_t longest = longest_sequence(a);
  std::vector<AttentionItem> whole = attention_items(a, std::max<int64_t>(1, longest));
  share(tier, whole, tier.attention.backward_scratch(&call, longest), threads,
        [&](const AttentionItem& p, void* scratch) { tier.attention.backward(&call, p.b, p.h, scratch); });
}

Attention attention(std::array<uintptr_t, 3> qkv, Strides strides, std::array<int64_t, 2> heads, uintptr_t o,
                    Strides o_strides, std::array<uintptr_t, 2> lse, uintptr_t cu_seqlens, int32_t B, uintptr_t columns,
                    int64_t half, float scale, float dropout, uint64_t seed, int dtype, int compute) {
  Attention a{};
  a.q = pointer<void>(qkv[0]), a.k = pointer<void>(qkv[1]), a.v = pointer<void>(qkv[2]);
  a.token_stride = strides[0], a.head_stride = strides[1];
  a.H = int32_t(heads[0]), a.D = int32_t(heads[1]);
  a.o = pointer<void>(o), a.o_token_stride = o_strides[0], a.o_head_stride = o_strides[1];
  a.lse = pointer<float>(lse[0]), a.lse_rest = pointer<float>(lse[1]);
  a.cu_seqlens = pointer<int32_t>(cu_seqlens), a.B = B, a.columns = pointer<int64_t>(columns);
  a.half = half, a.scale = scale, a.dropout = dropout, a.seed = seed;
  a.dtype = Dtype(dtype), a.compute = Dtype(compute);
  return a;
}

}  // namespace

void bind_attention(py::module_& m) {
  using release = py::call_guard<py::gil_scoped_release>;
  py::class_<Attention>(m, "Attention", "One call of packed attention; the tensors that it names must outlive it.")
      .def(py::init(&attention), py::kw_only(), py::arg("qkv"), py::arg("strides"), py::arg("heads"), py::arg("o"),
           py::arg("o_strides"), py::arg("lse"), py::arg("cu_seqlens"), py::arg("B"), py::arg("columns"),
           py::arg("half"), py::arg("scale"), py::arg("dropout"), py::arg("seed"), py::arg("dtype"), py::arg("compute"))
      .def("forward", &forward, release())
      .def("backward", &backward, release());
}

}  // namespace ef
