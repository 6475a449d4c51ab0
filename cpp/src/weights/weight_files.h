// The files that a rank's weights come from.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "weights/checkpoint.h"
#include "weights/packed_file.h"

namespace quire {

// Who wants weights.
struct WeightReader {
  std::string layout;          // KernelTable::weight_layout
  std::string dtype = "auto";  // or that packed weights must have
  int32_t rank = 0;
  int32_t world_size = 1;
  bool takes_packed = true;  // else a checkpoint only
};

struct WeightFiles {
  Checkpoint checkpoint;                     // of packed weights: their names and shapes
  std::shared_ptr<const PackedFile> packed;  // null: none

  // The same as long as nobody has written one of them.
  std::string stamp() const { return packed ? packed->stamp() : checkpoint.stamp(); }
};

// Packed weights that suit the reader, or else a checkpoint. Throws InvalidArgument as both do, and when
// there are only weights packed for others, saying for whom.
WeightFiles open_weight_files(const std::string& directory, const WeightReader& reader);

// What a rank's packed weights are called.
std::string packed_file_name(const PackedHeader& header);

}  // namespace quire
