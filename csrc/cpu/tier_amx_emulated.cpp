// The AMX tier's code with tile instructions in plain C++: for tests on machines without AMX, never chosen by itself.
#define EF_TIER_NAME "amx_emulated"
#define EF_TIER_FUNCTION ef_tier_amx_emulated
#define EF_LANES 16
#define EF_BF16_DOT 1
#define EF_VNNI 1
#define EF_AMX 1
#define EF_AMX_EMULATED 1
#include "tier.inl"
