#include "tokenizer/regex.h"

#include <algorithm>

#include "quire/error.h"
#include "util/check.h"
#include "util/str.h"

namespace quire::text {
namespace {

using Kind = RegexNode::Kind;

constexpr size_t kNoMatch = SIZE_MAX;
constexpr size_t kMaxProgram = 20'000;
// A step is an instruction, or this many bytes scanned by one.
constexpr size_t kBytesPerStep = 8;

bool same(const std::vector<CodePointRange>& a, const std::vector<CodePointRange>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return x.first == y.first && x.last == y.last; });
}

}  // namespace

Regex::Regex(std::string_view pattern) : word_(unicode::CodePointSet(unicode::kRegexWord)) {
  const RegexNodePtr node = parse_regex(pattern);
  first_of_all_ = first_bytes(*node);
  compile(*node);
  emit({.op = Op::kAccept});
}

uint32_t Regex::emit(Instruction instruction) {
  if (program_.size() >= kMaxProgram) throw InvalidArgument("regular expression: too large to be supported");
  program_.push_back(instruction);
  return next_pc() - 1;
}

uint32_t Regex::add_set(const unicode::CodePointSet& set) {
  for (uint32_t i = 0; i < set_ranges_.size(); ++i) {
    if (same(set_ranges_[i], set.ranges())) return i;
  }
  set_ranges_.push_back(set.ranges());
  sets_.emplace_back(set);
  return static_cast<uint32_t>(sets_.size() - 1);
}

void Regex::compile(const RegexNode& node) {
  switch (node.kind) {
    case Kind::kEmpty: break;
    case Kind::kSet: emit({.op = Op::kSet, .set = add_set(node.set)}); break;
    case Kind::kConcat:
      for (const RegexNodePtr& child : node.children) compile(*child);
      break;
    case Kind::kAlternate: compile_alternatives(node); break;
    case Kind::kRepeat: compile_repeat(node); break;
    case Kind::kLook:
    case Kind::kAtomic: {
      const Op op = node.kind == Kind::kAtomic ? Op::kAtomic : node.negated ? Op::kNegativeLook : Op::kLook;
      const uint32_t start = emit({.op = op});
      compile(*node.children[0]);
      emit({.op = Op::kAccept});
      program_[start].target = next_pc();
      break;
    }
    case Kind::kAssert: emit({.op = Op::kAssert, .assertion = node.assertion}); break;
  }
}

void Regex::compile_alternatives(const RegexNode& node) {
  std::vector<uint32_t> jumps;
  for (size_t i = 0; i < node.children.size(); ++i) {
    const RegexNode& child = *node.children[i];
    if (i + 1 == node.children.size()) {
      compile(child);
      break;
    }
    const uint32_t choice = emit({.op = Op::kTryIfFirst, .set = static_cast<uint32_t>(first_bytes_.size())});
    first_bytes_.push_back(first_bytes(child));
    compile(child);
    jumps.push_back(emit({.op = Op::kJump}));
    program_[choice].target = next_pc();
  }
  for (uint32_t jump : jumps) program_[jump].target = next_pc();
}

void Regex::compile_repeat(const RegexNode& node) {
  const RegexNode& child = *node.children[0];
  const auto min = static_cast<uint32_t>(node.min);
  const uint32_t max = node.max == RegexNode::kUnlimited ? UINT32_MAX : static_cast<uint32_t>(node.max);
  if (child.kind == Kind::kSet) {
    const Op op = node.mode == RegexNode::Mode::kGreedy ? Op::kGreedyRun
                  : node.mode == RegexNode::Mode::kLazy ? Op::kLazyRun
                                                        : Op::kPossessiveRun;
    emit({.op = op, .set = add_set(child.set), .min = min, .max = max});
    return;
  }
  const bool possessive = node.mode == RegexNode::Mode::kPossessive;
  const Op choice = node.mode == RegexNode::Mode::kLazy ? Op::kSplitLast : Op::kSplit;
  const uint32_t start = possessive ? emit({.op = Op::kAtomic}) : 0;
  for (uint32_t i = 0; i < min; ++i) compile(child);
  if (max == UINT32_MAX) {
    const uint32_t loop = emit({.op = choice});
    compile(child);
    emit({.op = Op::kJump, .target = loop});
    program_[loop].target = next_pc();
  } else {
    std::vector<uint32_t> exits;
    for (uint32_t i = min; i < max; ++i) {
      exits.push_back(emit({.op = choice}));
      compile(child);
    }
    for (uint32_t exit : exits) program_[exit].target = next_pc();
  }
  if (possessive) {
    emit({.op = Op::kAccept});
    program_[start].target = next_pc();
  }
}

