// Any text as what an answer is held to. The first line names a field of structured_outputs (any other stands
// for one); what compiles, within the limits of work, is walked through: a token that a mask permits is
// accepted, what was taken back is accepted again, and an answer under a schema is JSON.
#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json.h"
#include "grammar/grammar_door.h"
#include "quire/error.h"
#include "util/check.h"

namespace {

using namespace quire;

constexpr int32_t kEos = 0;

// The end, a special token, every byte, and some longer texts.
class BytesTokenizer final : public Tokenizer {
 public:
  BytesTokenizer() : tokens_{"<eos>", "<tool>"} {
    for (int byte = 0; byte < 256; ++byte) tokens_.emplace_back(1, static_cast<char>(byte));
    for (const char* text :
         {"{\"", "\": ",     "\", \"", "\"}", "null", "true",     "12", "-0", "e+", "\n\n",    "  ",
          "ab",  "aaaaaaaa", "\\u00",  "é",   "漢",   "\xe6\xbc", "[[", "]]", "</", "<think>", ".5"})
      tokens_.emplace_back(text);
  }
  std::vector<int32_t> encode(std::string_view, bool) const override { return {}; }
  Encoding encode_with_offsets(std::string_view, bool) const override { return {}; }
  std::string decode(std::span<const int32_t>, bool) const override { return ""; }
  std::unique_ptr<IncrementalDetokenizer> detokenizer(bool) const override { return nullptr; }
  int32_t vocab_size() const override { return static_cast<int32_t>(tokens_.size()); }
  std::optional<std::string> id_to_token(int32_t id) const override {
    return tokens_[static_cast<size_t>(id)];
  }
  std::optional<int32_t> token_to_id(std::string_view token) const override {
    const auto found = std::find(tokens_.begin(), tokens_.end(), token);
    if (found == tokens_.end()) return std::nullopt;
    return static_cast<int32_t>(found - tokens_.begin());
  }
  bool is_special(int32_t id) const override { return id < 2; }
  std::string_view token_bytes(int32_t id) const override { return tokens_[static_cast<size_t>(id)]; }
  size_t max_token_bytes() const override { return 8; }

 private:
  std::vector<std::string> tokens_;
};

struct World {
  const std::shared_ptr<const Tokenizer> tokenizer = std::make_shared<BytesTokenizer>();
  std::shared_ptr<GrammarCompiler> compiler;
  std::unique_ptr<GrammarDoor> door;

  World() {
    GrammarLimits limits;
    limits.max_check_seconds = 0.02;
    limits.max_compile_seconds = 0.05;
    limits.max_mask_seconds = 0.02;
    limits.max_bytes_of_work = 256 << 20;
    limits.max_shared_bytes = 1 << 20;  // so that some go
    compiler = make_grammar_compiler(tokenizer, tokenizer->vocab_size() + 3, {kEos}, limits);
    door = std::make_unique<GrammarDoor>(compiler);
  }
};

StructuredOutputsParams params_of(std::string_view input) {
  const size_t end = std::min(input.find('\n'), input.size());
  const std::string_view name = input.substr(0, end);
  std::string text(input.substr(std::min(end + 1, input.size())));
  constexpr std::string_view kFields[] = {"json", "structural_tag", "grammar", "regex", "choice"};
  const auto* found = std::find(std::begin(kFields), std::end(kFields), name);
  if (found == std::end(kFields)) found = kFields + std::hash<std::string_view>{}(name) % std::size(kFields);
  StructuredOutputsParams params;
  params.disable_any_whitespace = input.size() % 4 == 0;
  switch (found - kFields) {
    case 0: params.json = JsonText{std::move(text)}; break;
    case 1: params.structural_tag = JsonText{std::move(text)}; break;
    case 2: params.grammar = std::move(text); break;
    case 3: params.regex = std::move(text); break;
    default: params.choice.emplace(2, std::move(text)).back() += 'x';
  }
  return params;
}

// A token that the mask permits; the end, if it is one, more often than others. -1: none is permitted.
int32_t pick(const std::vector<int32_t>& mask, std::mt19937& rng, int32_t num_tokens) {
  std::vector<int32_t> permitted;
  for (int32_t id = 0; id < num_tokens; ++id) {
    if ((static_cast<uint32_t>(mask[static_cast<size_t>(id) / 32]) >> (id % 32) & 1U) != 0)
      permitted.push_back(id);
  }
  if (permitted.empty()) return -1;
  return permitted[0] == kEos && rng() % 3 == 0 ? kEos : permitted[rng() % permitted.size()];
}

void walk(const CompiledGrammar& grammar, const Tokenizer& tokenizer, bool is_json, uint32_t seed) {
  std::mt19937 rng(seed);
  const auto matcher = grammar.make_matcher();
  const int32_t num_tokens = tokenizer.vocab_size() + 3;
  std::vector<int32_t> mask((static_cast<size_t>(num_tokens) + 31) / 32), taken;
  std::string text;
  while (!matcher->is_terminated() && taken.size() < 48) {
    matcher->find_jump_forward_string();
    matcher->fill_bitmask(mask);
    const int32_t id = pick(mask, rng, num_tokens);
    if (id < 0) return;
    QUIRE_CHECK(id < tokenizer.vocab_size(), "token ", id, " is none");
    QUIRE_CHECK(matcher->accept_token(id), "token ", id, " is permitted and refused behind '", text, "'");
    taken.push_back(id);
    if (id != kEos) text += tokenizer.token_bytes(id);
    if (rng() % 4 != 0) continue;
    const size_t count = rng() % taken.size();
    matcher->roll_back(static_cast<int32_t>(count));
    for (size_t i = taken.size() - count; i < taken.size(); ++i)
      QUIRE_CHECK(matcher->accept_token(taken[i]), "what was taken back is refused");
  }
  if (!is_json || !matcher->is_terminated() || text.find_first_of("eE") != text.npos) return;
  parse_json(text, "an answer");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (!has_grammar_compiler()) return 0;
  static const World world;
  StructuredOutputsParams params = params_of({reinterpret_cast<const char*>(data), size});
  std::shared_ptr<const CompiledGrammar> grammar;
  try {
    params.validate();
    world.door->enter(params);
    grammar = world.compiler->compile(grammar_key(params));
  } catch (const Error&) {
    return 0;
  }
  const auto seed =
      static_cast<uint32_t>(std::hash<std::string_view>{}({reinterpret_cast<const char*>(data), size}));
  for (uint32_t i = 0; i < 2; ++i) {
    try {
      walk(*grammar, *world.tokenizer, params.json.has_value(), seed + i);
    } catch (const InvalidArgument& error) {
      // A limit of work.
      QUIRE_CHECK(std::string_view(error.what()).find("takes longer") != std::string_view::npos,
                  error.what());
    }
  }
  return 0;
}
