// fp32 products on bf16 tiles, three for each: x = high + low, where high is x rounded to bf16 and low is what that
// took, rounded too; then a b is high high + high low + low high, and what is left out is below 2^-16 of it.
//
// Operands lie in memory as fp32 numbers and are split here, 256 numbers of K at a time, so that no other code and no
// layout knows of it. Splitting 64 columns for 96 rows, and 32 rows for 64 columns, is about a third of the work of the
// twelve tile products that follow; weights take no more memory than in fp32.
#pragma once

namespace {

struct By3 : Fp32 {};
template <>
constexpr bool SPLITS<By3> = true;

struct alignas(64) SplitRows {  // 32 rows, units along K
  uint32_t high[32][128], low[32][128];
  bool exact[32];  // rows with numbers that have no halves: they are zero here
};
struct alignas(64) SplitColumns {  // 64 columns in lanes, a row for each unit along K
  uint32_t high[128][64], low[128][64];
  bool exact;
};
constexpr int64_t SPLIT_NUMBERS = 256, SPLIT_HEIGHT = 96;

// Infinities, NaN, and numbers that would become infinite.
inline U without_halves(F x) { return (U)(((U)x & 0x7fffffffu) >= 0x7f7f8000u); }
inline bool any(U lanes) { return _mm512_test_epi32_mask((__m512i)lanes, (__m512i)lanes) != 0; }

// Pairs of rows of lanes, rounded; and both numbers of each pair as fp32.
inline F first_of(U pairs) { return (F)(pairs << 16); }
inline F second_of(U pairs) { return (F)(pairs & 0xffff0000u); }

inline void split_columns(const float* b, int64_t b_row, int64_t count, int64_t width, SplitColumns& to) {
  U odd{};
  for (int64_t u = 0; u < up_to(count, 32) / 2; u++)
    for (int64_t j = 0; j < 64; j += L) {
      const float* at = b + 2 * u * b_row + j;
      F x = j < width && 2 * u < count ? load(at) : F{}, y = j < width && 2 * u + 1 < count ? load(at + b_row) : F{};
      U high = Bf16::join(x, y);
      store(to.high[u] + j, high);
      store(to.low[u] + j, Bf16::join(x - first_of(high), y - second_of(high)));
      odd |= without_halves(x) | without_halves(y);
    }
  to.exact = any(odd);
}

// 32 numbers of a row as 16 units.
inline U rounded_along(F x, F y) { return (U)(__m512i)_mm512_cvtne2ps_pbh((__m512)y, (__m512)x); }
inline F lanes_before(const float* from, int64_t count) {
  __mmask16 mask = count >= L ? 0xffff : count <= 0 ? 0 : (__mmask16)((1u << count) - 1);
  return (F)_mm512_maskz_loadu_ps(mask, from);
}

inline void split_row(const float* a, int64_t count, SplitRows& to, int64_t row) {
  U odd{};
  for (int64_t k = 0; k < up_to(count, 32); k += 32) {
    F x = lanes_before(a + k, count - k), y = lanes_before(a + k + L, count - k - L);
    uint16_t rounded[2 * L];
    U high = rounded_along(x, y);
    memcpy(rounded, &high, sizeof high);
    store(to.high[row] + k / 2, high);
    store(to.low[row] + k / 2, rounded_along(x - wide_load(rounded), y - wide_load(rounded + L)));
    odd |= without_halves(x) | without_halves(y);
  }
  to.exact[row] = any(odd);
}

inline void split_rows(const float* a, int64_t a_row, int64_t rows, int64_t count, SplitRows& to) {
  int64_t bytes = up_to(count, 32) * 2;
  for (int64_t r = 0; r < 32; r++) {
    to.exact[r] = false;
    if (r < rows) split_row(a + r * a_row, count, to, r);
    if (r >= rows || to.exact[r]) memset(to.high[r], 0, bytes), memset(to.low[r], 0, bytes);
  }
}

// c += A B for 32 rows and 32 columns from `column` on; c has rows of 32.
inline void multiply_halves(const SplitRows& a, const SplitColumns& b, int64_t column, int64_t units, float* c) {
  constexpr int64_t A_ROW = sizeof a.high[0], B_ROW = sizeof b.high[0];
  _tile_loadd(0, c, 128);
  _tile_loadd(1, c + 16, 128);
  _tile_loadd(2, c + 16 * 32, 128);
  _tile_loadd(3, c + 16 * 32 + 16, 128);
  for (int64_t u = 0; u < units; u += 16)
    for (int part = 0; part < 3; part++) {  // high high, high low, low high
      const auto& rows = part == 2 ? a.low : a.high;
      const auto& columns = part == 1 ? b.low : b.high;
      _tile_loadd(4, rows[0] + u, A_ROW);
      _tile_loadd(5, rows[16] + u, A_ROW);
      _tile_loadd(6, columns[u] + column, B_ROW);
      _tile_loadd(7, columns[u] + column + 16, B_ROW);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  _tile_stored(0, c, 128);
  _tile_stored(1, c + 16, 128);
  _tile_stored(2, c + 16 * 32, 128);
  _tile_stored(3, c + 16 * 32 + 16, 128);
}

// One row times 32 columns or fewer in plain fp32.
inline void multiply_row(const float* a, const float* b, int64_t b_row, int64_t count, int64_t width, float* c) {
  for (int64_t k = 0; k < count; k++)
    for (int64_t j = 0; j < width; j += L) store(c + j, load(c + j) + a[k] * load(b + k * b_row + j));
}

// One part of K of up to SPLIT_HEIGHT rows and 64 columns. c: blocks of 32 x 32, two for each 32 rows.
inline void add_part(const float* a, int64_t a_row, const float* b, int64_t b_row, int64_t rows, int64_t width,
                     int64_t count, float (*c)[2][32 * 32], SplitRows& split_a, SplitColumns& split_b) {
  split_columns(b, b_row, count, width, split_b);
  for (int64_t row = 0; row < rows; row += 32) {
    int64_t here = rows - row < 32 ? rows - row : 32;
    const float* from = a + row * a_row;
    split_rows(from, a_row, here, count, split_a);
    for (int64_t column = 0; column < width; column += 32) {
      float* to = c[row / 32][column / 32];
      int64_t columns = width - column < 32 ? width - column : 32;
      if (!split_b.exact) multiply_halves(split_a, split_b, column, up_to(count, 32) / 2, to);
      for (int64_t r = 0; r < here; r++)
        if (split_b.exact || split_a.exact[r])
          multiply_row(from + r * a_row, b + column, b_row, count, columns, to + r * 32);
    }
  }
}

template <class Each>
inline void product_by_3(const float* a, int64_t a_row, const float* b, int64_t b_row, int64_t rows, int64_t width,
                         int64_t units, Each& each) {
  alignas(64) float c[SPLIT_HEIGHT / 32][2][32 * 32];
  SplitRows split_a;
  SplitColumns split_b;
  for (int64_t column = 0; column < width; column += 64)
    for (int64_t row = 0; row < rows; row += SPLIT_HEIGHT) {
      int64_t here = rows - row < SPLIT_HEIGHT ? rows - row : SPLIT_HEIGHT;
      int64_t columns = width - column < 64 ? width - column : 64;
      memset(c, 0, sizeof c);
      for (int64_t k = 0; k < units; k += SPLIT_NUMBERS) {
        int64_t count = units - k < SPLIT_NUMBERS ? units - k : SPLIT_NUMBERS;
        add_part(a + row * a_row + k, a_row, b + k * b_row + column, b_row, here, columns, count, c, split_a, split_b);
      }
      for (int64_t r = 0; r < here; r += 32)
        for (int64_t j = 0; j < columns; j += 32) {
          const float* block = c[r / 32][j / 32];
          int64_t high = here - r < 32 ? here - r : 32;
          if (columns - j > 16) hand_over_rows<By3, 2>(block, row + r, column + j, high, each);
          else hand_over_rows<By3, 1>(block, row + r, column + j, high, each);
        }
    }
}

}  // namespace
