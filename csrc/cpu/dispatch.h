// Which tier's kernels run on this machine.
#pragma once
#include <string>
#include <vector>

#include "types.h"

namespace ef {

// The best tier of this machine, or the one that ENCODER_FAST_CPU_ISA names; looked up once, in the first call. Throws
// std::invalid_argument where the variable names none that can run.
const Tier& current_tier();

// Best first; `amx_emulated`, which is for tests, comes last.
std::vector<std::string> usable_tiers();

// Throws std::invalid_argument, naming the usable ones.
void use_tier(const std::string& name);

}  // namespace ef
