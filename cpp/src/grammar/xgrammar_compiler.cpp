// Built with xgrammar's sources (cmake/xgrammar), in the place of its grammar_compiler.cc, which is included
// here for its internal classes.
//
// A compiled grammar has a mask for each place in its rules at which a token may begin, and finding one by
// parsing each token of a vocabulary takes tens of milliseconds. The library keeps the masks of rules that
// grammars have in common. Before it looks for those of a new rule, the masks of places from which on the
// rule is a finite automaton (strings of limited length, patterns, formats, enumerations) are found here,
// with a table of transitions, and put where it looks.
#include "xgrammar_compiler.h"

#include <mutex>
#include <unordered_set>
#include <vector>

#include "grammar_functor.h"

namespace xgrammar {

// What grammar_compiler.cc takes for GrammarFSMHasher.
class HasherThatFindsMasks {
 public:
  void Apply(Grammar* grammar);
  static std::optional<uint64_t> HashSequence(const Grammar& grammar, int32_t sequence_id);
};

}  // namespace xgrammar

#define GrammarFSMHasher HasherThatFindsMasks
#include "grammar_compiler.cc"
#undef GrammarFSMHasher

#include "xgrammar_automaton.h"
#include "xgrammar_follow_sets.h"

namespace quire_grammar {

bool is_json_text(const std::string& regex) {
  const auto is_plain = [](unsigned char c) { return c >= 0x20 && c <= 0x7e; };
  if (std::all_of(regex.begin(), regex.end(), is_plain)) {
    auto fsm = GrammarFSMBuilder::Regex(regex, /*json_string=*/true);
    if (fsm.IsOk()) {
      const auto automaton = std::move(fsm).Unwrap();
      std::unordered_set<int> states;
      automaton.GetReachableStates(&states);
      const auto is_end = [&](int state) { return automaton.IsEndState(state); };
      if (std::any_of(states.begin(), states.end(), is_end)) return true;
    }
  }
  using Type = Grammar::Impl::GrammarExprType;
  const Grammar grammar = Grammar::FromRegex(regex);
  for (int32_t i = 0; i < grammar->NumGrammarExprs(); ++i) {
    const auto expr = grammar->GetGrammarExpr(i);
    const bool is_class = expr.type == Type::kCharacterClass || expr.type == Type::kCharacterClassStar;
    if (!is_class && expr.type != Type::kByteString) continue;
    const auto matches = [&](int32_t point) {
      if (!is_class) return std::find(expr.begin(), expr.end(), point) != expr.end();
      bool is_named = false;
      for (int32_t j = 1; j + 1 < expr.size(); j += 2)
        is_named = is_named || (expr[j] <= point && point <= expr[j + 1]);
      return is_named == (expr[0] == 0);
    };
    for (int32_t point = 0; point < 0x20; ++point)
      if (matches(point)) return false;
    if (matches('"') || matches('\\')) return false;
  }
  return true;
}

std::optional<int32_t> find_no_character(const Grammar& grammar) {
  using Type = Grammar::Impl::GrammarExprType;
  constexpr int32_t kLast = 0x10ffff, kFirstSurrogate = 0xd800, kLastSurrogate = 0xdfff;
  const auto is_none = [](int32_t first, int32_t last) {
    return last > kLast || (first >= kFirstSurrogate && last <= kLastSurrogate);
  };
  for (int32_t i = 0; i < grammar->NumGrammarExprs(); ++i) {
    const auto expr = grammar->GetGrammarExpr(i);
    if (expr.type == Type::kByteString) {
      // As UTF-8 would write it, had it one for them. Bytes may be signed.
      for (int32_t j = 0; j + 2 < expr.size(); ++j) {
        const auto byte = [&](int32_t k) { return expr[j + k] & 0xff; };
        const auto bits = [&](int32_t k) { return expr[j + k] & 0x3f; };
        if (byte(0) == 0xed && byte(1) >= 0xa0) return 0xd000 | bits(1) << 6 | bits(2);
        if (j + 3 < expr.size() && (byte(0) > 0xf4 || (byte(0) == 0xf4 && byte(1) >= 0x90)))
          return (byte(0) & 7) << 18 | bits(1) << 12 | bits(2) << 6 | bits(3);
      }
    } else if (expr.type == Type::kCharacterClass || expr.type == Type::kCharacterClassStar) {
      for (int32_t j = 1; j + 1 < expr.size(); j += 2)
        if (is_none(expr[j], expr[j + 1])) return expr[j + 1];
    }
  }
  return std::nullopt;
}

// Places whose masks were looked for: looking whether one is there copies it. One that has gone since is
// found by the library, which keeps it again. Thread-safe.
class SeenPlaces {
 public:
  // False when it is there.
  bool insert(uint64_t place) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (places_.size() >= kMaxPlaces) places_.clear();
    return places_.insert(place).second;
  }

 private:
  static constexpr size_t kMaxPlaces = 1 << 17;

  std::mutex mutex_;
  std::unordered_set<uint64_t> places_;
};

