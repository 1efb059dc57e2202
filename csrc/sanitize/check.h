// Random cases, numbers in both dtypes, and the comparison with the reference.
#pragma once
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "cpu/types.h"
#include "reference.h"

namespace ef::test {

struct Random {
  std::mt19937_64 engine;
  int64_t whole(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(engine); }
  bool chance(double p) { return std::bernoulli_distribution(p)(engine); }
  double normal() { return std::normal_distribution<double>()(engine); }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[whole(0, int64_t(values.size()) - 1)];
  }
};

// Numbers in exactly as much memory as they need, so that a sanitizer sees any step beyond it. NaN until set: what lies
// between the elements of a strided tensor must never be used.
class Numbers {
 public:
  Numbers(Dtype dtype, int64_t count)
      : dtype(dtype), count(count), bytes_(new char[size_t(count) * (dtype == BF16 ? 2 : 4)]) {
    for (int64_t i = 0; i < count; i++) set(i, std::numeric_limits<double>::quiet_NaN());
  }
  void* data() { return count ? bytes_.get() : nullptr; }
  void set(int64_t i, double x) {
    float f = float(x);
    if (dtype == FP32) {
      std::memcpy(&bytes_[4 * i], &f, 4);
      return;
    }
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    uint16_t half = x != x ? 0x7fc0 : uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    std::memcpy(&bytes_[2 * i], &half, 2);
  }
  double at(int64_t i) const {
    uint32_t bits = 0;
    uint16_t half;
    if (dtype == FP32) {
      std::memcpy(&bits, &bytes_[4 * i], 4);
    } else {
      std::memcpy(&half, &bytes_[2 * i], 2);
      bits = uint32_t(half) << 16;
    }
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
  }

  const Dtype dtype;
  const int64_t count;

 private:
  std::unique_ptr<char[]> bytes_;
};

// `scale` times standard normal numbers, as they are after rounding to the dtype.
inline Numbers normal_numbers(Random& random, Dtype dtype, int64_t count, double scale = 1) {
  Numbers numbers(dtype, count);
  for (int64_t i = 0; i < count; i++) numbers.set(i, scale * random.normal());
  return numbers;
}

// A matrix, sometimes with room between its rows.
struct RowsOf {
  Numbers numbers;
  Matrix matrix;
  int64_t rows, stride;

  RowsOf(Random& random, Dtype dtype, int64_t rows, int64_t columns)
      : RowsOf(dtype, rows, columns, columns + random.one_of<int64_t>({0, 0, 3})) {}
  RowsOf(Dtype dtype, int64_t rows, int64_t columns, int64_t stride)
      : numbers(dtype, rows == 0 ? 0 : (rows - 1) * stride + columns),
        matrix{static_cast<char*>(numbers.data()), stride * (dtype == BF16 ? 2 : 4), columns, dtype, GLOBAL},
        rows(rows), stride(stride) {}

  void fill(Random& random) {
    for (int64_t row = 0; row < rows; row++)
      for (int64_t i = 0; i < matrix.columns; i++) numbers.set(row * stride + i, random.normal());
  }
  Row values() const {
    Row all;
    for (int64_t row = 0; row < rows; row++)
      for (int64_t i = 0; i < matrix.columns; i++) all.push_back(numbers.at(row * stride + i));
    return all;
  }
  // For a matrix that was written: nobody may have touched what lies between its rows.
  void require_gaps(const std::string& what) const {
    for (int64_t i = 0; i < numbers.count; i++)
      if (i % stride >= matrix.columns && numbers.at(i) == numbers.at(i))
        throw std::runtime_error(what + ": written between two rows");
  }
};

// Scratch full of NaN, of exactly this size.
struct Scratch {
  explicit Scratch(size_t bytes) {
    if (posix_memalign(&data, 64, bytes ? bytes : 1)) throw std::bad_alloc();
    std::memset(data, 0xff, bytes);
  }
  ~Scratch() { std::free(data); }
  Scratch(const Scratch&) = delete;
  void* data;
};

// Error of each number against the largest of the reference (or 1, if all are smaller). This finds wrong code; the
// accuracy law is the business of the Python tests.
class Comparison {
 public:
  void see(double got, double want) {
    largest_ = std::max(largest_, std::fabs(want));
    if (!(std::fabs(got - want) <= worst_)) worst_ = std::isnan(got - want) ? HUGE_VAL : std::fabs(got - want);
  }
  void require(const std::string& what, double tolerance) const {
    double error = worst_ / std::max(1.0, largest_);
    if (error <= tolerance) return;
    throw std::runtime_error(what + ": error " + std::to_string(error) + ", allowed " + std::to_string(tolerance));
  }

 private:
  double largest_ = 0, worst_ = 0;
};

void fuzz_attention(Random& random, const Tier& tier, int threads);
void fuzz_chain(Random& random, const Tier& tier, int threads);
void fuzz_encoder(Random& random, const Tier& tier, int threads);
void fuzz_matmul(Random& random, const Tier& tier, int threads);
void fuzz_mlp(Random& random, const Tier& tier, int threads);
void fuzz_packs(Random& random, const Tier& tier, int threads);
void fuzz_rows(Random& random, const Tier& tier, int threads);

}  // namespace ef::test
