// Chains of steps over a block of rows: products with everything around them in the epilogue, and LayerNorm. A chain
// runs on rows that stay in the second-level cache, so only its ends touch memory.
#pragma once
#include "active.inl"
#include "int8.inl"
#include "rows.inl"

namespace {

constexpr int64_t WIDEST_INT8 = 8192;  // numbers in a row that is quantised; the door refuses wider ones

template <class Number>
inline Number* row_of(const ef::Matrix& m, const ef::Block& block, int64_t row) {
  if (m.place == ef::GLOBAL) return (Number*)(m.data + row * m.stride);
  return (Number*)(block.scratch + (int64_t)m.data * block.height + (row - block.origin) * m.stride);
}

// ---------------------------------------------------------------------------------------------- epilogues

// Writes `c` at (row, column), as far as the matrix goes.
template <class Number>
inline void put(Number* row, int64_t column, int64_t width, F c) {
  if (column + L <= width) return narrow_store(row + column, c);
  for (int64_t l = 0; column + l < width; l++) narrow(c[l], row + column + l);
}
inline void put_any(const ef::Step& s, const ef::Block& b, int64_t row, int64_t column, int64_t width, F c) {
  if (s.out.dtype == ef::BF16) put(row_of<uint16_t>(s.out, b, row), column, width, c);
  else put(row_of<float>(s.out, b, row), column, width, c);
}

template <int R, int V>
inline void add_bias(F (&c)[R][V], const float* bias, int64_t column) {
  if (!bias) return;
  for (int j = 0; j < V; j++) {
    F here = load(bias + column + j * L);
    for (int i = 0; i < R; i++) c[i][j] += here;
  }
}

template <int R, int V>
inline void store_product(const ef::Step& s, const ef::Block& b, int64_t row, int64_t column, F (&c)[R][V]) {
  int64_t width = s.out.columns;
  for (int i = 0; i < R; i++)
    for (int j = 0; j < V; j++) {
      F x = s.activation == ef::NONE ? c[i][j] : activate(s.activation, c[i][j]).value;
      put_any(s, b, row + i, column + j * L, width, x);
    }
}

template <int R, int V>
inline void store_gated(const ef::Step& s, const ef::Block& b, int64_t row, int64_t column, F (&c)[R][V]) {
  int64_t width = s.out.columns;
  for (int i = 0; i < R; i++)
    for (int j = 0; j + 1 < V; j += 2) {
      F x = activate(s.activation, c[i][j]).value * c[i][j + 1];
      put_any(s, b, row + i, column / 2 + j / 2 * L, width, x);
    }
}

template <int R, int V>
inline void store_rotated(const ef::Step& s, const ef::Block& b, int64_t row, int64_t column, F (&c)[R][V]) {
  if (column >= s.rotated) return store_product(s, b, row, column, c);
  int64_t half = s.head / 2;
  for (int i = 0; i < R; i++)
    for (int j = 0; j + 1 < V; j += 2) {
      int64_t packed = column + j * L, start = packed / s.head * s.head, inside = packed % s.head / 2;
      F cosine = load(s.cos + (row + i) * half + inside), sine = load(s.sin + (row + i) * half + inside);
      F x = c[i][j], y = c[i][j + 1];
      put_any(s, b, row + i, start + inside, s.weight.N, turned_first(x, y, cosine, sine));
      put_any(s, b, row + i, start + half + inside, s.weight.N, turned_second(x, y, cosine, sine));
    }
}

template <int R, int V>
inline void store_added(const ef::Step& s, const ef::Block& b, int64_t row, int64_t column, F (&c)[R][V]) {
  for (int i = 0; i < R; i++)
    for (int j = 0; j < V; j++) {
      float* to = row_of<float>(s.out, b, row + i);
      int64_t at = column + j * L;
      if (at + L <= s.weight.N) store(to + at, load(to + at) + c[i][j]);
      else
        for (int64_t l = 0; at + l < s.weight.N; l++) to[at + l] += c[i][j][l];
    }
}

// ---------------------------------------------------------------------------------------------- steps

template <int R, int V>
inline void finish(const ef::Step& s, const ef::Block& b, int64_t row, int64_t place, F (&c)[R][V]) {
  add_bias(c, s.weight.bias, place);
  switch (s.kind) {
    case ef::GATED: return store_gated(s, b, row, place, c);
    case ef::ROTATED: return store_rotated(s, b, row, place, c);
    case ef::ADDED: return store_added(s, b, row, place, c);
    default: return store_product(s, b, row, place, c);
  }
}

template <class T>
void product_step(const ef::Step& s, const ef::Block& b) {
  typedef typename T::unit Unit;
  const ef::Weight& w = s.weight;
  const Unit* a = row_of<Unit>(s.in, b, b.first);
  for (int64_t panel = b.panel; panel < b.panel_end; panel++) {
    const Unit *units = (const Unit*)w.units + panel * w.row_units * PANEL, *next = units + w.row_units * PANEL;
    Ahead ahead;
    if (panel + 1 < b.panel_end) ahead = {(const char*)next, (const char*)(next + w.row_units * PANEL)};
    product<T>(a, s.in.stride / 4, units, PANEL, b.last - b.first, PANEL, w.row_units,
               [&](auto, int64_t row, int64_t column, auto& c) {
                 int64_t place = panel * PANEL + column;
                 if constexpr (T::numbers == 4) {
                   F real[sizeof c / sizeof c[0]][sizeof c[0] / sizeof c[0][0]];
                   descale(w, s.in, (const uint8_t*)a, row, place, c, real);
                   finish(s, b, b.first + row, place, real);
                 } else {
                   finish(s, b, b.first + row, place, c);
                 }
               },
               ahead);
  }
}

inline void quantise_normal(const ef::Step& s, const ef::Matrix& m, uint8_t* to, const float* x, float mean,
                            float rstd) {
  alignas(64) float row[WIDEST_INT8];
  write_normal(x, s.width, mean, rstd, s.norm_weight, s.norm_bias, row);
  quantise_row(m, to, row, s.width);
}

template <class Number>
inline void normal_row(const ef::Step& s, const ef::Matrix& m, Number* to, const float* x, float mean, float rstd) {
  write_normal(x, s.width, mean, rstd, s.norm_weight, s.norm_bias, to);
  memset(to + s.width, 0, (m.columns - s.width) * sizeof *to);
}

// `out` or `also` may be `in`, if it is the one that comes last.
inline void normalise_row(const ef::Step& s, const ef::Block& b, int64_t row) {
  const float* x = row_of<float>(s.in, b, row);
  float mean = mean_of(x, s.width), rstd = rstd_of(x, s.width, mean, s.eps);
  const ef::Matrix* targets[] = {&s.out, &s.also};
  for (const ef::Matrix* m : targets) {
    if (m->place == ef::ABSENT) continue;
    if (m->dtype == ef::INT8) quantise_normal(s, *m, row_of<uint8_t>(*m, b, row), x, mean, rstd);
    else if (m->dtype == ef::BF16) normal_row(s, *m, row_of<uint16_t>(*m, b, row), x, mean, rstd);
    else normal_row(s, *m, row_of<float>(*m, b, row), x, mean, rstd);
  }
}

template <class Number>
inline void turn_row(const ef::Step& s, const ef::Block& b, int64_t row) {
  int64_t half = s.head / 2;
  const float *cosine = s.cos + row * half, *sine = s.sin + row * half;
  for (int64_t start = 0; start < s.rotated; start += s.head) {
    Number* head = row_of<Number>(s.out, b, row) + start;
    each_vector(half, [&](int64_t i, auto n, auto) {
      F x = take(head + i, n), y = take(head + half + i, n), c = take(cosine + i, n), t = take(sine + i, n);
      give(head + i, n, turned_first(x, y, c, t));
      give(head + half + i, n, turned_second(x, y, c, t));
    });
  }
}

inline void quantise_copy(const ef::Step& s, const ef::Block& b, int64_t row) {
  alignas(64) float wide[WIDEST_INT8];
  if (s.in.dtype == ef::BF16) convert_row(wide, row_of<uint16_t>(s.in, b, row), s.width, s.width);
  else convert_row(wide, row_of<float>(s.in, b, row), s.width, s.width);
  quantise_row(s.out, row_of<uint8_t>(s.out, b, row), wide, s.width);
}

template <class To>
inline void copy_row_to(const ef::Step& s, const ef::Block& b, int64_t row) {
  To* to = row_of<To>(s.out, b, row);
  int64_t padded = s.out.columns;
  if (s.in.dtype == ef::BF16) convert_row(to, row_of<uint16_t>(s.in, b, row), s.width, padded);
  else convert_row(to, row_of<float>(s.in, b, row), s.width, padded);
}

inline void copy_row(const ef::Step& s, const ef::Block& b, int64_t row) {
  if (s.out.dtype == ef::INT8) quantise_copy(s, b, row);
  else if (s.out.dtype == ef::BF16) copy_row_to<uint16_t>(s, b, row);
  else copy_row_to<float>(s, b, row);
}

template <class Saved, class Out>
inline void activation_rows(const ef::Step& s, const ef::Block& b) {
  for (int64_t row = b.first; row < b.last; row++) {
    Out* to = row_of<Out>(s.out, b, row);
    if (s.kind == ef::ACTIVATED) activate_row(s, row, row_of<Saved>(s.in, b, row), to);
    else slope_row(s, row, row_of<float>(s.in, b, row), row_of<Saved>(s.also, b, row), to);
  }
}
inline void activation_step(const ef::Step& s, const ef::Block& b) {
  bool narrow = (s.kind == ef::ACTIVATED ? s.in : s.also).dtype == ef::BF16;
  if (s.out.dtype == ef::BF16)
    narrow ? activation_rows<uint16_t, uint16_t>(s, b) : activation_rows<float, uint16_t>(s, b);
  else narrow ? activation_rows<uint16_t, float>(s, b) : activation_rows<float, float>(s, b);
}

void run_step(const ef::Step* step, const ef::Block* block) {
  const ef::Block& b = *block;
  switch (step->kind) {
    case ef::COPY:
      for (int64_t row = b.first; row < b.last; row++) copy_row(*step, b, row);
      return;
    case ef::ACTIVATED:
    case ef::SLOPED:
      return activation_step(*step, b);
    case ef::NORMALISED:
      for (int64_t row = b.first; row < b.last; row++) normalise_row(*step, b, row);
      return;
    case ef::TURNED:
      for (int64_t row = b.first; row < b.last; row++)
        step->out.dtype == ef::BF16 ? turn_row<uint16_t>(*step, b, row) : turn_row<float>(*step, b, row);
      return;
    default:
#if EF_BF16_DOT
      if (step->weight.dtype == ef::BF16) return product_step<Bf16>(*step, b);
#endif
#if EF_VNNI
      if (step->weight.dtype == ef::INT8) return product_step<Int8>(*step, b);
#endif
#if EF_AMX
      if (step->weight.dtype == ef::BY_3) return product_step<By3>(*step, b);
#endif
      return product_step<Fp32>(*step, b);
  }
}

// ---------------------------------------------------------------------------------------------- packing

ef::Dtype unit_dtype(ef::Dtype numbers) {
#if EF_BF16_DOT
  if (numbers == ef::BF16) return ef::BF16;
#endif
#if EF_AMX
  // Only tiles: vdpbf16ps is twice as fast as fp32 sums, so three of it would lose.
  if (numbers == ef::BY_3) return ef::BY_3;
#endif
  (void)numbers;
  return ef::FP32;
}
int64_t row_units(ef::Dtype unit, int64_t K) {
  return packed_units(K, unit == ef::INT8 ? 4 : unit == ef::BF16 ? 2 : 1);
}
int32_t pairs(int64_t head) { return head % (2 * L) == 0 && PANEL % (2 * L) == 0; }

template <class From>
void pack_panels(const ef::Source& s, const ef::Weight& w, const float* bias, int64_t first, int64_t last) {
  int64_t columns[PANEL];
  const From* from = (const From*)s.data;
  for (int64_t panel = first; panel < last; panel++) {
    int64_t at = panel * PANEL;
    for (int64_t n = 0; n < PANEL; n++) {
      columns[n] = source_column(s.order, at + n, s.N, s.head, s.rotated);
      if (bias) ((float*)w.bias)[at + n] = columns[n] < 0 ? 0.0f : bias[columns[n]];
    }
    char* to = (char*)w.units + at * w.row_units * 4;
    if (w.dtype == ef::INT8)
      pack_int8_panel((int8_t*)to, from, s, w.row_units, columns, (float*)w.scale + at, (int32_t*)w.sums + at);
#if EF_BF16_DOT
    else if (w.dtype == ef::BF16)
      pack_panel<Bf16>((uint32_t*)to, from, s.k_stride, s.n_stride, s.K, w.row_units, columns);
#endif
    else pack_panel<Fp32>((float*)to, from, s.k_stride, s.n_stride, s.K, w.row_units, columns);
  }
}

void pack(const ef::Source* s, const ef::Weight* w, const float* bias, int64_t first, int64_t last) {
  if (s->dtype == ef::BF16) pack_panels<uint16_t>(*s, *w, bias, first, last);
  else pack_panels<float>(*s, *w, bias, first, last);
}
int64_t panels_of(const ef::Source* s) { return packed_columns(s->order, s->N) / PANEL; }

}  // namespace