// The masks of a grammar's rules, one after the other.
class MaskFinder {
 public:
  MaskFinder(const TokenizerInfo& tokenizer, const TokenTrie& trie, RuleLevelCache& masks, SeenPlaces& seen)
      : tokenizer_(tokenizer), trie_(trie), masks_(masks), seen_(seen) {}

  // Those that are not there yet, and that an automaton finds. Masks of a rule are for places with the same
  // bytes behind it, which are made part of the rule's name.
  void find(Grammar& grammar) {
    for (int32_t rule = 0; rule < grammar->NumRules(); ++rule) {
      const auto& one = grammar->GetRule(rule);
      // Such rules end where the automaton would not.
      if (one.is_lazy || one.max_tokens >= 0 || one.max_chars >= 0) return;
    }
    names_ = grammar->per_rule_fsm_hashes;
    Automaton automaton(grammar);
    std::optional<FollowSets> follow_sets;
    for (int32_t rule = 0; rule < grammar->NumRules(); ++rule) {
      const auto& fsm = grammar->per_rule_fsms[rule];
      auto& hash = grammar.ImplPtr()->per_rule_fsm_hashes[rule];
      if (!hash.has_value() || !automaton.is_plain(rule)) continue;
      const auto& states = grammar->per_rule_fsm_new_state_ids[rule];
      if (std::none_of(states.begin(), states.end(),
                       [&](const auto& ids) { return is_slow(fsm->GetFsm(), ids.first); }))
        continue;
      if (!follow_sets.has_value()) follow_sets.emplace(grammar);
      if (follow_sets->is_known())
        hash = HashCombine(*hash, std::hash<FollowSets::Bytes>()(follow_sets->of(rule)));
      for (const auto& [state, new_state] : states) {
        if (!is_slow(fsm->GetFsm(), state)) continue;
        if (!seen_.insert(HashCombine(*hash, static_cast<uint64_t>(new_state)))) continue;
        if (masks_.GetCache(*hash, new_state, fsm->GetNodeNum(), fsm->GetEdgeNum()).has_value()) continue;
        automaton.set_known();
        const int32_t start = automaton.start(rule, state);
        // The root's own end is the text's.
        follow_.set();
        if (follow_sets->is_known() && rule != grammar->GetRootRuleId()) follow_ = follow_sets->of(rule);
        if (start == Automaton::kDead || !find_from(automaton, start)) continue;
        masks_.AddCache(*hash, new_state, fsm->GetNodeNum(), fsm->GetEdgeNum(), mask());
      }
    }
  }

  // The name of what a rule looks ahead to. What follows that is no part of it: the library does not look
  // there.
  std::optional<uint64_t> hash_sequence(const Grammar& grammar, int32_t sequence) {
    auto& names = Grammar(grammar).ImplPtr()->per_rule_fsm_hashes;
    if (names_.size() != names.size()) return GrammarFSMHasher::HashSequence(grammar, sequence);
    names.swap(names_);
    const std::optional<uint64_t> hash = GrammarFSMHasher::HashSequence(grammar, sequence);
    names.swap(names_);
    return hash;
  }

  // Masks of rules that look ahead are made of those that do not, token by token: as they were made for one
  // grammar, they are for others.
  void keep(const CompiledGrammar& compiled) {
    const Grammar& grammar = compiled->grammar;
    for (const auto& [place, mask] : compiled->adaptive_token_mask_cache) {
      const auto& hash = grammar->per_rule_fsm_hashes[place.rule_id];
      const auto& rule = grammar->GetRule(place.rule_id);
      if (!hash.has_value() || rule.lookahead_assertion_id == -1) continue;
      const auto ahead = hash_sequence(grammar, rule.lookahead_assertion_id);
      if (!ahead.has_value()) continue;
      const auto& states = grammar->per_rule_fsm_new_state_ids[place.rule_id];
      const auto found = std::find_if(states.begin(), states.end(),
                                      [&](const auto& ids) { return ids.first == place.element_id; });
      const auto& fsm = grammar->per_rule_fsms[place.rule_id];
      if (found == states.end()) continue;
      const uint64_t key = HashCombine(*hash, *ahead, rule.is_exact_lookahead);
      if (!seen_.insert(HashCombine(key, static_cast<uint64_t>(found->second)))) continue;
      masks_.AddCache(key, found->second, fsm->GetNodeNum(), fsm->GetEdgeNum(), mask);
    }
  }

 private:
  // A flag beside a state's number: the rule may have ended before, and what came then may follow it.
  static constexpr int32_t kGoesOn = 1 << 30;
  static constexpr int32_t kMaxListed = AdaptiveTokenMask::USE_BITSET_THRESHOLD - 1;

  // Whether the library would parse most tokens from there: they may begin with many bytes, of which those
  // within a character begin few tokens, and it does not go on by these alone, which it sees.
  static bool is_slow(const CompactFSMWithStartEnd& fsm, int32_t state) {
    int32_t num_bytes = 0;
    for (const auto& edge : fsm.GetFsm().GetEdges(state)) {
      if (!edge.IsCharRange()) continue;
      if (edge.target == state) return false;
      num_bytes += std::max(0, std::min<int32_t>(edge.max, 0x7f) - edge.min + 1);
    }
    return num_bytes >= 32;
  }

