// A weight in the layout of one tier.
#pragma once
#include <cstdlib>
#include <memory>
#include <vector>

#include "cpu/types.h"

namespace ef {

struct Free {
  void operator()(void* p) const { std::free(p); }
};
using Buffer = std::unique_ptr<char, Free>;

// Zeroed, on 2 MB pages where the system has them to give: 3 to 6 % of a product's time.
Buffer large_buffer(size_t bytes);

// `count` numbers of fp32 or bf16 as fp32; empty for null.
std::vector<float> widened(const void* data, int64_t count, Dtype dtype);

struct Packed {
  // `bias` has N numbers of the dtype of the source, or is null.
  // `unit` is what products are computed in: `tier.chain.unit_dtype(source.dtype)` or INT8.
  Packed(const Tier& tier, const Source& source, Dtype unit, const void* bias, int threads);

  // Are about SAMPLES numbers of the weight and of its bias what they were? A write through torch's `.data` leaves no
  // other trace.
  bool fits(const void* weight, const void* bias) const;

  // Takes in the numbers of a weight of the same shape, strides and dtype, with a bias if there was one: in the memory
  // that is there, since new pages take longer than the packing. No call may be using this pack.
  void fill(const void* weight, const void* bias, int threads);

  static constexpr int64_t SAMPLES = 16;  // each read takes a trip to memory: in 88 weights, 100 us
  const Tier* tier;
  Source source;  // without its data
  Weight weight;

 private:
  Buffer units_, bias_, scale_, sums_;
  std::vector<float> sample_, bias_sample_;
};

}  // namespace ef
