// Built with xgrammar's sources (cmake/xgrammar), in the place of its grammar_compiler.cc, which is included
// here for its internal classes.
//
// A compiled grammar has a mask for each place in its rules at which a token may begin, and finding one by
// parsing each token of a vocabulary takes tens of milliseconds. The library keeps the masks of rules that
// grammars have in common. Before it looks for those of a new rule, the masks of places from which on the
// rule is a finite automaton (strings of limited length, patterns, formats, enumerations) are found here,
// with a table of transitions, and put where it looks.
#include "xgrammar_compiler.h"

#include <array>
#include <map>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "grammar_functor.h"

namespace xgrammar {

// What grammar_compiler.cc takes for GrammarFSMHasher.
class HasherThatFindsMasks {
 public:
  void Apply(Grammar* grammar);
  static std::optional<uint64_t> HashSequence(const Grammar& grammar, int32_t sequence_id) {
    return GrammarFSMHasher::HashSequence(grammar, sequence_id);
  }
};

}  // namespace xgrammar

#define GrammarFSMHasher HasherThatFindsMasks
#include "grammar_compiler.cc"
#undef GrammarFSMHasher

namespace quire_grammar {

using namespace xgrammar;

// The texts of a vocabulary's tokens, in the order in which the library has them: first what begins with a
// node's text, then what follows, so that a walk goes through memory in one direction.
struct TokenTrie {
  struct Node {
    int32_t end_node;                         // where those that begin so end
    int32_t first_token, end_own, end_token;  // that begin so; up to end_own they are just that
    uint32_t depth;                           // bytes
    uint8_t byte;                             // the last one
  };

  explicit TokenTrie(const TokenizerInfo& tokenizer) : tokens(tokenizer.GetSortedDecodedVocab()) {
    std::vector<size_t> open;  // the nodes that the token before ends in, and is below
    const auto close = [&](size_t depth, size_t token) {
      for (; open.size() > depth; open.pop_back()) {
        nodes[open.back()].end_node = static_cast<int32_t>(nodes.size());
        nodes[open.back()].end_token = static_cast<int32_t>(token);
      }
    };
    for (size_t i = 0; i < tokens.size(); ++i) {
      const std::string& text = tokens[i].second;
      const auto id = static_cast<int32_t>(i);
      size_t num_common = 0;
      while (num_common < std::min(open.size(), text.size()) &&
             nodes[open[num_common]].byte == static_cast<uint8_t>(text[num_common]))
        ++num_common;
      close(num_common, i);
      while (open.size() < text.size()) {
        open.push_back(nodes.size());
        const auto byte = static_cast<uint8_t>(text[open.size() - 1]);
        nodes.push_back({0, id, id, 0, static_cast<uint32_t>(open.size()), byte});
      }
      max_depth = std::max(max_depth, text.size());
      text.empty() ? ++num_empty : nodes[open.back()].end_own = id + 1;
    }
    close(0, tokens.size());
  }

  const std::vector<std::pair<int32_t, std::string>>& tokens;
  std::vector<Node> nodes;
  size_t max_depth = 0;
  int32_t num_empty = 0;  // tokens without a text, which come first
};

// The rules of a grammar as one automaton, as far as they are one: a place in a rule, with the places at
// which the rules that called it go on. It is made deterministic as tokens walk through it.
class Automaton {
 public:
  static constexpr int32_t kDead = -1;

  explicit Automaton(const Grammar& grammar) : grammar_(grammar) {}

  // Where a token that begins at the state `fsm_state` of the rule begins; kDead where that is not known: the
  // rule calls itself in its middle, counts, or names tokens, or what was walked through grows too large.
  int32_t start(int32_t rule, int32_t fsm_state) {
    begin_closure();
    add(intern({rule, fsm_state, kNoCaller}));
    return end_closure();
  }
  // kDead: nothing begins so. `is_known` says whether all that may follow was found.
  int32_t next(int32_t state, uint8_t byte) {
    const int32_t known = states_[static_cast<size_t>(state)].next[byte];
    return known != kUnknown ? known : find_next(state, byte);
  }
  bool is_end(int32_t state) const { return states_[static_cast<size_t>(state)].is_end; }
  bool is_known() const { return is_known_; }
  void set_known() { is_known_ = true; }
  // Whether the rule is what its automaton says, and no more.
  bool is_plain(int32_t rule) const {
    const auto type = grammar_->GetGrammarExpr(grammar_->GetRule(rule).body_expr_id).type;
    return type != Grammar::Impl::GrammarExprType::kTagDispatch &&
           type != Grammar::Impl::GrammarExprType::kTokenTagDispatch;
  }

