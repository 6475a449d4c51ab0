// Brings adapters to the workers.
#pragma once

#include <cstdint>
#include <string>

#include "messages/scheduler_output.h"

namespace quire {

// What loading an adapter found.
struct LoadedLora {
  int32_t rank = 0;   // the highest of its modules
  std::string stamp;  // of its files: the same as long as nobody has written one of them
  // What it computes, the same in every process that reads the same files; empty when nobody asked for it,
  // since it takes as long as reading them.
  std::string fingerprint;
};

// From any thread, while steps run: what it does stalls none.
class LoraLoader {
 public:
  virtual ~LoraLoader() = default;

  // Reads a directory into the host's memory, on every rank: a SchedulerOutput may then bring it into a slot.
  // Throws InvalidArgument, with nothing loaded, for what cannot be read or does not fit the model.
  virtual LoadedLora load(LoraId id, const std::string& directory, bool with_fingerprint) = 0;
  // No SchedulerOutput to come names it. Slots that have it keep it until they are used otherwise.
  virtual void unload(LoraId id) = 0;
};

}  // namespace quire
