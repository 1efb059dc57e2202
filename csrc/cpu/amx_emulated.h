// AMX tile instructions in plain C++, so that the AMX tier's own code is tested on machines without AMX.
// Semantics after the Intel Architecture Instruction Set Extensions Programming Reference, TDPBF16PS and TDPBUSD.
#pragma once
#include <stdint.h>
#include <string.h>

namespace {

struct EmulatedTile {
  uint8_t row[16][64];
};
// Eight for each thread.
inline EmulatedTile* emulated_tiles() {
  static thread_local EmulatedTile tiles[8];
  return tiles;
}

inline void emulated_load(int t, const void* from, int64_t stride) {
  for (int r = 0; r < 16; r++) memcpy(emulated_tiles()[t].row[r], (const char*)from + r * stride, 64);
}
inline void emulated_store(int t, void* to, int64_t stride) {
  for (int r = 0; r < 16; r++) memcpy((char*)to + r * stride, emulated_tiles()[t].row[r], 64);
}
inline void emulated_bf16(int c, int a, int b) {
  EmulatedTile* t = emulated_tiles();
  for (int m = 0; m < 16; m++)
    for (int k = 0; k < 16; k++)
      for (int n = 0; n < 16; n++) {
        float sum;
        uint16_t x[2], y[2];
        memcpy(&sum, t[c].row[m] + 4 * n, 4);
        memcpy(x, t[a].row[m] + 4 * k, 4);
        memcpy(y, t[b].row[k] + 4 * n, 4);
        for (int i = 0; i < 2; i++) sum += widen(x[i]) * widen(y[i]);
        memcpy(t[c].row[m] + 4 * n, &sum, 4);
      }
}
inline void emulated_u8s8(int c, int a, int b) {
  EmulatedTile* t = emulated_tiles();
  for (int m = 0; m < 16; m++)
    for (int k = 0; k < 16; k++)
      for (int n = 0; n < 16; n++) {
        int32_t sum;
        memcpy(&sum, t[c].row[m] + 4 * n, 4);
        for (int i = 0; i < 4; i++) sum += (int32_t)t[a].row[m][4 * k + i] * (int8_t)t[b].row[k][4 * n + i];
        memcpy(t[c].row[m] + 4 * n, &sum, 4);
      }
}

}  // namespace

// The compiler defines some of these as macros even where the instructions are not enabled.
#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbusd
#define _tile_loadconfig(config) ((void)(config))
#define _tile_release() memset(emulated_tiles(), 0, 8 * sizeof(EmulatedTile))
#define _tile_zero(t) memset(emulated_tiles() + (t), 0, sizeof(EmulatedTile))
#define _tile_loadd(t, from, stride) emulated_load(t, from, stride)
#define _tile_stored(t, to, stride) emulated_store(t, to, stride)
#define _tile_dpbf16ps(c, a, b) emulated_bf16(c, a, b)
#define _tile_dpbusd(c, a, b) emulated_u8s8(c, a, b)