 private:
  static constexpr int32_t kUnknown = -2, kNoCaller = -1;
  static constexpr size_t kMaxStates = 1 << 14, kMaxPlaces = 1 << 18;
  static constexpr int kMaxDepth = 512;  // of calls that were not the last thing of their rules

  struct Place {
    int32_t rule, state, caller;  // caller: the place that follows the rule's end, or kNoCaller

    bool operator<(const Place& other) const {
      return std::tie(rule, state, caller) < std::tie(other.rule, other.state, other.caller);
    }
  };
  struct State {
    std::vector<int32_t> places;  // ascending; those from which a byte leads on
    bool is_end;                  // of the first rule
    std::array<int32_t, 256> next;
  };

  const CompactFSMWithStartEnd& fsm(int32_t rule) const { return grammar_->per_rule_fsms[rule]->GetFsm(); }

  int32_t intern(const Place& place) {
    const auto [found, inserted] = place_ids_.try_emplace(place, static_cast<int32_t>(places_.size()));
    if (inserted) {
      places_.push_back(place);
      depths_.push_back(place.caller == kNoCaller ? 0 : depths_[static_cast<size_t>(place.caller)] + 1);
      if (depths_.back() > kMaxDepth || places_.size() > kMaxPlaces) is_known_ = false;
    }
    return found->second;
  }

  void begin_closure() {
    closure_.clear();
    pending_.clear();
    closure_is_end_ = false;
  }
  void add(int32_t place) {
    if (closure_.insert(place).second) pending_.push_back(place);
  }
  // The state of everything that the places added lead to without a byte.
  int32_t end_closure() {
    std::vector<int32_t> scanning;
    while (!pending_.empty() && is_known_) {
      const int32_t id = pending_.back();
      const Place place = places_[static_cast<size_t>(id)];
      pending_.pop_back();
      bool scans = false;
      for (const auto& edge : fsm(place.rule).GetFsm().GetEdges(place.state)) {
        if (edge.IsCharRange()) {
          scans = true;
        } else if (edge.IsRuleRef() && is_plain(edge.GetRefRuleId())) {
          const int32_t callee = edge.GetRefRuleId();
          add(intern({callee, fsm(callee).GetStart(), caller_of(place, edge.target)}));
        } else if (edge.IsEpsilon()) {
          add(intern({place.rule, edge.target, place.caller}));
        } else {
          is_known_ = false;
        }
      }
      if (scans) scanning.push_back(id);
      if (!fsm(place.rule).IsEndState(place.state)) continue;
      if (place.caller == kNoCaller) {
        closure_is_end_ = true;
      } else {
        add(place.caller);
      }
    }
    if (!is_known_) return kDead;
    if (scanning.empty() && !closure_is_end_) return kDead;
    std::sort(scanning.begin(), scanning.end());
    const auto [found, inserted] =
        state_ids_.try_emplace({scanning, closure_is_end_}, static_cast<int32_t>(states_.size()));
    if (!inserted) return found->second;
    if (states_.size() >= kMaxStates) {
      is_known_ = false;
      state_ids_.erase(found);
      return kDead;
    }
    State& state = states_.emplace_back();
    state.places = std::move(scanning);
    state.is_end = closure_is_end_;
    state.next.fill(kUnknown);
    return found->second;
  }

  // A call that is the last thing of its rule goes on where the rule's own caller does: chains of rules, and
  // rules that call themselves at their end, then have few places.
  int32_t caller_of(const Place& place, int32_t target) {
    const auto& rule_fsm = fsm(place.rule);
    if (rule_fsm.GetFsm().GetEdges(target).size() == 0 && rule_fsm.IsEndState(target)) return place.caller;
    return intern({place.rule, target, place.caller});
  }

  int32_t find_next(int32_t state, uint8_t byte) {
    begin_closure();
    const std::vector<int32_t> places = states_[static_cast<size_t>(state)].places;
    for (const int32_t id : places) {
      const Place place = places_[static_cast<size_t>(id)];
      for (const auto& edge : fsm(place.rule).GetFsm().GetEdges(place.state)) {
        if (edge.IsCharRange() && edge.min <= byte && byte <= edge.max)
          add(intern({place.rule, edge.target, place.caller}));
      }
    }
    const int32_t found = end_closure();
    if (is_known_) states_[static_cast<size_t>(state)].next[byte] = found;
    return found;
  }

  const Grammar& grammar_;
  std::map<Place, int32_t> place_ids_;
  std::vector<Place> places_;
  std::vector<int32_t> depths_;
  std::map<std::pair<std::vector<int32_t>, bool>, int32_t> state_ids_;
  std::vector<State> states_;
  bool is_known_ = true;

