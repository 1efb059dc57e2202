#include "engine.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "attention_items.h"
#include "parallel.h"
#include "sizes.h"

namespace ef {
namespace {

constexpr int64_t BLOCK_ROWS = 96;   // rows of a chain at a time: with a layer's activations they stay in 1 MB of cache
constexpr int64_t SPLIT_ROWS = 64;   // below this many rows a thread, threads share columns instead of rows
constexpr int64_t ALIGNMENT = 64;

bool is_product(const Step& s) { return s.weight.units != nullptr; }

// How the rows of one chain are shared out: in blocks of whole tiles, as equal as can be, as many for each thread.
struct Sharing {
  int64_t rows, step, blocks, height;  // `height`: rows that a block's scratch has room for
  bool columns;                        // or the columns of each step, among threads that share one scratch
  size_t scratch;                      // bytes for each thread

  Sharing(const Tier& tier, int64_t rows, int64_t local_row, int threads) : rows(rows), step(tier.chain.tile_rows) {
    columns = threads > 1 && rows < SPLIT_ROWS * threads;
    blocks = columns ? 1 : std::min(up_to((rows + BLOCK_ROWS - 1) / BLOCK_ROWS, threads), tiles());
    // A product may read rows up to the next multiple of 16.
    height = up_to((tiles() + blocks - 1) / blocks * step, 16);
    scratch = up_to(height * local_row, ALIGNMENT);
  }
  int64_t tiles() const { return (rows + step - 1) / step; }
  int64_t begin(int64_t block) const { return std::min(rows, block * tiles() / blocks * step); }
};

// One for each step of chains that share columns, else one for each chain.
int64_t stages(const Chain& chain, const Sharing& sharing) { return sharing.columns ? chain.steps.size() : 1; }

void run_blocks(const Tier& tier, const Chain& chain, const Sharing& sharing, char* scratch, Stage& stage) {
  stage.run(sharing.blocks, [&](int64_t i) {
    int64_t first = sharing.begin(i), last = sharing.begin(i + 1);
    for (const Step& step : chain.steps) {
      Block block{first, last, 0, is_product(step) ? step.weight.panels : 0, first, sharing.height, scratch};
      tier.chain.run(&step, &block);
    }
  });
}

void run_columns(const Tier& tier, const Chain& chain, const Sharing& sharing, int threads, char* scratch,
                 Stage* stage) {
  for (const Step& step : chain.steps) {
    if (is_product(step)) {
      int64_t width = std::max<int64_t>(1, step.weight.panels / (threads * 4));
      stage++->run((step.weight.panels + width - 1) / width, [&](int64_t i) {
        Block block{0, sharing.rows, i * width, std::min(step.weight.panels, (i + 1) * width), 0,
                    sharing.height, scratch};
        tier.chain.run(&step, &block);
      });
    } else {
      int64_t height = std::max<int64_t>(1, sharing.rows / (threads * 4));
      stage++->run((sharing.rows + height - 1) / height, [&](int64_t i) {
        Block block{i * height, std::min(sharing.rows, (i + 1) * height), 0, 0, 0, sharing.height, scratch};
        tier.chain.run(&step, &block);
      });
    }
  }
}

// By every thread of a region.
void run_shared(const Tier& tier, const Chain& chain, const Sharing& sharing, int threads, char* scratch, int thread,
                Stage* stage) {
  if (sharing.columns) return run_columns(tier, chain, sharing, threads, scratch, stage);
  run_blocks(tier, chain, sharing, scratch + thread * sharing.scratch, *stage);
}

Matrix global(const void* data, int64_t columns, int64_t stride, Dtype dtype) {
  return {static_cast<char*>(const_cast<void*>(data)), stride, columns, dtype, GLOBAL};
}

// Everything of one forward that does not depend on the thread.
struct Plan {
  const Tier& tier;
  const Encoder& e;
  Dtype unit;  // of everything but what int8 weights read
  int64_t qkv_stride, o_stride;
  Matrix stream, qkv, o;  // residual (fp32), and what attention reads and writes
  std::vector<Chain> chains;
  std::vector<Attention> calls;
  std::vector<AttentionItem> global_items, local_items;

  Plan(const Tier& tier, const Encoder& e) : tier(tier), e(e), unit(e.layers[0].down->weight.dtype) {
    qkv_stride = 3 * e.W * size_of(unit);
    o_stride = tier.chain.row_units(unit, e.W) * 4;
  }

