// What the scheduler needs of a request's grammar. The grammar room implements it; the engine hands it over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "messages/engine_core_messages.h"

namespace quire {

// One request's grammar: compiled off the hot path, then advanced by its tokens. `state` and `error` may be
// called while another thread compiles; the rest once the state is kReady, by one thread at a time.
class StructuredOutputGrammar {
 public:
  enum class State : uint8_t { kCompiling, kReady, kFailed };

  virtual ~StructuredOutputGrammar() = default;
  virtual State state() const = 0;
  // Why it was not compiled, or why it cannot go on; empty while it can.
  virtual std::string error() const = 0;
  // Advances by sampled tokens. False when the grammar does not permit them, which a mask should have
  // prevented, or could not say what may follow: the request then fails.
  virtual bool accept_tokens(std::span<const int32_t> token_ids) = 0;
  // How many leading drafts the grammar permits. Changes nothing.
  virtual int32_t num_valid_drafts(std::span<const int32_t> token_ids) = 0;
  // Tokens of the text that must follow, as a tokenizer cuts it: where it may be cut otherwise, others may be
  // sampled. At most StructuredOutputManager::num_jump_forward_tokens; valid until the next call.
  virtual std::span<const int32_t> propose() { return {}; }
};

// The masks of a request that a step samples from: of what may follow its tokens, then of what may follow
// each of its drafts.
struct GrammarMasks {
  StructuredOutputGrammar* grammar = nullptr;
  std::span<const int32_t> drafts;
  std::span<int32_t> bitmask;  // out: [drafts.size() + 1, ceil(V / 32)]
};

// On the scheduler's thread.
class StructuredOutputManager {
 public:
  virtual ~StructuredOutputManager() = default;
  // Starts compiling the request's grammar and returns; null when it asks for none.
  virtual std::unique_ptr<StructuredOutputGrammar> make_grammar(const EngineCoreRequest& request) = 0;
  // The most that a grammar proposes; 0: none does.
  virtual int32_t num_jump_forward_tokens() const { return 0; }
  // Of one mask: ceil(V / 32).
  virtual size_t num_mask_words() const = 0;
  // Fills all of them, perhaps with several threads. Every bit is set where a grammar cannot go on, and
  // behind a draft that it does not permit.
  virtual void fill_bitmasks(std::span<const GrammarMasks> masks) = 0;
};

}  // namespace quire
