#include "packed.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "parallel.h"
#ifdef __linux__
#include <sys/mman.h>
#endif

namespace ef {

Buffer large_buffer(size_t bytes) {
  constexpr size_t HUGE_PAGE = size_t(2) << 20;
  size_t unit = bytes < HUGE_PAGE ? 64 : HUGE_PAGE, rounded = (bytes + unit - 1) / unit * unit;
  Buffer buffer(static_cast<char*>(std::aligned_alloc(unit, rounded ? rounded : unit)));
  if (!buffer) throw std::bad_alloc();
#ifdef __linux__
  if (unit == HUGE_PAGE) madvise(buffer.get(), rounded, MADV_HUGEPAGE);
#endif
  std::memset(buffer.get(), 0, rounded);
  return buffer;
}

namespace {

float number_at(const void* data, int64_t i, Dtype dtype) {
  if (dtype == FP32) return static_cast<const float*>(data)[i];
  uint32_t bits = uint32_t(static_cast<const uint16_t*>(data)[i]) << 16;
  float number;
  std::memcpy(&number, &bits, 4);
  return number;
}

// Calls f(number) for numbers of `source` in places that fall in all rows and columns. NaN is given as 0, so that it
// equals itself.
template <class Body>
void each_sample(const Source& source, const void* data, Body f) {
  int64_t count = std::min(source.N * source.K, Packed::SAMPLES);
  for (int64_t i = 0; i < count; i++) {
    int64_t n = i * source.N / count, k = (i * 37 + 11) % source.K;
    float x = number_at(data, n * source.n_stride + k * source.k_stride, source.dtype);
    f(x == x ? x : 0.0f);
  }
}

std::vector<float> sample_of(const Source& source, const void* data) {
  std::vector<float> numbers;
  each_sample(source, data, [&](float x) { numbers.push_back(x); });
  return numbers;
}

bool equals_sample(const std::vector<float>& sample, const Source& source, const void* data) {
  size_t i = 0;
  bool same = true;
  each_sample(source, data, [&](float x) { same &= x == sample[i++]; });
  return same;
}

Source row_of_bias(const Source& source) {
  Source bias = source;
  bias.K = 1, bias.n_stride = 1;
  return bias;
}

}  // namespace

std::vector<float> widened(const void* data, int64_t count, Dtype dtype) {
  std::vector<float> numbers(data ? count : 0);
  for (size_t i = 0; i < numbers.size(); i++) numbers[i] = number_at(data, i, dtype);
  return numbers;
}

bool Packed::fits(const void* data, const void* bias) const {
  if ((bias != nullptr) != (weight.bias != nullptr) || !equals_sample(sample_, source, data)) return false;
  return !bias || equals_sample(bias_sample_, row_of_bias(source), bias);
}

Packed::Packed(const Tier& which, const Source& from, Dtype unit, const void* bias, int threads)
    : tier(&which), source(from) {
  const ChainKernels& chain = which.chain;
  int64_t row_units = chain.row_units(unit, from.K), panels = chain.panels(&from), columns = panels * 64;
  units_ = large_buffer(size_t(columns) * row_units * 4);
  if (bias) bias_ = large_buffer(columns * 4);
  if (unit == INT8) scale_ = large_buffer(columns * 4), sums_ = large_buffer(columns * 4);
  auto floats = [](const Buffer& buffer) { return reinterpret_cast<const float*>(buffer.get()); };
  auto* sums = reinterpret_cast<const int32_t*>(sums_.get());
  weight = {units_.get(), floats(bias_), floats(scale_), sums, from.N, from.K, row_units, panels, unit};
  source.data = nullptr;
  fill(from.data, bias, threads);
}

void Packed::fill(const void* data, const void* bias, int threads) {
  Source from = source;
  from.data = data;
  std::vector<float> wide_bias = widened(bias, from.N, from.dtype);
  Stage stage;
  parallel(usable_threads(threads), *tier, [&](int) {
    stage.run(weight.panels, [&](int64_t panel) {
      tier->chain.pack(&from, &weight, bias ? wide_bias.data() : nullptr, panel, panel + 1);
    });
  });
  sample_ = sample_of(source, data);
  if (bias) bias_sample_ = sample_of(row_of_bias(source), bias);
}

}  // namespace ef
