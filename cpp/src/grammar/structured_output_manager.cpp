#include "grammar/structured_output_manager.h"

#include <algorithm>
#include <vector>

#include "grammar/parallel_for.h"
#include "util/check.h"

namespace quire {
namespace {

// What the grammars of a manager have in common; it outlives them.
struct Common {
  std::shared_ptr<const Tokenizer> tokenizer;
  size_t num_jump_forward_tokens = 0;
  ThinkTokens think_tokens;
};

class Grammar final : public StructuredOutputGrammar {
 public:
  Grammar(const Common& common, std::shared_ptr<const GrammarEntry> entry, const EngineCoreRequest& request)
      : common_(common), entry_(std::move(entry)), thinking_(common.think_tokens, *request.prompt_token_ids) {
    for (const int32_t token_id : request.output_token_ids) {
      if (thinking_.has_ended()) {
        earlier_tokens_.push_back(token_id);
      } else {
        thinking_.take(token_id);
      }
    }
  }

  State state() const override {
    switch (entry_->state.load(std::memory_order_acquire)) {
      case GrammarEntry::State::kCompiling: return State::kCompiling;
      case GrammarEntry::State::kReady: return State::kReady;
      case GrammarEntry::State::kFailed: break;
    }
    return State::kFailed;
  }

  std::string error() const override { return state() == State::kFailed ? entry_->error : error_; }

  bool accept_tokens(std::span<const int32_t> token_ids) override {
    if (!error_.empty()) return false;
    for (const int32_t token_id : token_ids) {
      if (!thinking_.has_ended()) {
        thinking_.take(token_id);
        ++num_tokens_;
      } else if (!accept(token_id)) {
        return false;
      }
    }
    return true;
  }

  int32_t num_valid_drafts(std::span<const int32_t> token_ids) override {
    if (!error_.empty()) return 0;
    Thinking thinking = thinking_;
    int32_t count = 0, num_accepted = 0;
    try {
      for (const int32_t token_id : token_ids) {
        if (!thinking.has_ended()) {
          thinking.take(token_id);
        } else if (matcher().accept_token(token_id)) {
          ++num_accepted;
        } else {
          break;
        }
        ++count;
      }
    } catch (const std::exception&) {  // as far as it went; whoever samples there will hear of it
    }
    if (num_accepted > 0) matcher().roll_back(num_accepted);
    return count;
  }

  std::span<const int32_t> propose() override {
    proposed_.clear();
    if (!error_.empty() || !thinking_.has_ended()) return {};
    try {
      std::string text = matcher().find_jump_forward_string();
      // Longer than that it would be cut in vain.
      constexpr size_t kMaxTokenBytes = 16;
      text.resize(std::min(text.size(), common_.num_jump_forward_tokens * kMaxTokenBytes));
      // What ends within a character is not text.
      while (!text.empty() && (static_cast<unsigned char>(text.back()) & 0xc0) == 0x80) text.pop_back();
      if (!text.empty() && static_cast<unsigned char>(text.back()) >= 0xc0) text.pop_back();
      if (!text.empty()) proposed_ = common_.tokenizer->encode(text, /*add_special_tokens=*/false);
    } catch (const std::exception&) {  // it is sampled then
    }
    return std::span(proposed_).first(std::min(proposed_.size(), common_.num_jump_forward_tokens));
  }

  void fill(const GrammarMasks& masks) {
    const size_t num_words = masks.bitmask.size() / (masks.drafts.size() + 1);
    Thinking thinking = thinking_;
    int32_t num_accepted = 0;
    size_t row = 0;
    try {
      while (error_.empty()) {
        const std::span<int32_t> mask = masks.bitmask.subspan(row * num_words, num_words);
        if (!thinking.has_ended()) {
          std::ranges::fill(mask, -1);
        } else if (matcher().is_terminated()) {
          break;
        } else {
          matcher().fill_bitmask(mask);
          if (std::ranges::all_of(mask, [](int32_t word) { return word == 0; })) {
            if (row == 0) fail("no token of the vocabulary can follow");
            break;
          }
        }
        if (++row > masks.drafts.size()) break;
        if (!thinking.has_ended()) {
          thinking.take(masks.drafts[row - 1]);
        } else if (matcher().accept_token(masks.drafts[row - 1])) {
          ++num_accepted;
        } else {
          break;
        }
      }
    } catch (const std::exception& error) {
      if (row == 0) fail(error.what());
    }
    if (num_accepted > 0) matcher().roll_back(num_accepted);
    std::fill(masks.bitmask.begin() + static_cast<std::ptrdiff_t>(row * num_words), masks.bitmask.end(), -1);
  }

 private:
  GrammarMatcher& matcher() {
    if (!matcher_) {
      matcher_ = entry_->grammar->make_matcher();
      for (const int32_t token_id : std::exchange(earlier_tokens_, {})) {
        if (!accept(token_id)) break;
      }
    }
    return *matcher_;
  }
  bool accept(int32_t token_id) {
    try {
      if (matcher().accept_token(token_id)) {
        ++num_tokens_;
        return true;
      }
      fail(str("token ", token_id, " cannot follow"));
    } catch (const std::exception& error) {
      fail(error.what());
    }
    return false;
  }
  void fail(const std::string& why) {
    if (error_.empty())
      error_ = str("structured_outputs: after ", num_tokens_, " tokens of the answer, ", why);
  }

  const Common& common_;
  const std::shared_ptr<const GrammarEntry> entry_;
  Thinking thinking_;
  std::vector<int32_t> earlier_tokens_;  // generated by another engine; the matcher begins with them
  std::unique_ptr<GrammarMatcher> matcher_;
  int32_t num_tokens_ = 0;
  std::vector<int32_t> proposed_;
  std::string error_;
};

class Manager final : public StructuredOutputManager {
 public:
  Manager(std::shared_ptr<GrammarCompiler> compiler, const StructuredOutputConfig& config)
      : common_{config.tokenizer, static_cast<size_t>(config.num_jump_forward_tokens), config.think_tokens},
        cache_(std::move(compiler), config.num_threads, config.max_cache_bytes),
        threads_(config.num_threads),
        num_mask_words_((static_cast<size_t>(config.vocab_size) + 31) / 32) {}

  std::unique_ptr<StructuredOutputGrammar> make_grammar(const EngineCoreRequest& request) override {
    const auto& params = request.sampling_params->structured_outputs;
    if (!params) return nullptr;
    return std::make_unique<Grammar>(common_, cache_.find_or_compile(grammar_key(*params)), request);
  }

  int32_t num_jump_forward_tokens() const override {
    return static_cast<int32_t>(common_.num_jump_forward_tokens);
  }
  size_t num_mask_words() const override { return num_mask_words_; }
  void fill_bitmasks(std::span<const GrammarMasks> masks) override {
    const auto fill = [masks](size_t i) { static_cast<Grammar*>(masks[i].grammar)->fill(masks[i]); };
    threads_.run(masks.size(), fill);
  }

 private:
  const Common common_;
  GrammarCache cache_;
  ParallelFor threads_;
  const size_t num_mask_words_;
};

}  // namespace

std::unique_ptr<StructuredOutputManager> make_structured_output_manager(
    std::shared_ptr<GrammarCompiler> compiler, const StructuredOutputConfig& config) {
  return std::make_unique<Manager>(std::move(compiler), config);
}

}  // namespace quire