  size_t stream_bytes() const { return up_to(e.T * e.W * 4, ALIGNMENT); }
  size_t qkv_bytes() const { return up_to(e.T * qkv_stride, ALIGNMENT); }
  size_t o_bytes() const { return up_to(up_to(e.T, 16) * o_stride, ALIGNMENT); }

  void place(char* arena) {
    stream = global(arena, e.W, e.W * 4, FP32);
    qkv = global(arena + stream_bytes(), 3 * e.W, qkv_stride, unit);
    o = global(arena + stream_bytes() + qkv_bytes(), e.W, o_stride, unit);
    if (o_stride != e.W * size_of(unit)) std::memset(o.data, 0, o_bytes());
  }

  Matrix input_of(Chain& chain, const Packed& packed) const { return chain.input_of(tier, packed); }

  void add_qkv(Chain& chain, const Layer& layer, const Matrix& h) const {
    bool in_pairs = layer.cos && layer.qkv->source.order == HALVES_OF_HEADS;
    Step step = product(in_pairs ? ROTATED : PRODUCT, h, *layer.qkv, qkv);
    step.cos = layer.cos, step.sin = layer.sin, step.rotated = 2 * e.W, step.head = e.D;
    chain.steps.push_back(step);
    if (layer.cos && !in_pairs) {
      Step turn = step;
      turn.kind = TURNED, turn.weight = {};
      chain.steps.push_back(turn);
    }
  }

  Step norm(const float* weight, const float* bias, const Matrix& out) const {
    Step step{};
    step.kind = NORMALISED, step.in = stream, step.out = out, step.width = e.W;
    step.norm_weight = weight, step.norm_bias = bias, step.eps = e.eps;
    return step;
  }

  Chain first_chain() const {
    Chain chain;
    Matrix x = global(e.x, e.W, e.W * size_of(e.dtype), e.dtype), h = input_of(chain, *e.layers[0].qkv);
    chain.steps.push_back(copy(x, stream, e.W));
    chain.steps.push_back(copy(x, h, e.W));
    add_qkv(chain, e.layers[0], h);
    return chain;
  }

  // From the attention of layer `i` to that of the next, or to the result.
  Chain chain_after(size_t i) const {
    const Layer& layer = e.layers[i];
    bool last = i + 1 == e.layers.size();
    Chain chain;
    Matrix h = input_of(chain, *layer.up), inner = input_of(chain, *layer.down), attended = o;
    if (layer.out->weight.dtype != unit) {
      attended = input_of(chain, *layer.out);
      chain.steps.push_back(copy(o, attended, e.W));
    }
    chain.steps.push_back(product(ADDED, attended, *layer.out, stream));
    chain.steps.push_back(norm(layer.attention_norm, layer.attention_norm_bias, h));
    if (!e.pre_norm) chain.steps.back().also = stream;
    chain.steps.push_back(product(e.gated ? GATED : PRODUCT, h, *layer.up, inner));
    chain.steps.back().activation = e.activation;
    chain.steps.push_back(product(ADDED, inner, *layer.down, stream));
    Matrix result = global(e.out, e.W, e.W * size_of(e.dtype), e.dtype);
    Matrix next = last ? result : input_of(chain, *e.layers[i + 1].qkv);
    chain.steps.push_back(norm(layer.mlp_norm, layer.mlp_norm_bias, next));
    if (!e.pre_norm && !last) chain.steps.back().also = stream;
    if (!last) add_qkv(chain, e.layers[i + 1], next);
    return chain;
  }

  Attention call(const Layer& layer) const {
    int64_t size = size_of(unit);
    Attention a{};
    a.q = qkv.data, a.k = qkv.data + e.W * size, a.v = qkv.data + 2 * e.W * size;
    a.token_stride = 3 * e.W, a.head_stride = e.D;
    a.o = o.data, a.o_token_stride = o_stride / size, a.o_head_stride = e.D;
    a.cu_seqlens = e.cu_seqlens, a.columns = e.columns;
    a.B = e.B, a.H = e.H, a.D = e.D, a.half = layer.half;
    a.dtype = unit == BY_3 ? FP32 : unit, a.compute = unit;
    a.scale = 1.0f / std::sqrt(float(e.D));
    return a;
  }