  // Says of each token whether the rule goes on by it (accepted), ends within it, perhaps (uncertain), or
  // neither. False when that is not known.
  bool find_from(Automaton& automaton, int32_t start) {
    accepted_.resize(trie_.tokens.size());
    int32_t* accepted = accepted_.data();
    rejected_.clear();
    uncertain_.clear();
    num_rejected_ = 0;
    steps_.resize(trie_.max_depth + 1);
    steps_[0] = start & ~Automaton::kEnd;
    const auto add = [](std::vector<int32_t>& list, int32_t begin, int32_t end) {
      for (int32_t token = begin; token < end; ++token) list.push_back(token);
    };
    for (size_t i = 0; i < trie_.nodes.size();) {
      const TokenTrie::Node& node = trie_.nodes[i];
      const int32_t before = steps_[node.depth - 1];
      const int32_t state = before & ~kGoesOn;
      if (node.plain_height <= automaton.num_plain(state, trie_.max_plain_height)) {
        for (int32_t token = node.first_token; token < node.end_token; ++token) *accepted++ = token;
        i = static_cast<size_t>(node.end_node);
        continue;
      }
      const int32_t next = automaton.next(state, node.byte);
      int32_t goes_on = before & kGoesOn;
      if ((before & Automaton::kEnd) != 0 && follow_[node.byte]) goes_on = kGoesOn;
      if (next != Automaton::kDead) {
        for (int32_t token = node.first_token; token < node.end_own; ++token) *accepted++ = token;
        steps_[node.depth] = next | goes_on;
        ++i;
        continue;
      }
      if (!automaton.is_known()) return false;
      if ((quire_grammar_checks_left -= 8) < 0) quire_grammar_check();
      i = static_cast<size_t>(node.end_node);
      if (goes_on != 0) {
        add(uncertain_, node.first_token, node.end_token);
      } else {
        num_rejected_ += node.end_token - node.first_token;
        if (num_rejected_ <= kMaxListed) add(rejected_, node.first_token, node.end_token);
      }
    }
    accepted_.resize(static_cast<size_t>(accepted - accepted_.data()));
    return true;
  }

  AdaptiveTokenMask mask() const {
    const auto vocab_size = static_cast<size_t>(tokenizer_.GetVocabSize());
    // Tokens without text are in no list, and rejected.
    if (num_rejected_ <= kMaxListed && trie_.num_empty == 0)
      return AdaptiveTokenMask(vocab_size, trie_.tokens, accepted_, rejected_, uncertain_);
    return AdaptiveTokenMask(vocab_size, trie_.tokens, accepted_, uncertain_);
  }

  const TokenizerInfo& tokenizer_;
  const TokenTrie& trie_;
  RuleLevelCache& masks_;
  SeenPlaces& seen_;
  std::vector<std::optional<uint64_t>> names_;            // of the rules, whatever follows them
  FollowSets::Bytes follow_;                              // of the rule at hand
  std::vector<int32_t> steps_;                            // states and flags, by the number of bytes
  std::vector<int32_t> accepted_, rejected_, uncertain_;  // ascending
  int32_t num_rejected_ = 0;                              // rejected_ holds them while they are few
};

struct Compiler::Impl {
  Impl(const TokenizerInfo& info, int64_t max_bytes)
      : tokenizer(info),
        trie(tokenizer),
        masks(static_cast<size_t>(max_bytes)),
        compiler(tokenizer, /*max_threads=*/1, masks) {}

  const TokenizerInfo tokenizer;
  const TokenTrie trie;
  RuleLevelCache masks;
  SeenPlaces seen;
  GrammarCompilerSub compiler;
};

static thread_local MaskFinder* mask_finder = nullptr;  // of the grammar that the thread compiles

Compiler::Compiler(const TokenizerInfo& tokenizer, int64_t max_bytes)
    : impl_(std::make_shared<Impl>(tokenizer, max_bytes)) {}

CompiledGrammar Compiler::compile(const Grammar& grammar) {
  MaskFinder finder(impl_->tokenizer, impl_->trie, impl_->masks, impl_->seen);
  mask_finder = &finder;
  struct Reset {
    ~Reset() { mask_finder = nullptr; }
  } reset;
  CompiledGrammar compiled = impl_->compiler.CompileGrammar(grammar);
  finder.keep(compiled);
  return compiled;
}

}  // namespace quire_grammar

namespace xgrammar {

void HasherThatFindsMasks::Apply(Grammar* grammar) {
  GrammarFSMHasher::Apply(grammar);
  if (quire_grammar::mask_finder != nullptr) quire_grammar::mask_finder->find(*grammar);
}

std::optional<uint64_t> HasherThatFindsMasks::HashSequence(const Grammar& grammar, int32_t sequence_id) {
  if (quire_grammar::mask_finder == nullptr) return GrammarFSMHasher::HashSequence(grammar, sequence_id);
  return quire_grammar::mask_finder->hash_sequence(grammar, sequence_id);
}

}  // namespace xgrammar
