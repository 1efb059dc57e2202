// Small sums over sizes.
#pragma once
#include "cpu/types.h"

namespace ef {

inline int64_t up_to(int64_t x, int64_t step) { return (x + step - 1) / step * step; }
inline int64_t blocks(int64_t count, int64_t size) { return (count + size - 1) / size; }
// Bytes of a number; of int8 units, which are counted in bytes, nobody asks.
inline int64_t size_of(Dtype dtype) { return dtype == BF16 ? 2 : 4; }

}  // namespace ef
