#define EF_TIER_NAME "generic"
#define EF_TIER_FUNCTION ef_tier_generic
#define EF_LANES 4
#define EF_BF16_DOT 0
#define EF_VNNI 0
#define EF_AMX 0
#include "tier.inl"
