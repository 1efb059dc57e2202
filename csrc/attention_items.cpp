#include "attention_items.h"

#include <algorithm>

namespace ef {
namespace {

int64_t length_of(const Attention& call, int32_t b) { return call.cu_seqlens[b + 1] - call.cu_seqlens[b]; }

}  // namespace

int64_t longest_sequence(const Attention& call) {
  int64_t longest = 0;
  for (int32_t b = 0; b < call.B; b++) longest = std::max(longest, length_of(call, b));
  return longest;
}

std::vector<AttentionItem> attention_items(const Attention& call, int64_t queries) {
  std::vector<AttentionItem> items;
  for (int32_t b = 0; b < call.B; b++) {
    int64_t n = length_of(call, b), keys = call.half < 0 || call.half > n ? n : std::min(n, 2 * call.half + 1);
    for (int64_t first = 0; first < n; first += queries) {
      int64_t last = std::min(n, first + queries);
      for (int32_t h = 0; h < call.H; h++) items.push_back({b, h, first, last, (last - first) * keys});
    }
  }
  std::stable_sort(items.begin(), items.end(),
                   [](const AttentionItem& x, const AttentionItem& y) { return x.cost > y.cost; });
  return items;
}

int64_t queries_of_item(const Attention& call, int threads) {
  constexpr int64_t MOST = 512, LEAST = 64, ITEMS_A_THREAD = 4;
  int64_t tokens = call.cu_seqlens[call.B] - call.cu_seqlens[0], queries = MOST;
  while (queries > LEAST && tokens * call.H < ITEMS_A_THREAD * threads * queries) queries /= 2;
  return queries;
}

}  // namespace ef
