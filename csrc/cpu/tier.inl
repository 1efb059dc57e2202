// One tier: included by each tier_*.cpp, which names it and sets EF_LANES, EF_BF16_DOT, EF_VNNI and EF_AMX.
#include "attention.inl"
#include "attention_backward.inl"
#include "chain.inl"
#include "matmul.inl"
#include "rows_norm.inl"
#include "rows_pool.inl"

namespace {

#if EF_AMX
void enter() { enter_tiles(); }
void leave() { leave_tiles(); }
#else
void enter() {}
void leave() {}
#endif

const ef::Tier TIER = {
    EF_TIER_NAME,
    enter,
    leave,
    {attention_scratch, attention_forward, attention_backward_scratch, attention_backward},
    {TILE_ROWS, unit_dtype, row_units, panels_of, pack, EF_VNNI, pairs, run_step},
    {pack_rows, multiply_rows, words_scratch, words_forward, words_backward},
    {norm_rows, norm_backward_rows, sum_parts, rope_rows, table_gradient, pool_rows, pool_backward_rows},
};

}  // namespace

extern "C" __attribute__((visibility("hidden"))) const ef::Tier* EF_TIER_FUNCTION() { return &TIER; }