  void build(int threads) {
    chains.push_back(first_chain());
    for (size_t i = 0; i < e.layers.size(); i++) {
      chains.push_back(chain_after(i));
      calls.push_back(call(e.layers[i]));
      auto& items = e.layers[i].half < 0 ? global_items : local_items;
      if (items.empty()) items = attention_items(calls.back(), queries_of_item(calls.back(), threads));
    }
  }

  size_t attention_scratch() const {
    size_t most = 0;
    for (const Attention& a : calls) most = std::max(most, tier.attention.scratch(&a, longest_sequence(a)));
    return up_to(most, ALIGNMENT);
  }
};

// Scratch of a region (each thread's, or for shared columns the first one for all), and what the layers of one forward
// hand to each other. They belong to the calling thread, so two Python threads may run one model.
thread_local Arena scratch_arena, activation_arena;

}  // namespace

const float* Encoder::widened(const void* data, int64_t count, Dtype from) {
  if (!data) return nullptr;
  return kept_.emplace_back(ef::widened(data, count, from)).data();
}

Step product(StepKind kind, const Matrix& in, const Packed& packed, const Matrix& out) {
  Step step{};
  step.kind = kind, step.in = in, step.out = out, step.weight = packed.weight;
  return step;
}

Step copy(const Matrix& in, const Matrix& out, int64_t width) {
  Step step{};
  step.kind = COPY, step.in = in, step.out = out, step.width = width;
  return step;
}

Matrix Chain::input_of(const Tier& tier, const Packed& packed) {
  return local(tier, packed.weight.dtype, packed.weight.K);
}

Matrix Chain::take_in(const Tier& tier, const Packed& packed, const Matrix& x) {
  Matrix rows = input_of(tier, packed);
  steps.push_back(copy(x, rows, packed.weight.K));
  return rows;
}

Matrix Chain::local(const Tier& tier, Dtype unit, int64_t columns) {
  int64_t units = tier.chain.row_units(unit, columns) * 4;  // bytes
  int64_t row = up_to(unit == INT8 ? units + 4 : units, ALIGNMENT);  // int8 rows carry their scale
  Matrix m{reinterpret_cast<char*>(local_row), row, unit == INT8 ? units : row / size_of(unit), unit, LOCAL};
  local_row += row;
  return m;
}

void run_chain(const Tier& tier, const Chain& chain, int64_t rows, int threads) {
  if (rows == 0) return;
  threads = usable_threads(threads);
  Sharing sharing(tier, rows, chain.local_row, threads);
  char* scratch = scratch_arena.at_least(sharing.scratch * threads);
  std::vector<Stage> stage(stages(chain, sharing));
  parallel(threads, tier, [&](int thread) {
    run_shared(tier, chain, sharing, threads, scratch, thread, stage.data());
  });
  scratch_arena.trim();
}

void run_encoder(const Tier& tier, const Encoder& e, int threads) {
  if (e.T == 0) return;
  threads = usable_threads(threads);
  Plan plan(tier, e);
  plan.place(activation_arena.at_least(plan.stream_bytes() + plan.qkv_bytes() + plan.o_bytes()));
  plan.build(threads);
  std::vector<Sharing> sharing;
  size_t attention_bytes = plan.attention_scratch(), most = attention_bytes, count = plan.calls.size();
  for (const Chain& chain : plan.chains) {
    sharing.emplace_back(tier, e.T, chain.local_row, threads);
    most = std::max(most, sharing.back().scratch);
    count += stages(chain, sharing.back());
  }
  char* scratch = scratch_arena.at_least(most * threads);
  std::vector<Stage> all(count);
  parallel(threads, tier, [&](int thread) {
    Stage* stage = all.data();
    for (size_t i = 0; i < plan.chains.size(); i++) {
      run_shared(tier, plan.chains[i], sharing[i], threads, scratch, thread, stage);
      stage += stages(plan.chains[i], sharing[i]);
      if (i == plan.calls.size()) break;
      const Attention& call = plan.calls[i];
      const std::vector<AttentionItem>& items = call.half < 0 ? plan.global_items : plan.local_items;
      stage++->run(items.size(), [&](int64_t k) {
        const AttentionItem& item = items[k];
        tier.attention.forward(&call, item.b, item.h, item.first, item.last, scratch + thread * attention_bytes);
      });
    }
  });
  scratch_arena.trim();
  activation_arena.trim();
}

}  // namespace ef