  std::unordered_set<int32_t> closure_;
  std::vector<int32_t> pending_;
  bool closure_is_end_ = false;
};

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

  // Those that are not there yet, and that an automaton finds.
  void find(const Grammar& grammar) {
    for (int32_t rule = 0; rule < grammar->NumRules(); ++rule) {
      const auto& one = grammar->GetRule(rule);
      // Such rules end where the automaton would not.
      if (one.is_lazy || one.max_tokens >= 0 || one.max_chars >= 0) return;
    }
    Automaton automaton(grammar);
    for (int32_t rule = 0; rule < grammar->NumRules(); ++rule) {
      const auto& fsm = grammar->per_rule_fsms[rule];
      const auto& hash = grammar->per_rule_fsm_hashes[rule];
      if (!hash.has_value() || !automaton.is_plain(rule)) continue;
      for (const auto& [state, new_state] : grammar->per_rule_fsm_new_state_ids[rule]) {
        if (!is_slow(fsm->GetFsm(), state)) continue;
        if (!seen_.insert(HashCombine(*hash, static_cast<uint64_t>(new_state)))) continue;
        if (masks_.GetCache(*hash, new_state, fsm->GetNodeNum(), fsm->GetEdgeNum()).has_value()) continue;
        automaton.set_known();
        const int32_t start = automaton.start(rule, state);
        if (start == Automaton::kDead || !find_from(automaton, start)) continue;
        masks_.AddCache(*hash, new_state, fsm->GetNodeNum(), fsm->GetEdgeNum(), mask());
      }
    }
  }

  // Masks of rules that look ahead are made of those that do not, token by token: as they were made for one
  // grammar, they are for others.
  void keep(const CompiledGrammar& compiled) {
    const Grammar& grammar = compiled->grammar;
    for (const auto& [place, mask] : compiled->adaptive_token_mask_cache) {
      const auto& hash = grammar->per_rule_fsm_hashes[place.rule_id];
      const auto& rule = grammar->GetRule(place.rule_id);
      if (!hash.has_value() || rule.lookahead_assertion_id == -1) continue;
      const auto ahead = GrammarFSMHasher::HashSequence(grammar, rule.lookahead_assertion_id);
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
  struct Step {
    int32_t state;
    bool has_ended;  // the rule might have, by now
  };
  static constexpr int32_t kMaxListed = AdaptiveTokenMask::USE_BITSET_THRESHOLD - 1;

  // Whether the library would parse most tokens from there: they may begin with many bytes, and it does not
  // go on by these alone, which it sees.
  static bool is_slow(const CompactFSMWithStartEnd& fsm, int32_t state) {
    int32_t num_bytes = 0;
    for (const auto& edge : fsm.GetFsm().GetEdges(state)) {
      if (!edge.IsCharRange()) continue;
      if (edge.target == state) return false;
      num_bytes += edge.max - edge.min + 1;
    }
    return num_bytes >= 32;
  }

  // Says of each token whether the rule goes on by it (accepted), ends within it, perhaps (uncertain), or
  // neither. False when that is not known.
  bool find_from(Automaton& automaton, int32_t start) {
    accepted_.clear();
    rejected_.clear();
    uncertain_.clear();
    num_rejected_ = 0;
    steps_.resize(trie_.max_depth + 1);
    steps_[0] = {start, false};
    const auto add = [](std::vector<int32_t>& list, int32_t begin, int32_t end) {
      for (int32_t token = begin; token < end; ++token) list.push_back(token);
    };
    for (size_t i = 0; i < trie_.nodes.size();) {
      const TokenTrie::Node& node = trie_.nodes[i];
      const Step& before = steps_[node.depth - 1];
      const int32_t next = automaton.next(before.state, node.byte);
      if (next != Automaton::kDead) {
        add(accepted_, node.first_token, node.end_own);
        steps_[node.depth] = {next, before.has_ended || automaton.is_end(next)};
        ++i;
        continue;
      }
      if (!automaton.is_known()) return false;
      if ((quire_grammar_checks_left -= 8) < 0) quire_grammar_check();
      i = static_cast<size_t>(node.end_node);
      if (before.has_ended) {
        add(uncertain_, node.first_token, node.end_token);
      } else {
        num_rejected_ += node.end_token - node.first_token;
        if (num_rejected_ <= kMaxListed) add(rejected_, node.first_token, node.end_token);
      }
    }
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
  std::vector<Step> steps_;                               // by the number of bytes
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

}  // namespace xgrammar
