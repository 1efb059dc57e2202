#define EF_TIER_NAME "avx512_bf16"
#define EF_TIER_FUNCTION ef_tier_avx512_bf16
#define EF_LANES 16
#define EF_BF16_DOT 1
#define EF_VNNI 1
#define EF_AMX 0
#include "tier.inl"
