// Plain data of the products that only training and the vocabulary loss need. Included by types.h.
#pragma once

namespace ef {

// C (M x N) = A B, one part of K after the other: the first part begins the sums, the last one writes the result.
struct Multiply {
  const void *a, *b;          // rows of units; panels of 64 columns, [panel][units][64]
  int64_t a_row, units, N;    // units from row to row of A; columns beyond N are padding
  float* sums;                // (M, N) fp32; may be `out`
  void* out;                  // (M, N)
  Dtype out_dtype, unit;
  bool first, last;
};

// Scores of words: z^T (V x tokens) = W x^T + b, in panels of 64 tokens; arrays by token are padded to whole panels.
struct Vocabulary {
  Source weight;          // its rows N are the words
  const float* bias;      // (V), or null
  const void* x;          // packed panels of tokens
  int64_t tokens, units;  // units along the width
  Dtype unit;
  const int64_t* labels;  // -1 for padding
  float* kept;            // (V, padded tokens): the scores, written by the forward and read by the backward; or null
};

// Of a block of words, by token.
struct Scores {
  float *largest, *total;  // and the sum of exp(z - largest)
  float* plain;            // sum of z
  float* of_label;         // z of the label, where the block has it
};

// dz = p * slope + flat, + hot at the label; p = exp(z - lse).
struct ScoreGradients {
  const float *lse, *slope, *flat, *hot;  // by token; 0 for padding, but lse
  void* d;       // (words of the block, padded tokens), numbers of the unit
  float* d_bias; // (words of the block), added to; or null
};

struct MatmulKernels {
  // Rows [first, last) of A (`source`: element (n, k) is in row n) as units; with `sums`, adds the sum of each row.
  void (*pack_rows)(const Source*, Dtype unit, int64_t row_units, int64_t first, int64_t last, void* to, float* sums);
  // Rows [first, last), at most WORDS of them, and panels [panel, panel_end) of C.
  void (*multiply)(const Multiply*, int64_t first, int64_t last, int64_t panel, int64_t panel_end);
  // Words [first, last), at most WORDS of them, for all tokens. Scratch as `words_scratch` says.
  size_t (*words_scratch)(const Vocabulary*);
  void (*words_forward)(const Vocabulary*, int64_t first, int64_t last, const Scores*, void* scratch);
  void (*words_backward)(const Vocabulary*, int64_t first, int64_t last, const ScoreGradients*, void* scratch);
};

constexpr int64_t WORDS = 96;

}  // namespace ef
