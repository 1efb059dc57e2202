// The product on AMX tiles: blocks of 32 x 32, two tiles of A by two of B, four of C. Packed B has the layout that the
// tile unit wants already (16 rows of units, columns side by side), so one layout serves both forms.
#pragma once
#if EF_AMX_EMULATED
#include "amx_emulated.h"
#endif

namespace {

template <class T>
constexpr bool HAS_TILES = false;
template <>
constexpr bool HAS_TILES<Bf16> = true;
template <>
constexpr bool HAS_TILES<Int8> = true;

// Eight tiles of 16 rows x 64 bytes, set once by each thread: 0-3 are C, 4-5 A, 6-7 B.
struct __attribute__((packed)) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
inline void enter_tiles() {
  TileConfig config;
  _tile_loadconfig(&config);
}
inline void leave_tiles() { _tile_release(); }

// Tiles are named by constants in the instruction itself, so this cannot be a function.
#define EF_DOT(T, c, a, b)          \
  do {                              \
    if constexpr (T::numbers == 2) { \
      _tile_dpbf16ps(c, a, b);      \
    } else {                        \
      _tile_dpbusd(c, a, b);        \
    }                               \
  } while (0)

// A block of 16 * A_TILES rows and 16 * B_TILES columns into `c` (rows of 32).
template <class T, int A_TILES, int B_TILES>
inline void tile_block(const typename T::unit* a, int64_t a_row, const typename T::unit* b, int64_t b_row,
                       int64_t units, void* c, const Ahead& ahead) {
  _tile_zero(0);
  if constexpr (B_TILES == 2) _tile_zero(1);
  if constexpr (A_TILES == 2) _tile_zero(2);
  if constexpr (A_TILES == 2 && B_TILES == 2) _tile_zero(3);
  for (int64_t u = 0; u < units; u += 16) {
    if (ahead.next < ahead.end)
      for (int64_t line = u; line < u + 16; line++) ahead.fetch(line);
    _tile_loadd(4, a + u, a_row * 4);
    _tile_loadd(6, b + u * b_row, b_row * 4);
    EF_DOT(T, 0, 4, 6);
    if constexpr (B_TILES == 2) {
      _tile_loadd(7, b + u * b_row + 16, b_row * 4);
      EF_DOT(T, 1, 4, 7);
    }
    if constexpr (A_TILES == 2) {
      _tile_loadd(5, a + 16 * a_row + u, a_row * 4);
      EF_DOT(T, 2, 5, 6);
      if constexpr (B_TILES == 2) EF_DOT(T, 3, 5, 7);
    }
  }
  char* to = (char*)c;
  _tile_stored(0, to, 128);
  if constexpr (B_TILES == 2) _tile_stored(1, to + 64, 128);
  if constexpr (A_TILES == 2) _tile_stored(2, to + 16 * 128, 128);
  if constexpr (A_TILES == 2 && B_TILES == 2) _tile_stored(3, to + 16 * 128 + 64, 128);
}
#undef EF_DOT

template <class T, int R, int V, class Each>
inline void hand_over(const void* block, int64_t row, int64_t column, int64_t inside, Each& each) {
  typename T::Sum c[R][V];
  for (int i = 0; i < R; i++)
    for (int j = 0; j < V; j++) memcpy(&c[i][j], (const char*)block + (inside + i) * 128 + j * 64, 64);
  each(Count<R>(), row + inside, column, c);
}

template <class T, int V, class Each>
inline void hand_over_rows(const void* block, int64_t row, int64_t column, int64_t rows, Each& each) {
  int64_t r = 0;
  for (; r + ROWS <= rows; r += ROWS) hand_over<T, ROWS, V>(block, row, column, r, each);
  for (; r + 2 <= rows; r += 2) hand_over<T, 2, V>(block, row, column, r, each);
  if (r < rows) hand_over<T, 1, V>(block, row, column, r, each);
}

template <class T, class Each>
inline void product_in_tiles(const typename T::unit* a, int64_t a_row, const typename T::unit* b, int64_t b_row,
                             int64_t rows, int64_t width, int64_t units, Each& each, Ahead ahead) {
  alignas(64) char block[32 * 128];
  units = up_to(units, UNIT_STEP);
  for (int64_t row = 0; row < rows; row += 32) {
    int64_t here = rows - row < 32 ? rows - row : 32;
    for (int64_t column = 0; column < width; column += 32) {
      const auto *from = a + row * a_row, *to = b + column;
      bool tall = here > 16, broad = width - column > 16;
      if (tall && broad) tile_block<T, 2, 2>(from, a_row, to, b_row, units, block, ahead);
      else if (tall) tile_block<T, 2, 1>(from, a_row, to, b_row, units, block, ahead);
      else if (broad) tile_block<T, 1, 2>(from, a_row, to, b_row, units, block, ahead);
      else tile_block<T, 1, 1>(from, a_row, to, b_row, units, block, ahead);
      if (ahead.next < ahead.end) ahead.next += units * 64;
      if (broad) hand_over_rows<T, 2>(block, row, column, here, each);
      else hand_over_rows<T, 1>(block, row, column, here, each);
    }
  }
}

}  // namespace
