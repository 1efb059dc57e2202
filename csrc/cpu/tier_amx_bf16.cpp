#define EF_TIER_NAME "amx_bf16"
#define EF_TIER_FUNCTION ef_tier_amx_bf16
#define EF_LANES 16
#define EF_BF16_DOT 1
#define EF_VNNI 1
#define EF_AMX 1
#include "tier.inl"