// Adds to `first` what a match of the node can begin with; true when it can also match nothing.
bool Regex::collect_first(const RegexNode& node, unicode::CodePointSet& first) {
  switch (node.kind) {
    case Kind::kSet: first = first.united_with(node.set); return false;
    case Kind::kConcat:
      for (const RegexNodePtr& child : node.children) {
        if (!collect_first(*child, first)) return false;
      }
      return true;
    case Kind::kAlternate: {
      bool nullable = false;
      for (const RegexNodePtr& child : node.children) nullable |= collect_first(*child, first);
      return nullable;
    }
    case Kind::kRepeat:
      if (node.max == 0) return true;
      return collect_first(*node.children[0], first) || node.min == 0;
    case Kind::kAtomic: return collect_first(*node.children[0], first);
    default: return true;
  }
}

Regex::FirstBytes Regex::first_bytes(const RegexNode& node) {
  FirstBytes bytes;
  unicode::CodePointSet first;
  bytes.at_end = collect_first(node, first);
  if (bytes.at_end) {
    bytes.allowed.fill(true);
    return bytes;
  }
  for (const CodePointRange& range : first.ranges()) {
    std::string low, high;
    append_utf8(range.first, low);
    append_utf8(range.last, high);
    // Lead bytes grow with the code point.
    for (int b = static_cast<unsigned char>(low[0]); b <= static_cast<unsigned char>(high[0]); ++b) {
      bytes.allowed[static_cast<size_t>(b)] = true;
    }
  }
  return bytes;
}

bool Regex::find(std::string_view text, size_t start, RegexScratch& scratch, Match& match) const {
  for (size_t pos = start; pos <= text.size();) {
    const bool possible = pos < text.size() ? first_of_all_.allowed[static_cast<unsigned char>(text[pos])]
                                            : first_of_all_.at_end;
    if (possible) {
      const size_t end = run(0, text, pos, scratch);
      if (end != kNoMatch) {
        match = {pos, end};
        return true;
      }
    }
    if (pos == text.size()) break;
    decode_utf8(text, pos);
  }
  return false;
}

namespace {

template <typename Stack>
[[noreturn, gnu::noinline]] void give_up(Stack& stack) {
  stack.clear();
  throw InvalidArgument("the split pattern of the tokenizer takes too many steps on this text");
}

}  // namespace

