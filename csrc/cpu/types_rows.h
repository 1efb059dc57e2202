// Plain data of the ops that pass once over the rows of a batch. Included by types.h.
#pragma once

namespace ef {

// Rows of numbers; with `index`, row t is row index[t] of a table that has `rows` of them.
struct Addend {
  const void* data;
  int64_t stride;  // numbers from row to row
  const int64_t* index;
  int64_t rows;
};

// y = LayerNorm of the sum of up to three rows, which is rounded to `dtype` before it is normalised.
struct Norm {
  Addend addends[3];
  int64_t count;
  void *s, *y;         // (T, W); s may be null
  float *mean, *rstd;  // (T) for the backward, or null
  const void *weight, *bias;
  int64_t W;
  float eps;
  Dtype dtype, parameters;  // of rows; of weight and bias
};

// Gradients of the same call, from those of y and of s (null: none).
struct NormBackward {
  const void *d_y, *d_s, *s;
  int64_t d_y_stride, d_s_stride, s_stride;
  const float *mean, *rstd;
  const void* weight;
  void* d_x;  // (T, W), or null
  int64_t W;
  Dtype dtype, parameters;
};

// Rotary positions on the queries and keys of (T, 3, H, D); strides count numbers, `out` is contiguous.
struct Rope {
  const void* in;
  int64_t token_stride, part_stride, head_stride;
  void* out;
  const float *cos, *sin;  // (T, D / 2)
  int64_t H, D;
  float sign;  // -1 turns back
  Dtype dtype;
};

// The gradient of a table from those of the rows that were read of it.
struct TableGradient {
  const void* d;  // (T, W)
  int64_t W;
  const int64_t* order;  // tokens, those of one row of the table side by side
  void* table;           // (rows, W); only the rows of the given groups are written
  Dtype dtype;
};
constexpr int64_t TABLE_COLUMNS = 1024;  // at most, in one call
// Tokens order[first] to order[last - 1] read this row.
struct Readers {
  int64_t row, first, last;
};

enum PoolMode : int32_t { POOL_CLS, POOL_MEAN, POOL_MAX, POOL_WEIGHTED, POOL_LAST, POOL_MEAN_SQRT_LEN };

struct Pool {
  const void* x;
  int64_t stride, W;
  const int32_t* cu_seqlens;
  PoolMode mode;
  Dtype dtype;  // of x and d_x
  float* y;     // (B, W)
  const float* d_y;
  int64_t d_y_stride;
  void* d_x;  // (T, W): rows that the mode reads are written; for the gradient of the maximum, y is the forward's
};

// Rows or columns [first, last) each.
struct RowKernels {
  void (*norm)(const Norm*, int64_t first, int64_t last);
  // Writes the rows' part of the gradients of weight and bias, (W) each or null.
  void (*norm_backward)(const NormBackward*, int64_t first, int64_t last, float* d_weight, float* d_bias);
  // out = the sum of `count` rows that lie `stride` apart, by column.
  void (*sum_parts)(const float* parts, int64_t count, int64_t stride, int64_t first, int64_t last, void* out, Dtype);
  void (*rope)(const Rope*, int64_t first, int64_t last);
  void (*table_gradient)(const TableGradient*, const Readers*, int64_t groups, int64_t first, int64_t last);
  void (*pool)(const Pool*, int64_t b, int64_t first, int64_t last);
  void (*pool_backward)(const Pool*, int64_t b, int64_t first, int64_t last);
};

}  // namespace ef
