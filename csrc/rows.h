// Ops that pass once over the rows of a batch. Sums over rows are made of fixed parts added in a fixed order, so no bit
// depends on the number of threads.
#pragma once
#include <vector>

#include "cpu/types.h"

namespace ef {

// Throws std::out_of_range where an index points outside its table.
void norm_forward(const Tier& tier, const Norm& norm, int64_t T, int threads);

// Gradients of the weight and the bias, of the parameters' dtype, or null.
void norm_backward(const Tier& tier, const NormBackward& norm, int64_t T, void* d_weight, void* d_bias, int threads);

void rope(const Tier& tier, const Rope& rope, int64_t T, int threads);

// `index` (T) says which row of the table token t read; those of row `skipped` count for nothing. Rows that nobody read
// are not written.
void table_gradient(const Tier& tier, TableGradient gradient, const int64_t* index, int64_t T, int64_t rows,
                    int64_t skipped, int threads);

// Throw std::invalid_argument where offsets fall or leave 0 to T.
void pool_forward(const Tier& tier, const Pool& pool, int64_t B, int64_t T, int threads);
// The backward leaves alone the rows of d_x that nobody read.
void pool_backward(const Tier& tier, const Pool& pool, int64_t B, int64_t T, int threads);

}  // namespace ef