size_t Regex::run(uint32_t pc, std::string_view text, size_t pos, RegexScratch& scratch) const {
  auto& stack = scratch.stack_;
  const size_t base = stack.size();
  // Inline: as a call it would take a fifth of all the time.
  const auto spend = [&](size_t steps) __attribute__((always_inline)) {
    if (scratch.steps_left_ < steps) [[unlikely]]
      give_up(stack);
    scratch.steps_left_ -= steps;
  };
  for (;;) {
    const Instruction& instruction = program_[pc];
    bool failed = false;
    spend(1);
    switch (instruction.op) {
      case Op::kSet:
        failed = pos >= text.size() || !sets_[instruction.set].contains(decode_utf8(text, pos));
        ++pc;
        break;
      case Op::kGreedyRun:
      case Op::kLazyRun:
      case Op::kPossessiveRun: {
        const unicode::CodePointBitmap& set = sets_[instruction.set];
        const size_t begin = pos;
        for (uint32_t i = 0; i < instruction.min && !failed; ++i) {
          failed = pos >= text.size() || !set.contains(decode_utf8(text, pos));
        }
        spend((pos - begin) / kBytesPerStep);
        if (failed) break;
        const size_t left = instruction.max == UINT32_MAX ? SIZE_MAX : instruction.max - instruction.min;
        if (instruction.op == Op::kLazyRun) {
          stack.push_back({pc, pos, left});
        } else {
          const size_t end = set.skip_members(text, pos, left);
          spend((end - pos) / kBytesPerStep);
          if (end > pos && instruction.op == Op::kGreedyRun) stack.push_back({pc, end, pos});
          pos = end;
        }
        ++pc;
        break;
      }
      case Op::kTryIfFirst: {
        const FirstBytes& first = first_bytes_[instruction.set];
        if (pos < text.size() ? first.allowed[static_cast<unsigned char>(text[pos])] : first.at_end) {
          stack.push_back({pc, pos, 0});
          ++pc;
        } else {
          pc = instruction.target;
        }
        break;
      }
      case Op::kSplit:
        stack.push_back({pc, pos, 0});
        ++pc;
        break;
      case Op::kSplitLast:
        stack.push_back({pc, pos, 0});
        pc = instruction.target;
        break;
      case Op::kJump: pc = instruction.target; break;
      case Op::kLook:
      case Op::kNegativeLook:
        failed = (run(pc + 1, text, pos, scratch) == kNoMatch) == (instruction.op == Op::kLook);
        pc = instruction.target;
        break;
      case Op::kAtomic: {
        const size_t end = run(pc + 1, text, pos, scratch);
        failed = end == kNoMatch;
        pos = end;
        pc = instruction.target;
        break;
      }
      case Op::kAssert:
        failed = !holds(instruction.assertion, text, pos);
        ++pc;
        break;
      case Op::kAccept: stack.resize(base); return pos;
    }
    while (failed) {
      if (stack.size() == base) return kNoMatch;
      RegexScratch::Frame& frame = stack.back();
      const Instruction& choice = program_[frame.pc];
      pc = choice.op == Op::kSplit || choice.op == Op::kTryIfFirst ? choice.target : frame.pc + 1;
      failed = false;
      if (choice.op == Op::kGreedyRun) {  // give back one character
        pos = frame.pos = previous_utf8(text, frame.pos);
        if (pos == frame.limit) stack.pop_back();
      } else if (choice.op == Op::kLazyRun) {  // take one more
        failed = frame.limit == 0 || frame.pos >= text.size() ||
                 !sets_[choice.set].contains(decode_utf8(text, frame.pos));
        pos = frame.pos;
        if (frame.limit != SIZE_MAX) --frame.limit;
        if (failed) stack.pop_back();
      } else {
        pos = frame.pos;
        stack.pop_back();
      }
      spend(1);
    }
  }
}

bool Regex::holds(RegexNode::Assertion assertion, std::string_view text, size_t pos) const {
  using Assertion = RegexNode::Assertion;
  const bool at_end = pos == text.size();
  switch (assertion) {
    // After a final newline no line begins.
    case Assertion::kLineStart: return pos == 0 || (text[pos - 1] == '\n' && !at_end);
    case Assertion::kLineEnd: return at_end || text[pos] == '\n';
    case Assertion::kTextStart: return pos == 0;
    case Assertion::kTextEnd: return at_end;
    case Assertion::kTextEndOrFinalNewline: return at_end || (pos + 1 == text.size() && text[pos] == '\n');
    case Assertion::kWordEdge:
    case Assertion::kNoWordEdge: {
      size_t before = pos > 0 ? previous_utf8(text, pos) : 0, after = pos;
      const bool word_before = pos > 0 && word_.contains(decode_utf8(text, before));
      const bool word_after = !at_end && word_.contains(decode_utf8(text, after));
      return (word_before != word_after) == (assertion == Assertion::kWordEdge);
    }
  }
  return false;
}

}  // namespace quire::text
