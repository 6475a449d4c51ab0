// A vocabulary and a grammar's rules, as the masks of xgrammar's grammars are found with them. Part of
// xgrammar_compiler.cpp: it knows the library's internal classes, and compiles as C++17.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <vector>

#include "grammar_impl.h"

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

}  // namespace quire_grammar
