// AMX tiles: the instructions, and the shapes that the eight of them have here.
#pragma once

#include "isa/kernels.h"

namespace quire::cpu {
namespace {

// Names of tile registers are part of the instruction. gcc's own intrinsics do not tell the compiler
// that a tile load reads memory.
// clang-format off
#define QUIRE_TILE_LOAD(tile, base, stride) \
  asm volatile("tileloadd (%0,%1,1), %%tmm" #tile : : "r"(base), "r"(int64_t{stride}) : "memory")
#define QUIRE_TILE_STREAM(tile, base, stride) \
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm" #tile : : "r"(base), "r"(int64_t{stride}) : "memory")
#define QUIRE_TILE_STORE(tile, base, stride) \
  asm volatile("tilestored %%tmm" #tile ", (%0,%1,1)" : : "r"(base), "r"(int64_t{stride}) : "memory")
#define QUIRE_TILE_ZERO(tile) asm volatile("tilezero %%tmm" #tile : :)
#define QUIRE_TILE_DOT(sum, left, right) \
  asm volatile("tdpbf16ps %%tmm" #right ", %%tmm" #left ", %%tmm" #sum : :)
// clang-format on

constexpr int kTileRows = 16;
constexpr int kStepDepth = 32;  // depth of a full tile
constexpr int64_t kStepBytes = kStepDepth * 2;
constexpr int64_t kPanelLine = kPanelColumns * 4;  // bytes of a pair of depths in a panel

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t column_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Sums in tiles 0 to 3 (two by two), left operand in 4 and 5, right in 6 and 7.
void configure(int upper_rows, int lower_rows, int depth) {
  TileConfig config;
  for (int i = 0; i < 4; ++i) {
    config.column_bytes[i] = 64;
    config.rows[i] = static_cast<uint8_t>(i < 2 ? upper_rows : lower_rows);
  }
  for (int i = 4; i < 6; ++i) {
    config.column_bytes[i] = static_cast<uint16_t>(depth * 2);
    config.rows[i] = static_cast<uint8_t>(i == 4 ? upper_rows : lower_rows);
  }
  for (int i = 6; i < 8; ++i) {
    config.column_bytes[i] = 64;
    config.rows[i] = static_cast<uint8_t>(depth / 2);
  }
  asm volatile("ldtilecfg %0" : : "m"(config));
}

void release() { asm volatile("tilerelease" : :); }

}  // namespace
}  // namespace quire::cpu
