// The rows of the H200 tables for Llama's shapes, with the figures that they are held against.
#pragma once

#include <vector>

#include "../llama_shapes.h"
#include "engine_rows.h"

namespace quire {

struct DecodeRow {
  int32_t batch, context;
  Figures figures;
};
struct PrefillRow {
  int32_t length;
  double vllm, target, floor;
};

// Of one shape on so many devices.
struct LlamaRows {
  const char* shape;
  const char* config;
  int32_t num_devices;
  std::vector<DecodeRow> decode;
  std::vector<PrefillRow> prefill;
  // 256 requests of 512 tokens, 128 more each; 1,000 of 64 to 1,024, 200 more; process start to first token.
  Figures equal, mixed, start;
};

inline const std::vector<LlamaRows>& llama_rows() {
  static const std::vector<LlamaRows> kRows = {
      {.shape = "llama-3.1-8b",
       .config = kLlama8B,
       .num_devices = 1,
       .decode = {{1, 1024, {4.88, 3.90, 3.46}},
                  {1, 8192, {5.14, 4.15, 3.67}},
                  {8, 1024, {5.16, 4.25, 3.71}},
                  {32, 1024, {6.30, 5.25, 4.55}},
                  {64, 1024, {7.58, 6.5, 5.67}},
                  {64, 4096, {13.5, 12.5, 11.6}},
                  {128, 1024, {10.6, 9.0, 8.0}},
                  {256, 1024, {18.0, 15.5, 14.1}}},
       .prefill =
           {{512, 17.7, 14, 10.1}, {2048, 52.5, 48, 41.6}, {8192, 221, 205, 184}, {16384, 494, 450, 414}},
       .equal = {6807, 8500},
       .mixed = {8481, 11000},
       .start = {51, 4}},
      {.shape = "llama-3.1-8b",
       .config = kLlama8B,
       .num_devices = 2,
       .decode = {{1, 1024, {3.43, 2.5, 1.73}},
                  {8, 1024, {3.79, 2.7, 1.86}},
                  {32, 1024, {4.33, 3.3, 2.28}},
                  {64, 1024, {4.75, 3.8, 2.84}},
                  {64, 4096, {7.90, 7.0, 5.8}},
                  {256, 1024, {10.1, 8.6, 7.05}}},
       .prefill = {{512, 12.7, 8, 5.1}, {8192, 130, 112, 92}},
       .equal = {11210, 14000},
       .mixed = {},
       .start = {97, 5}},
      {.shape = "llama-3.1-70b",
       .config = kLlama70B,
       .num_devices = 2,
       .decode = {{1, 1024, {21.2, 18.3, 16.1}},
                  {8, 1024, {21.6, 18.8, 16.4}},
                  {32, 1024, {23.5, 20.5, 17.5}},
                  {64, 1024, {25.7, 22.5, 18.7}},
                  {64, 4096, {34.2, 30, 26.1}},
                  {256, 1024, {49.8, 42, 34}}},
       .prefill = {{512, 70, 58, 48}, {8192, 1037, 900, 800}},
       .equal = {1550, 1900},
       .mixed = {},
       .start = {97, 12}},
  };
  return kRows;
}

}  // namespace quire
