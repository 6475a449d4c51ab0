// A vocabulary and a grammar's rules, as the masks of xgrammar's grammars are found with them. Part of
// xgrammar_compiler.cpp: it knows the library's internal classes, and compiles as C++17.
#pragma once

#include <algorithm>
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
    uint32_t plain_height;                    // bytes of the longest from this one on; kNotPlain
    uint8_t byte;                             // the last one
  };
  // Some byte, of the node's or below, is none of those that strings in JSON hold as they are.
  static constexpr uint32_t kNotPlain = UINT32_MAX;
  static bool is_plain(uint8_t byte) { return byte >= ' ' && byte < 0x7f && byte != '"' && byte != '\\'; }

  explicit TokenTrie(const TokenizerInfo& tokenizer) : tokens(tokenizer.GetSortedDecodedVocab()) {
    std::vector<size_t> open;  // the nodes that the token before ends in, and is below
    const auto close = [&](size_t depth, size_t token) {
      while (open.size() > depth) {
        Node& node = nodes[open.back()];
        node.end_node = static_cast<int32_t>(nodes.size());
        node.end_token = static_cast<int32_t>(token);
        open.pop_back();
        if (node.plain_height != kNotPlain) max_plain_height = std::max(max_plain_height, node.plain_height);
        if (open.empty()) continue;
        uint32_t& above = nodes[open.back()].plain_height;
        above = std::max(above, node.plain_height == kNotPlain ? kNotPlain : node.plain_height + 1);
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
        const uint32_t plain_height = is_plain(byte) ? 1 : kNotPlain;
        nodes.push_back({0, id, id, 0, static_cast<uint32_t>(open.size()), plain_height, byte});
      }
      max_depth = std::max(max_depth, text.size());
      text.empty() ? ++num_empty : nodes[open.back()].end_own = id + 1;
    }
    close(0, tokens.size());
  }

  const std::vector<std::pair<int32_t, std::string>>& tokens;
  std::vector<Node> nodes;
  size_t max_depth = 0;
  uint32_t max_plain_height = 0;
  int32_t num_empty = 0;  // tokens without a text, which come first
};

// The rules of a grammar as one automaton, as far as they are one: a place in a rule, with the places at
// which the rules that called it go on. It is made deterministic as tokens walk through it.
class Automaton {
 public:
  // A state is a number whose lowest bit says whether the first rule may end there; kDead is none of them.
  static constexpr int32_t kDead = -1, kEnd = 1;

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
    const int32_t known = next_[row(state) + byte];
    return known != kUnknown ? known : find_next(state, byte);
  }
  // How many plain bytes may follow, whichever they are, at most `limit`, the same in every call.
  uint32_t num_plain(int32_t state, uint32_t limit) {
    const uint32_t known = num_plain_[static_cast<size_t>(state >> 1)];
    return known != kNotCounted ? known : count_plain(state, limit);
  }
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
  static constexpr uint32_t kNotCounted = UINT32_MAX;
  static constexpr size_t kMaxStates = 1 << 14, kMaxPlaces = 1 << 18;
  static constexpr int kMaxDepth = 512;  // of calls that were not the last thing of their rules

  struct Place {
    int32_t rule, state, caller;  // caller: the place that follows the rule's end, or kNoCaller

    bool operator<(const Place& other) const {
      return std::tie(rule, state, caller) < std::tie(other.rule, other.state, other.caller);
    }
  };

  static size_t row(int32_t state) { return static_cast<size_t>(state >> 1) << 8; }
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
    const auto id = static_cast<int32_t>(states_.size() << 1) | (closure_is_end_ ? kEnd : 0);
    const auto [found, inserted] = state_ids_.try_emplace({scanning, closure_is_end_}, id);
    if (!inserted) return found->second;
    if (states_.size() >= kMaxStates) {
      is_known_ = false;
      state_ids_.erase(found);
      return kDead;
    }
    states_.push_back(std::move(scanning));
    next_plain_.push_back(kUnknown);
    num_plain_.push_back(kNotCounted);
    next_.resize(next_.size() + 256, kUnknown);
    return id;
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
    int32_t first = 0, last = 255;  // the bytes around this one that lead to the same
    const std::vector<int32_t> places = states_[static_cast<size_t>(state >> 1)];
    for (const int32_t id : places) {
      const Place place = places_[static_cast<size_t>(id)];
      for (const auto& edge : fsm(place.rule).GetFsm().GetEdges(place.state)) {
        if (!edge.IsCharRange()) continue;
        if (byte < edge.min) {
          last = std::min(last, edge.min - 1);
        } else if (byte > edge.max) {
          first = std::max(first, edge.max + 1);
        } else {
          first = std::max<int32_t>(first, edge.min);
          last = std::min<int32_t>(last, edge.max);
          add(intern({place.rule, edge.target, place.caller}));
        }
      }
    }
    const int32_t found = end_closure();
    if (is_known_)
      std::fill_n(next_.begin() + static_cast<ptrdiff_t>(row(state)) + first, last - first + 1, found);
    return found;
  }

  // kDead: it matters which plain byte comes, or none may.
  int32_t next_plain(int32_t state) {
    const auto place = static_cast<size_t>(state >> 1);
    if (next_plain_[place] != kUnknown) return next_plain_[place];
    int32_t found = next(state, ' ');
    for (int byte = ' ' + 1; byte < 0x7f && found != kDead; ++byte) {
      if (TokenTrie::is_plain(static_cast<uint8_t>(byte)) && next(state, static_cast<uint8_t>(byte)) != found)
        found = kDead;
    }
    next_plain_[place] = found;
    return found;
  }

  uint32_t count_plain(int32_t first, uint32_t limit) {
    std::vector<int32_t> way = {first};
    uint32_t count = 0;  // of what follows the way's last state
    for (;;) {
      const int32_t state = next_plain(way.back());
      if (state == kDead) {
        num_plain_[static_cast<size_t>(way.back() >> 1)] = 0;
        way.pop_back();
        break;
      }
      count = num_plain_[static_cast<size_t>(state >> 1)];
      if (count != kNotCounted) break;
      count = 0;
      // Of the others on the way that is not known: more may follow.
      if (way.size() == limit) return num_plain_[static_cast<size_t>(first >> 1)] = limit;
      way.push_back(state);
    }
    for (; !way.empty(); way.pop_back()) {
      count = std::min(count + 1, limit);
      num_plain_[static_cast<size_t>(way.back() >> 1)] = count;
    }
    return num_plain_[static_cast<size_t>(first >> 1)];
  }

  const Grammar& grammar_;
  std::map<Place, int32_t> place_ids_;
  std::vector<Place> places_;
  std::vector<int32_t> depths_;
  std::map<std::pair<std::vector<int32_t>, bool>, int32_t> state_ids_;
  std::vector<std::vector<int32_t>> states_;  // the places, ascending, from which a byte leads on
  std::vector<int32_t> next_;                 // of each state for each byte
  std::vector<int32_t> next_plain_;           // of each state
  std::vector<uint32_t> num_plain_;
  bool is_known_ = true;

  std::unordered_set<int32_t> closure_;
  std::vector<int32_t> pending_;
  bool closure_is_end_ = false;
};

}  // namespace quire_grammar
