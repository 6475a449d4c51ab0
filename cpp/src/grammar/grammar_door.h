// Where grammars come in: what is none is refused, and schemas are written as the compiler wants them.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "grammar/grammar.h"

namespace quire {

// Thread-safe.
class GrammarDoor {
 public:
  explicit GrammarDoor(std::shared_ptr<GrammarCompiler> compiler) : compiler_(std::move(compiler)) {}

  // Takes the time of reading it, and a few microseconds for what came lately, too. Throws InvalidArgument
  // for what is no grammar, or has a part that would not be kept to; parameters are then as they were.
  void enter(StructuredOutputsParams& params);

 private:
  static constexpr size_t kMaxBytes = 32 << 20;  // of texts

  const std::shared_ptr<GrammarCompiler> compiler_;
  std::mutex mutex_;
  std::unordered_map<GrammarKey, std::string, GrammarKeyHash> prepared_;  // by what came
  size_t num_bytes_ = 0;
};

}  // namespace quire
