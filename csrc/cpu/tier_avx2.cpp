#define EF_TIER_NAME "avx2"
#define EF_TIER_FUNCTION ef_tier_avx2
#define EF_LANES 8
#define EF_BF16_DOT 0
#define EF_VNNI 0
#define EF_AMX 0
#include "tier.inl"
