// Products whose operands both change from call to call: gradients of weights, and scores of a vocabulary.
#pragma once
#include "pack.inl"
#include "repack.inl"

namespace {

// ---------------------------------------------------------------------------------------------- rows of A

// The block of L * T::numbers numbers along k and L rows at (row, k), zero beyond the matrix: edges only.
template <class From>
inline void copy_block(const ef::Source& s, int64_t row, int64_t k, int64_t length, From* to) {
  const From* from = (const From*)s.data;
  for (int64_t i = 0; i < length; i++)
    for (int64_t n = 0; n < L; n++) {
      bool inside = row + n < s.N && k + i < s.K;
      to[i * L + n] = inside ? from[(row + n) * s.n_stride + (k + i) * s.k_stride] : From{};
    }
}

// L rows whose numbers with equal k lie side by side, as the outputs of one token do.
template <class T, class From>
void pack_row_group(const ef::Source& s, int64_t row, int64_t row_units, uint32_t* to, float* sums) {
  constexpr int64_t numbers = T::numbers, length = L * numbers;
  alignas(64) uint32_t block[L][L];
  alignas(64) From edge[length * L];
  F total{};
  int64_t rows = s.N - row < L ? s.N - row : L;
  for (int64_t k = 0; k < row_units * numbers; k += length) {
    bool whole = rows == L && k + length <= s.K && s.n_stride == 1;
    const From* from = whole ? (const From*)s.data + row + k * s.k_stride : edge;
    int64_t stride = whole ? s.k_stride : L;
    if (!whole) copy_block(s, row, k, length, edge);
    F part{};
    for (int64_t u = 0; u < L; u++) {
      const From *first = from + u * numbers * stride, *second = first + stride;
      store(block[u], units_across<T>(first, numbers == 2 ? second : first));
      part += wide_load(first);
      if constexpr (numbers == 2) part += wide_load(second);
    }
    total += part;
    int64_t units = row_units - k / numbers < L ? row_units - k / numbers : L;
    for (int64_t n = 0; n < rows; n++)
      for (int64_t u = 0; u < units; u++) to[n * row_units + k / numbers + u] = block[u][n];
  }
  for (int64_t n = 0; sums && n < rows; n++) sums[row + n] += total[n];
}

template <class T, class From>
void pack_rows_as(const ef::Source& s, int64_t row_units, int64_t first, int64_t last, void* to, float* sums) {
  typedef typename NumberOf<T>::type Number;
  ef::Source part = s;
  part.N = last;
  for (int64_t row = first; row < last;) {
    char* at = (char*)to + (row - first) * row_units * 4;
    if (s.k_stride == 1 && !sums) {
      convert_row((Number*)at, (const From*)s.data + row * s.n_stride, s.K, row_units * T::numbers);
      row++;
    } else {
      pack_row_group<T, From>(part, row, row_units, (uint32_t*)at, sums);
      row += L;
    }
  }
}

void pack_rows(const ef::Source* s, ef::Dtype unit, int64_t row_units, int64_t first, int64_t last, void* to,
               float* sums) {
  bool narrow = s->dtype == ef::BF16;
#if EF_BF16_DOT
  if (unit == ef::BF16) {
    if (narrow) return pack_rows_as<Bf16, uint16_t>(*s, row_units, first, last, to, sums);
    return pack_rows_as<Bf16, float>(*s, row_units, first, last, to, sums);
  }
#endif
  (void)unit;
  if (narrow) return pack_rows_as<Fp32, uint16_t>(*s, row_units, first, last, to, sums);
  pack_rows_as<Fp32, float>(*s, row_units, first, last, to, sums);
}

// ---------------------------------------------------------------------------------------------- C = A B

inline void finish(const ef::Multiply& m, int64_t at, F c) {
  if (!m.first) c += load(m.sums + at);
  if (!m.last) return store(m.sums + at, c);
  if (m.out_dtype == ef::BF16) narrow_store((uint16_t*)m.out + at, c);
  else store((float*)m.out + at, c);
}
inline void finish_number(const ef::Multiply& m, int64_t at, float c) {
  if (!m.first) c += m.sums[at];
  if (!m.last) m.sums[at] = c;
  else if (m.out_dtype == ef::BF16) narrow(c, (uint16_t*)m.out + at);
  else narrow(c, (float*)m.out + at);
}

// A row of C, or of a panel of it: `left` numbers of it are not padding.
inline void finish_row(const ef::Multiply& m, int64_t at, const F* c, int vectors, int64_t left) {
  for (int j = 0; j < vectors && left > 0; j++, at += L, left -= L) {
    if (left >= L) finish(m, at, c[j]);
    else
      for (int64_t l = 0; l < left; l++) finish_number(m, at + l, c[j][l]);
  }
}

// Sums of more fp32 products than this lose digits if they are made one after the other: they are made in runs.
constexpr int64_t RUN = 512;
struct Sums {
  F c[ef::WORDS][PANEL / L];
};

template <class T>
void multiply_in_runs(const ef::Multiply& m, int64_t first, int64_t last, int64_t panel) {
  typedef typename T::unit Unit;
  const Unit *a = (const Unit*)m.a + first * m.a_row, *b = (const Unit*)m.b + panel * m.units * PANEL;
  int64_t start = panel * PANEL, width = m.N - start < PANEL ? m.N - start : PANEL;
  Sums sums;
  for (int64_t unit = 0; unit < m.units; unit += RUN) {
    int64_t units = m.units - unit < RUN ? m.units - unit : RUN;
    product<T>(a + unit, m.a_row, b + unit * PANEL, PANEL, last - first, up_to(width, L), units,
               [&](auto, int64_t row, int64_t column, auto& c) {
                 for (auto& line : c) {
                   F* to = sums.c[row++] + column / L;
                   for (F x : line) *to = unit ? *to + x : x, to++;
                 }
               });
  }
  for (int64_t row = first; row < last; row++) finish_row(m, row * m.N + start, sums.c[row - first], PANEL / L, width);
}

template <class T>
void multiply_as(const ef::Multiply& m, int64_t first, int64_t last, int64_t panel, int64_t panel_end) {
  typedef typename T::unit Unit;
  const Unit* a = (const Unit*)m.a + first * m.a_row;
  for (; panel < panel_end; panel++) {
    if (T::numbers == 1 && m.units > RUN) {
      multiply_in_runs<T>(m, first, last, panel);
      continue;
    }
    int64_t start = panel * PANEL, width = m.N - start < PANEL ? m.N - start : PANEL;
    const Unit* b = (const Unit*)m.b + panel * m.units * PANEL;
    product<T>(a, m.a_row, b, PANEL, last - first, up_to(width, L), m.units,
               [&](auto, int64_t row, int64_t column, auto& c) {
                 for (auto& line : c) {
                   int64_t at = (first + row++) * m.N + start + column;
                   finish_row(m, at, line, sizeof line / sizeof *line, width - column);
                 }
               });
  }
}

void multiply_rows(const ef::Multiply* m, int64_t first, int64_t last, int64_t panel, int64_t panel_end) {
#if EF_BF16_DOT
  if (m->unit == ef::BF16) return multiply_as<Bf16>(*m, first, last, panel, panel_end);
#endif
#if EF_AMX
  if (m->unit == ef::BY_3) return multiply_as<By3>(*m, first, last, panel, panel_end);
#endif
  multiply_as<Fp32>(*m, first, last, panel, panel_end);
}

// ---------------------------------------------------------------------------------------------- vocabulary

// The scores of a block of words for a panel of tokens.
struct WordTile {
  float z[ef::WORDS][PANEL];
};

size_t words_scratch(const ef::Vocabulary* v) { return sizeof(WordTile) + up_to(ef::WORDS, 16) * v->units * 4; }

template <class T>
void score_panel(const ef::Vocabulary& v, int64_t first, int64_t words, int64_t panel, WordTile& tile,
                 const void* rows) {
  typedef typename T::unit Unit;
  int64_t width = v.tokens - panel * PANEL < PANEL ? v.tokens - panel * PANEL : PANEL;
  const Unit* b = (const Unit*)v.x + panel * v.units * PANEL;
  const float* bias = v.bias ? v.bias + first : nullptr;
  product<T>((const Unit*)rows, v.units, b, PANEL, words, up_to(width, L), v.units,
             [&](auto, int64_t row, int64_t column, auto& c) {
               for (auto& line : c) {
                 float here = bias ? bias[row] : 0.0f, *to = tile.z[row++] + column;
                 for (F x : line) store(to, x + here), to += L;
               }
             });
}

void score(const ef::Vocabulary& v, int64_t first, int64_t words, int64_t panel, WordTile& tile, const void* rows) {
#if EF_BF16_DOT
  if (v.unit == ef::BF16) return score_panel<Bf16>(v, first, words, panel, tile, rows);
#endif
#if EF_AMX
  if (v.unit == ef::BY_3) return score_panel<By3>(v, first, words, panel, tile, rows);
#endif
  score_panel<Fp32>(v, first, words, panel, tile, rows);
}

// e^x for x <= 0 that passes NaN on.
inline F exp_or_nan(F x) { return x == x ? exp_negative(x) : x; }

inline int64_t panels_of_tokens(const ef::Vocabulary& v) { return (v.tokens + PANEL - 1) / PANEL; }

// Down the rows of L lanes: largest score, sum of exponentials, sum of scores.
inline void reduce_lanes(const WordTile& tile, int64_t words, int64_t lane, int64_t token, const ef::Scores& s) {
  F largest = load(tile.z[0] + lane), total{}, plain{};
  for (int64_t w = 0; w < words; w++) {
    F z = load(tile.z[w] + lane);
    largest = larger(z, largest);  // skips NaN, which `total` then has
    plain += z;
  }
  F base = largest > -3e38f ? largest : F{};
  for (int64_t w = 0; w < words; w++) total += exp_or_nan(load(tile.z[w] + lane) - base);
  store(s.largest + token, base);
  store(s.total + token, total);
  store(s.plain + token, plain);
}

void words_forward(const ef::Vocabulary* vocabulary, int64_t first, int64_t last, const ef::Scores* scores,
                   void* scratch) {
  const ef::Vocabulary& v = *vocabulary;
  WordTile& tile = *(WordTile*)scratch;
  void* rows = (char*)scratch + sizeof tile;
  int64_t words = last - first, padded = panels_of_tokens(v) * PANEL;
  pack_rows(&v.weight, v.unit, v.units, first, last, rows, nullptr);
  for (int64_t token = 0; token < padded; token += PANEL) {
    int64_t here = up_to(v.tokens - token < PANEL ? v.tokens - token : PANEL, L);
    score(v, first, words, token / PANEL, tile, rows);
    for (int64_t lane = 0; lane < here; lane += L) reduce_lanes(tile, words, lane, token + lane, *scores);
    for (int64_t t = 0; t < here; t++) {
      int64_t word = v.labels[token + t] - first;
      if (word >= 0 && word < words) scores->of_label[token + t] = tile.z[word][t];
    }
    for (int64_t w = 0; v.kept && w < words; w++)
      memcpy(v.kept + (first + w) * padded + token, tile.z[w], here * 4);
  }
}

// Scores to their gradients, in place.
inline void differentiate(const ef::Vocabulary& v, int64_t first, int64_t words, int64_t token, int64_t width,
                          WordTile& tile, const ef::ScoreGradients& g) {
  for (int64_t lane = 0; lane < width; lane += L) {
    F lse = load(g.lse + token + lane), slope = load(g.slope + token + lane), flat = load(g.flat + token + lane);
    for (int64_t w = 0; w < words; w++) {
      float* z = tile.z[w] + lane;
      store(z, exp_or_nan(load(z) - lse) * slope + flat);
    }
  }
  for (int64_t t = 0; t < width; t++) {
    int64_t word = v.labels[token + t] - first;
    if (word >= 0 && word < words) tile.z[word][t] += g.hot[token + t];
  }
}

template <class Number>
inline void store_gradients(const ef::ScoreGradients& g, int64_t words, int64_t token, int64_t padded, int64_t width,
                            const WordTile& tile) {
  for (int64_t w = 0; w < words; w++) {
    Number* to = (Number*)g.d + w * padded + token;
    F sum{};
    for (int64_t lane = 0; lane < width; lane += L) {
      F d = load(tile.z[w] + lane);
      narrow_store(to + lane, d);
      sum += d;
    }
    memset(to + width, 0, (PANEL - width) * sizeof *to);
    if (g.d_bias) g.d_bias[w] += lane_sum(sum);
  }
}

void words_backward(const ef::Vocabulary* vocabulary, int64_t first, int64_t last, const ef::ScoreGradients* gradients,
                    void* scratch) {
  const ef::Vocabulary& v = *vocabulary;
  WordTile& tile = *(WordTile*)scratch;
  void* rows = (char*)scratch + sizeof tile;
  int64_t words = last - first, padded = panels_of_tokens(v) * PANEL;
  if (!v.kept) pack_rows(&v.weight, v.unit, v.units, first, last, rows, nullptr);
  for (int64_t token = 0; token < padded; token += PANEL) {
    int64_t here = up_to(v.tokens - token < PANEL ? v.tokens - token : PANEL, L);
    if (v.kept)
      for (int64_t w = 0; w < words; w++) memcpy(tile.z[w], v.kept + (first + w) * padded + token, here * 4);
    else score(v, first, words, token / PANEL, tile, rows);
    differentiate(v, first, words, token, here, tile, *gradients);
    if (v.unit == ef::BF16) store_gradients<uint16_t>(*gradients, words, token, padded, here, tile);
    else store_gradients<float>(*gradients, words, token, padded, here, tile);
  }
}

}  // namespace
