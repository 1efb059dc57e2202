#include "rows.h"

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>

#include "parallel.h"
#include "sizes.h"

namespace ef {
namespace {

constexpr int64_t SMALL = 16384;     // numbers that one thread has done before another one would have come
constexpr int64_t BLOCK = 8192;      // numbers of one item
constexpr int64_t SUMMED_ROWS = 64;  // rows of one part of a sum over rows
constexpr int64_t COLUMNS = 128;     // of one item of work that goes by columns

// Stages of items on as many threads as `numbers` numbers are worth.
template <class... Stages>
void share(const Tier& tier, int64_t numbers, int threads, Stages... stages) {
  threads = numbers < SMALL ? 1 : usable_threads(threads);
  if (threads == 1) {
    auto alone = [](auto& stage) {
      for (int64_t i = 0; i < stage.items; i++) stage.body(i);
    };
    (alone(stages), ...);
    return;
  }
  parallel(threads, tier, [&](int) { (stages.stage.run(stages.items, stages.body), ...); });
}
template <class Body>
struct Shared {
  Shared(int64_t items, Body body) : items(items), body(body) {}
  Shared(const Shared& other) : items(other.items), body(other.body) {}
  int64_t items;
  Body body;
  Stage stage;
};

// f(first, last) for blocks of `size`.
template <class Body>
auto in_blocks(int64_t count, int64_t size, Body f) {
  return Shared(blocks(count, size), [=](int64_t i) { f(i * size, std::min(count, (i + 1) * size)); });
}

int64_t rows_of_a_block(int64_t W) { return std::max<int64_t>(1, BLOCK / std::max<int64_t>(1, W)); }

void check_index(const int64_t* index, int64_t T, int64_t rows) {
  for (int64_t t = 0; t < T; t++)
    if (index[t] < 0 || index[t] >= rows)
      throw std::out_of_range("index out of range: got " + std::to_string(index[t]) + " for token " +
                              std::to_string(t) + ", allowed are 0 to " + std::to_string(rows - 1));
}

void check_offsets(const int32_t* cu, int64_t B, int64_t T) {
  for (int64_t b = 0; b <= B; b++)
    if (cu[b] < (b ? cu[b - 1] : 0) || cu[b] > T)
      throw std::invalid_argument("cu_seqlens_B1: got " + std::to_string(cu[b]) + " at " + std::to_string(b) +
                                  ", allowed are numbers that never fall, from 0 to " + std::to_string(T));
}

}  // namespace

void norm_forward(const Tier& tier, const Norm& norm, int64_t T, int threads) {
  for (int64_t k = 0; k < norm.count; k++)
    if (norm.addends[k].index) check_index(norm.addends[k].index, T, norm.addends[k].rows);
  share(tier, T * norm.W, threads, in_blocks(T, rows_of_a_block(norm.W), [&](int64_t first, int64_t last) {
          tier.rows.norm(&norm, first, last);
        }));
}

void norm_backward(const Tier& tier, const NormBackward& norm, int64_t T, void* d_weight, void* d_bias, int threads) {
  int64_t W = norm.W, parts = blocks(T, SUMMED_ROWS);
  std::unique_ptr<float[]> sums(new float[2 * parts * W]);
  auto rows = in_blocks(T, SUMMED_ROWS, [&](int64_t first, int64_t last) {
    float* own = sums.get() + first / SUMMED_ROWS * 2 * W;
    tier.rows.norm_backward(&norm, first, last, d_weight ? own : nullptr, d_bias ? own + W : nullptr);
  });
  auto columns = in_blocks(W, COLUMNS, [&](int64_t first, int64_t last) {
    if (d_weight) tier.rows.sum_parts(sums.get(), parts, 2 * W, first, last, d_weight, norm.parameters);
    if (d_bias) tier.rows.sum_parts(sums.get() + W, parts, 2 * W, first, last, d_bias, norm.parameters);
  });
  share(tier, T * W, threads, rows, columns);
}

void rope(const Tier& tier, const Rope& rope, int64_t T, int threads) {
  int64_t width = 3 * rope.H * rope.D;
  share(tier, T * width, threads, in_blocks(T, rows_of_a_block(width), [&](int64_t first, int64_t last) {
          tier.rows.rope(&rope, first, last);
        }));
}

void table_gradient(const Tier& tier, TableGradient gradient, const int64_t* index, int64_t T, int64_t rows,
                    int64_t skipped, int threads) {
  // Counted and sorted by row of the table; the tokens of a row keep their order.
  std::vector<int64_t> starts(rows + 1), order(T);
  for (int64_t t = 0; t < T; t++) starts[index[t] + 1]++;
  std::vector<Readers> readers;
  for (int64_t row = 0; row < rows; row++) {
    int64_t count = starts[row + 1];
    starts[row + 1] += starts[row];
    if (count && row != skipped) readers.push_back({row, starts[row], starts[row + 1]});
  }
  for (int64_t t = 0; t < T; t++) order[starts[index[t]]++] = t;
  gradient.order = order.data();
  // Wide slices read memory better, narrow ones give every thread one.
  int64_t own = blocks(gradient.W, std::max(threads, 1));
  int64_t slice = std::clamp(blocks(own, 64) * 64, COLUMNS, TABLE_COLUMNS);
  share(tier, T * gradient.W, threads, in_blocks(gradient.W, slice, [&](int64_t first, int64_t last) {
          tier.rows.table_gradient(&gradient, readers.data(), int64_t(readers.size()), first, last);
        }));
}

namespace {

template <class Kernel>
void share_sequences(const Tier& tier, const Pool& pool, int64_t B, int64_t T, int threads, Kernel kernel) {
  int64_t slices = blocks(pool.W, COLUMNS);
  share(tier, T * pool.W, threads, in_blocks(B * slices, 1, [&](int64_t item, int64_t) {
          int64_t first = item % slices * COLUMNS;
          kernel(&pool, item / slices, first, std::min(pool.W, first + COLUMNS));
        }));
}

}  // namespace

void pool_forward(const Tier& tier, const Pool& pool, int64_t B, int64_t T, int threads) {
  check_offsets(pool.cu_seqlens, B, T);
  share_sequences(tier, pool, B, T, threads, tier.rows.pool);
}

void pool_backward(const Tier& tier, const Pool& pool, int64_t B, int64_t T, int threads) {
  check_offsets(pool.cu_seqlens, B, T);
  share_sequences(tier, pool, B, T, threads, tier.rows.pool_backward);
}

}  // namespace ef
