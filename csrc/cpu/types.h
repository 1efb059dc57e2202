// Plain data that crosses from the baseline files to the ISA tiers. No STL here: a tier is compiled with flags that the
// machine may not have, and an inline library function compiled there could replace the baseline's copy at link time.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace ef {

// BY_3 is for products only: fp32 numbers, in memory as FP32, multiplied by three bf16 products each, on tiles.
enum Dtype : int32_t { FP32 = 0, BF16 = 1, INT8 = 2, BY_3 = 3 };

// ------------------------------------------------------------------------------------------- attention

// One packed attention call. The D numbers of a head lie side by side; strides count numbers.
struct Attention {
  const void *q, *k, *v;  // element (token, head, d) of each at token * token_stride + head * head_stride + d
  int64_t token_stride, head_stride;
  void* o;                    // the same for the output, with strides of its own
  int64_t o_token_stride, o_head_stride;
  float* lse;                 // (T, H), natural log-sum-exp of the scaled scores, or null
  float* lse_rest;            // (T, H), what rounding took from lse, for the backward, or null
  const int32_t* cu_seqlens;  // (B + 1)
  const int64_t* columns;     // (T), ascending in each sequence; null: the index in the sequence
  int32_t B, H, D;
  int64_t half;  // window half-width in columns, -1 for global
  float scale;
  float dropout;  // share of probabilities dropped
  uint64_t seed;
  Dtype dtype;    // of q, k, v and o
  Dtype compute;  // BF16, BY_3: how to multiply fp32 numbers, where the tier can
};

// Gradients of the same call; `forward.o` and `forward.lse` are its results. d_q, d_k, d_v have the dtype and one set
// of strides; every element is written.
struct AttentionBackward {
  Attention forward;
  const void* d_o;
  int64_t d_o_token_stride, d_o_head_stride;
  void *d_q, *d_k, *d_v;
  int64_t d_token_stride, d_head_stride;
};

struct AttentionKernels {
  // Bytes of scratch that one thread needs for sequences up to `longest` tokens.
  size_t (*scratch)(const Attention*, int64_t longest);
  // Queries [first, last) of one sequence and head. Nothing is kept in scratch from call to call.
  void (*forward)(const Attention*, int32_t b, int32_t h, int64_t first, int64_t last, void* scratch);
  size_t (*backward_scratch)(const AttentionBackward*, int64_t longest);
  void (*backward)(const AttentionBackward*, int32_t b, int32_t h, void* scratch);
};

// ------------------------------------------------------------------------------------------- chains of row steps

enum Place : int32_t { ABSENT = 0, GLOBAL = 1, LOCAL = 2 };

// Rows of numbers. A LOCAL matrix has its place in each thread's scratch and holds the rows of one block.
struct Matrix {
  char* data;       // LOCAL: bytes of a row in the matrices that lie before it
  int64_t stride;   // bytes from row to row
  int64_t columns;  // numbers of a row that are written; those beyond a result's width become zero
  Dtype dtype;
  Place place;
};

// How packed columns lie: as in the matrix, or in pairs of groups of lanes [first half | second half], so that a tile
// holds both numbers of a rotary pair, or an activation and its gate.
enum Order : int32_t { PLAIN, HALVES_OF_HEADS, HALVES_OF_ALL };

// A matrix (N x K) to pack: element (n, k) at n * n_stride + k * k_stride, numbers.
struct Source {
  const void* data;
  int64_t n_stride, k_stride, N, K;
  Dtype dtype;
  Order order;
  int64_t head, rotated;  // HALVES_OF_HEADS: head width, and the columns (from 0) that come in pairs
};

// B (K x N) for `product`: panels of 64 columns, [panel][K in units][64].
struct Weight {
  const void* units;
  const float* bias;    // one for each packed column, zero for padding; null without
  const float* scale;   // INT8: one for each packed column
  const int32_t* sums;  // INT8: sum over K of each packed column
  int64_t N, K;         // numbers, without padding
  int64_t row_units;    // units along K, with padding
  int64_t panels;
  Dtype dtype;          // of the units
};

enum Activation : int32_t { NONE, GELU, GELU_TANH, RELU, SILU, TANH };

enum StepKind : int32_t {
  COPY,       // in -> out, in another dtype
  PRODUCT,    // in x weight + bias -> activation -> out
  GATED,      // the same, out = act(first half) * second half
  ROTATED,    // in x weight + bias -> out, the first `rotated` columns turned by the rope tables
  ADDED,      // in x weight + bias, added to out, which is fp32
  TURNED,     // rope on the first `rotated` columns of out, in place, for heads that ROTATED cannot turn
  NORMALISED, // LayerNorm of in (fp32), to out and to `also`
  ACTIVATED,  // act(in), times the other half of in where `gated`, then dropout -> out
  SLOPED      // gradient of ACTIVATED: in is that of its result (fp32), also is its input -> out
};

struct Step {
  StepKind kind;
  Matrix in, out, also;
  Weight weight;
  Activation activation;
  const float *cos, *sin;  // (T, head / 2)
  int64_t rotated, head;   // columns that rope turns; head width
  const float *norm_weight, *norm_bias;
  float eps;
  int64_t width;  // numbers in a row of `in`, of the result of ACTIVATED
  bool gated;     // ACTIVATED, SLOPED
  float dropout;
  uint64_t seed;
};

// Rows [first, last) of the batch, panels [panel, panel_end) of a product. LOCAL matrices begin with row `origin`
// and have room for `height` rows.
struct Block {
  int64_t first, last, panel, panel_end, origin, height;
  char* scratch;
};

struct ChainKernels {
  int64_t tile_rows;           // rows that a product takes together
  Dtype (*unit_dtype)(Dtype);  // what numbers of this dtype are computed in
  int64_t (*row_units)(Dtype unit, int64_t K);
  int64_t (*panels)(const Source*);
  // Writes panels [first, last) of `source` to the weight's arrays, which have room for all.
  void (*pack)(const Source*, const Weight*, const float* bias, int64_t first, int64_t last);
  int32_t int8;  // are there int8 products?
  int32_t (*pairs)(int64_t head);  // can ROTATED turn heads of this width?
  void (*run)(const Step*, const Block*);
};

}  // namespace ef
#include "types_matmul.h"
#include "types_rows.h"
namespace ef {

// ------------------------------------------------------------------------------------------- tiers

struct Tier {
  const char* name;
  void (*enter)();  // by each thread, before its first kernel
  void (*leave)();
  AttentionKernels attention;
  ChainKernels chain;
  MatmulKernels matmul;
  RowKernels rows;
};

}  // namespace ef
