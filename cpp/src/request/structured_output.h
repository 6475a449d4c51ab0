// What the scheduler needs of a request's grammar. The grammar room implements it; the engine hands it over.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "messages/engine_core_messages.h"

namespace quire {

// One request's grammar: compiled off the hot path, then advanced by its tokens. `state` and `error` may be
// called while another thread compiles; the rest on the scheduler's thread, once the state is kReady.
class StructuredOutputGrammar {
 public:
  enum class State : uint8_t { kCompiling, kReady, kFailed };

  virtual ~StructuredOutputGrammar() = default;
  virtual State state() const = 0;
  // Why, when the state is kFailed.
  virtual std::string error() const = 0;
  // Advances by sampled tokens. False when the grammar does not permit them, which a mask should have
  // prevented: the request then fails.
  virtual bool accept_tokens(std::span<const int32_t> token_ids) = 0;
  // How many leading drafts the grammar permits. Changes nothing.
  virtual int32_t num_valid_drafts(std::span<const int32_t> token_ids) const = 0;
};

class StructuredOutputManager {
 public:
  virtual ~StructuredOutputManager() = default;
  // Starts compiling the request's grammar and returns; null when it asks for none.
  virtual std::unique_ptr<StructuredOutputGrammar> make_grammar(const EngineCoreRequest& request) = 0;
};

}  // namespace quire
