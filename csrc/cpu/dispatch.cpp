#include "dispatch.h"

#include <atomic>
#include <cstdlib>
#include <stdexcept>
#ifdef __x86_64__
#include <cpuid.h>
#endif
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

extern "C" {
const ef::Tier* ef_tier_amx_bf16();
const ef::Tier* ef_tier_avx512_bf16();
const ef::Tier* ef_tier_avx512();
const ef::Tier* ef_tier_avx2();
const ef::Tier* ef_tier_generic();
const ef::Tier* ef_tier_amx_emulated();
}

namespace ef {
namespace {

#ifdef __x86_64__
// What the processor can do and the system saves on a switch of threads. A processor may have registers that the system
// does not know: using them would lose numbers.
struct Machine {
  bool avx2 = false, avx512 = false, avx512_bf16 = false, amx = false;

  Machine() {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !bit(c, 27)) return;  // 27: the system uses XSAVE, so XGETBV is there
    bool fma = bit(c, 12) && bit(c, 28);
    uint64_t saved = saved_state();
    if (!fma || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
    avx2 = bit(b, 5) && has(saved, 0x6);                                                        // SSE, AVX
    avx512 = avx2 && bit(b, 16) && bit(b, 17) && bit(b, 30) && bit(b, 31) && has(saved, 0xe6);  // F, DQ, BW, VL
    bool vnni = bit(c, 11), tiles = bit(d, 22) && bit(d, 24) && bit(d, 25) && has(saved, 0x60000);
    if (a < 1 || !__get_cpuid_count(7, 1, &a, &b, &c, &d)) return;
    avx512_bf16 = avx512 && vnni && bit(a, 5);
    amx = avx512_bf16 && tiles;
  }

  static bool bit(unsigned word, int i) { return word >> i & 1; }
  static bool has(uint64_t word, uint64_t mask) { return (word & mask) == mask; }
  static uint64_t saved_state() {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return uint64_t(high) << 32 | low;
  }
};

[[maybe_unused]] const Machine& machine() {
  static const Machine found;
  return found;
}

// Linux saves tiles only for processes that asked: a tile instruction before that is an illegal one.
[[maybe_unused]] bool system_allows_tiles() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  constexpr int REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
  static const bool allowed = syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
  return allowed;
#else
  return false;
#endif
}
#endif

struct Candidate {
  const char* name;
  const Tier* (*tier)();
  bool (*runs_here)();
  bool chosen_by_itself = true;
};

// Best first.
const Candidate CANDIDATES[] = {
#ifdef EF_TIER_AMX_BF16
    {"amx_bf16", ef_tier_amx_bf16, [] { return machine().amx && system_allows_tiles(); }},
#endif
#ifdef EF_TIER_AVX512_BF16
    {"avx512_bf16", ef_tier_avx512_bf16, [] { return machine().avx512_bf16; }},
#endif
#ifdef EF_TIER_AVX512
    {"avx512", ef_tier_avx512, [] { return machine().avx512; }},
#endif
#ifdef EF_TIER_AVX2
    {"avx2", ef_tier_avx2, [] { return machine().avx2; }},
#endif
    {"generic", ef_tier_generic, [] { return true; }},
#ifdef EF_TIER_AMX_EMULATED
    {"amx_emulated", ef_tier_amx_emulated, [] { return machine().avx512_bf16; }, false},
#endif
};

const Tier* named(const std::string& name, const char* what) {
  for (const Candidate& c : CANDIDATES)
    if (name == c.name && c.runs_here()) return c.tier();
  std::string allowed;
  for (const std::string& usable : usable_tiers()) allowed += (allowed.empty() ? "'" : ", '") + usable + "'";
  throw std::invalid_argument(std::string(what) + ": got '" + name + "', this machine can run " + allowed);
}

const Tier* first_choice() {
  const char* wanted = std::getenv("ENCODER_FAST_CPU_ISA");
  if (wanted && *wanted) return named(wanted, "ENCODER_FAST_CPU_ISA");
  for (const Candidate& c : CANDIDATES)
    if (c.chosen_by_itself && c.runs_here()) return c.tier();
  std::abort();  // `generic` always runs
}

std::atomic<const Tier*> in_use{nullptr};

}  // namespace

const Tier& current_tier() {
  const Tier* tier = in_use.load(std::memory_order_acquire);
  if (!tier) {
    const Tier* first = first_choice();
    // Another thread may have called use_tier meanwhile: its choice holds.
    tier = in_use.compare_exchange_strong(tier, first, std::memory_order_acq_rel) ? first : tier;
  }
  return *tier;
}

std::vector<std::string> usable_tiers() {
  std::vector<std::string> names;
  for (const Candidate& c : CANDIDATES)
    if (c.runs_here()) names.push_back(c.name);
  return names;
}

void use_tier(const std::string& name) { in_use.store(named(name, "tier"), std::memory_order_release); }

}  // namespace ef
