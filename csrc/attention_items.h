// The pieces that one attention call is shared out in.
#pragma once
#include <vector>

#include "cpu/types.h"

namespace ef {

struct AttentionItem {
  int32_t b, h;
  int64_t first, last;  // queries
  int64_t cost;         // in pairs of a query and a key
};

int64_t longest_sequence(const Attention& call);

// Each sequence and head in pieces of up to `queries`, the most work first, so that no thread is left with a long one
// at the end.
std::vector<AttentionItem> attention_items(const Attention& call, int64_t queries);

// How many queries a piece has, a multiple of the kernels' blocks of 64: many, since each piece packs the keys that it
// sees, unless threads would be left without work.
int64_t queries_of_item(const Attention& call, int threads);

}  // namespace ef
