// A regular expression matcher for the split patterns of tokenizer.json.
//
// It backtracks, so it finds the match that Hugging Face `tokenizers` (Oniguruma) finds: leftmost, then the
// first alternative that works. Its stack is on the heap, a run of one character class takes one frame
// whatever its length, and a match that takes too many steps for its text is given up with an error.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tokenizer/regex_ast.h"
#include "tokenizer/unicode.h"

namespace quire::text {

// What a search needs room for. One per thread; kept between searches to keep its memory.
class RegexScratch {
 public:
  // Call before a text is taken apart: some steps are free, once, whatever the pieces of it are.
  void start() { free_left_ = steps_left_ = kFreeSteps; }
  // Call before the first search in a text, or a piece of one: grants the steps that searching all of it may
  // take, with those that are still free.
  void start_text(std::string_view text) {
    free_left_ = std::min(free_left_, steps_left_);
    steps_left_ = free_left_ + kStepsPerByte * text.size();
  }

 private:
  friend class Regex;
  static constexpr uint64_t kFreeSteps = 4'000'000;
  static constexpr uint64_t kStepsPerByte = 256;

  struct Frame {
    uint32_t pc;
    size_t pos;
    size_t limit;  // greedy runs: how far back they may go; lazy runs: how many characters are left
  };
  std::vector<Frame> stack_;
  uint64_t free_left_ = kFreeSteps;
  uint64_t steps_left_ = kFreeSteps;
};

class Regex {
 public:
  struct Match {
    size_t begin;
    size_t end;
  };

  // Throws InvalidArgument for what parse_regex does not take.
  explicit Regex(std::string_view pattern);

  // The first match that begins at `start` or later; false when there is none. Throws InvalidArgument when
  // the steps that start_text granted are used up.
  bool find(std::string_view text, size_t start, RegexScratch& scratch, Match& match) const;

 private:
  enum class Op : uint8_t {
    kSet,            // one member of sets_[set]
    kGreedyRun,      // `min` to `max` members of sets_[set], as many as possible
    kLazyRun,        // as few as possible
    kPossessiveRun,  // as many as possible, none given back
    kSplit,          // go on at pc + 1; if that fails, at `target`
    kSplitLast,      // go on at `target`; if that fails, at pc + 1
    kTryIfFirst,     // as kSplit, but straight to `target` unless first_bytes_[set] allows what comes
    kJump,           // go on at `target`
    kLook,           // pc + 1 up to its kAccept matches here; go on at `target`
    kNegativeLook,
    kAtomic,
    kAssert,
    kAccept,
  };
  struct Instruction {
    Op op;
    RegexNode::Assertion assertion = RegexNode::Assertion::kLineStart;
    uint32_t set = 0;
    uint32_t min = 0;
    uint32_t max = 0;  // UINT32_MAX: unlimited
    uint32_t target = 0;
  };
  // The bytes that a match can begin with. Never too strict.
  struct FirstBytes {
    std::array<bool, 256> allowed{};
    bool at_end = false;  // it can match nothing
  };

  void compile(const RegexNode& node);
  void compile_repeat(const RegexNode& node);
  void compile_alternatives(const RegexNode& node);
  uint32_t emit(Instruction instruction);
  uint32_t next_pc() const { return static_cast<uint32_t>(program_.size()); }
  uint32_t add_set(const unicode::CodePointSet& set);
  static FirstBytes first_bytes(const RegexNode& node);
  static bool collect_first(const RegexNode& node, unicode::CodePointSet& first);

  size_t run(uint32_t pc, std::string_view text, size_t pos, RegexScratch& scratch) const;
  bool holds(RegexNode::Assertion assertion, std::string_view text, size_t pos) const;

  std::vector<Instruction> program_;
  std::vector<unicode::CodePointBitmap> sets_;
  std::vector<std::vector<CodePointRange>> set_ranges_;  // of sets_, to find equal ones
  std::vector<FirstBytes> first_bytes_;
  FirstBytes first_of_all_;
  unicode::CodePointBitmap word_;
};

}  // namespace quire::text
