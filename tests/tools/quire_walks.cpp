// What a grammar accepts and what can be generated under it, for the tests in Python.
//
//   quire_walks MODEL_DIR VOCAB_SIZE EOS_TOKEN_ID < questions
//
// A question is a line of JSON: {"structured_outputs": {...}, "documents": [text, ...], "num_walks": n,
// "max_tokens": m, "seed": s}. The answer is a line: {"error": why}, or {"accepted": [bool, ...], "walks":
// [{"text", "ended"}, ...]}. A document is accepted when every token of it is permitted, and then the end. A
// walk takes permitted tokens at random; every eighth compares, in each of its first states, every token's
// bit of the mask with what accept_token says.
#include <bit>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "formats/json.h"
#include "grammar/grammar.h"
#include "grammar/grammar_door.h"
#include "quire/error.h"
#include "quire/fields.h"
#include "util/str.h"

namespace quire {
namespace {

class Answers {
 public:
  Answers(const std::string& model, int32_t vocab_size, int32_t eos_token_id)
      : tokenizer_(Tokenizer::load(model)),
        vocab_size_(vocab_size),
        eos_token_id_(eos_token_id),
        compiler_(make_grammar_compiler(tokenizer_, vocab_size, {eos_token_id})) {}

  Json answer(const std::string& line) {
    const Json question = parse_json(line, "question");
    EngineRequest request;
    set_field(request, "structured_outputs", std::string(find_member_text(line, "structured_outputs")));
    StructuredOutputsParams params = *request.sampling_params.structured_outputs;
    params.validate();
    GrammarDoor(compiler_).enter(params);
    const auto grammar = compiler_->compile(grammar_key(params));
    Json result = {{"accepted", Json::array()}, {"walks", Json::array()}};
    for (const Json& document : question.value("documents", Json::array()))
      result["accepted"].push_back(accepts(*grammar->make_matcher(), document.get<std::string>()));
    std::mt19937_64 random(question.value("seed", 0));
    for (int i = 0; i < question.value("num_walks", 0); ++i)
      result["walks"].push_back(
          walk(*grammar->make_matcher(), question.value("max_tokens", 200), i % 8 == 0, random));
    return result;
  }

 private:
  static constexpr int kComparedStates = 8;

  std::vector<int32_t> permitted(GrammarMatcher& matcher) const {
    std::vector<int32_t> mask((static_cast<size_t>(vocab_size_) + 31) / 32);
    matcher.fill_bitmask(mask);
    std::vector<int32_t> ids;
    for (int32_t id = 0; id < vocab_size_; ++id) {
      if ((static_cast<uint32_t>(mask[static_cast<size_t>(id) / 32]) >> (id % 32) & 1U) != 0)
        ids.push_back(id);
    }
    return ids;
  }
  bool accepts(GrammarMatcher& matcher, const std::string& text) const {
    std::vector<int32_t> ids = tokenizer_->encode(text, false);
    ids.push_back(eos_token_id_);
    for (const int32_t id : ids) {
      const auto allowed = permitted(matcher);
      const bool in_mask = std::binary_search(allowed.begin(), allowed.end(), id);
      if (matcher.accept_token(id) != in_mask) throw InternalError("a mask and accept_token differ");
      if (!in_mask) return false;
    }
    return true;
  }
  void compare(GrammarMatcher& matcher, const std::vector<int32_t>& allowed, const std::string& text) const {
    for (int32_t id = 0; id < vocab_size_; ++id) {
      const bool accepted = matcher.accept_token(id);
      if (accepted) matcher.roll_back(1);
      if (accepted == std::binary_search(allowed.begin(), allowed.end(), id)) continue;
      throw InternalError(str("after '", text, "' a mask and accept_token differ about token ", id, ", '",
                              std::string(tokenizer_->token_bytes(id)), "'"));
    }
  }
  // Tokens at random would seldom close what they have opened.
  Json walk(GrammarMatcher& matcher, int max_tokens, bool compares, std::mt19937_64& random) const {
    std::string text;
    const auto chance = [&](double p) { return std::uniform_real_distribution<>(0, 1)(random) < p; };
    for (int i = 0; i < max_tokens; ++i) {
      const auto allowed = permitted(matcher);
      if (compares && i < kComparedStates) compare(matcher, allowed, text);
      if (allowed.empty()) return {{"text", text}, {"ended", false}, {"stuck", true}};
      std::vector<int32_t> short_ones, closing;
      for (const int32_t id : allowed) {
        const std::string_view bytes = tokenizer_->token_bytes(id);
        if (bytes.size() == 1) short_ones.push_back(id);
        if (bytes == "\"" || bytes == "}" || bytes == "]") closing.push_back(id);
      }
      const bool may_end = std::binary_search(allowed.begin(), allowed.end(), eos_token_id_);
      const std::vector<int32_t>& from = !closing.empty() && chance(0.3)      ? closing
                                         : !short_ones.empty() && chance(0.5) ? short_ones
                                                                              : allowed;
      const int32_t id = may_end && chance(0.4) ? eos_token_id_ : from[random() % from.size()];
      if (!matcher.accept_token(id))
        throw InternalError(str("after '", text, "' the mask permits token ", id, ", '",
                                std::string(tokenizer_->token_bytes(id)), "', and accept_token does not"));
      if (id == eos_token_id_) return {{"text", text}, {"ended", true}};
      text += tokenizer_->token_bytes(id);
    }
    return {{"text", text}, {"ended", false}};
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  int32_t vocab_size_, eos_token_id_;
  const std::shared_ptr<GrammarCompiler> compiler_;
};

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: quire_walks MODEL_DIR VOCAB_SIZE EOS_TOKEN_ID\n";
    return 2;
  }
  quire::Answers answers(argv[1], std::stoi(argv[2]), std::stoi(argv[3]));
  for (std::string line; std::getline(std::cin, line);) {
    quire::Json answer;
    try {
      answer = answers.answer(line);
    } catch (const quire::InvalidArgument& error) {
      answer = {{"error", error.what()}};
    }
    std::cout << answer.dump(-1, ' ', true, quire::Json::error_handler_t::replace) << std::endl;
  }
}
