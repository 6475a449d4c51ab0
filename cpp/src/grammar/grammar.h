// A grammar compiled for a vocabulary, and how far a text is in it. Which library does that is known to one
// file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "quire/structured_outputs.h"
#include "quire/tokenizer.h"

namespace quire {

enum class GrammarKind : uint8_t { kJsonSchema, kRegex, kEbnf, kLark, kStructuralTag };

// What a grammar is made of: equal ones are one grammar.
struct GrammarKey {
  GrammarKind kind = GrammarKind::kJsonSchema;
  bool any_whitespace = true;  // of JSON
  std::string text;

  bool operator==(const GrammarKey&) const = default;
};

struct GrammarKeyHash {
  size_t operator()(const GrammarKey& key) const {
    return std::hash<std::string>()(key.text) * 31 + static_cast<size_t>(key.kind) * 2 +
           (key.any_whitespace ? 1 : 0);
  }
};

// A regular expression that a schema holds strings to, and where it stands.
struct JsonSchemaPattern {
  std::string place, regex;
};

// Of parameters that are valid.
GrammarKey grammar_key(const StructuredOutputsParams& params);

// Where one text is. Not thread-safe; several matchers of one grammar may be used at once. Throws
// InvalidArgument where going on would take longer than GrammarLimits say.
class GrammarMatcher {
 public:
  virtual ~GrammarMatcher() = default;

  // Goes on by a token. False, and nothing changes, when the grammar does not permit it.
  virtual bool accept_token(int32_t token_id) = 0;
  // The last `num_tokens` accepted were not.
  virtual void roll_back(int32_t num_tokens) = 0;
  // Sets bit v % 32 of mask[v / 32] for each token v that may follow, and clears the others. False, and the
  // mask is full, when every token may follow. Not after the end.
  //   mask [ceil(V / 32)]
  virtual bool fill_bitmask(std::span<int32_t> mask) = 0;
  // The text that must follow; empty when there is a choice.
  virtual std::string find_jump_forward_string() = 0;
  // An end-of-sequence token was accepted: nothing follows.
  virtual bool is_terminated() const = 0;
};

// Immutable and thread-safe.
class CompiledGrammar {
 public:
  virtual ~CompiledGrammar() = default;
  virtual std::unique_ptr<GrammarMatcher> make_matcher() const = 0;
  virtual size_t memory_bytes() const = 0;  // about
};

struct GrammarLimits {
  double max_check_seconds = 0.5;
  double max_compile_seconds = 2.0;      // of the compiling thread's processor time
  double max_mask_seconds = 0.2;         // for a token, and for a mask
  int64_t max_bytes_of_work = 1 << 30;   // that the process may grow by while a grammar is compiled
  int64_t max_shared_bytes = 128 << 20;  // of what grammars have in common, kept for those to come
};

// Thread-safe.
class GrammarCompiler {
 public:
  virtual ~GrammarCompiler() = default;
  // For a door: throws InvalidArgument for what is no grammar, and for one of texts that would not be text,
  // or JSON. `patterns`: of the key's schema. Takes the time of reading it, and none when it was asked about
  // lately.
  virtual void check(const GrammarKey& key, std::span<const JsonSchemaPattern> patterns) = 0;
  void check(const GrammarKey& key) { check(key, {}); }
  // Throws InvalidArgument for what is no grammar, or has a part that would not be kept to, and for more work
  // than the limits allow.
  virtual std::shared_ptr<const CompiledGrammar> compile(const GrammarKey& key) = 0;
  // Whatever is being compiled, or will be, fails soon: nobody wants it any more.
  virtual void cancel() = 0;
};

// Whether this build has a compiler.
bool has_grammar_compiler();
// `vocab_size` counts the model's logits. What takes time waits for the first grammar. Throws InvalidArgument
// when this build has none.
std::unique_ptr<GrammarCompiler> make_grammar_compiler(std::shared_ptr<const Tokenizer> tokenizer,
                                                       int32_t vocab_size, std::vector<int32_t> eos_token_ids,
                                                       const GrammarLimits& limits = {});

}  // namespace quire
