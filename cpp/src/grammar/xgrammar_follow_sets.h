// What may come behind the rules of an xgrammar grammar. Part of xgrammar_compiler.cpp: it knows the
// library's internal classes, and compiles as C++17.
#pragma once

#include <algorithm>
#include <bitset>
#include <cstdint>
#include <numeric>
#include <vector>

#include "grammar_impl.h"

namespace quire_grammar {

using namespace xgrammar;

// The bytes that may come behind each rule, in any of the places where a grammar has it: the FOLLOW sets of
// parsers that look ahead by one (Aho et al., "Compilers", 4.4). More than these may be in them, fewer not.
class FollowSets {
 public:
  using Bytes = std::bitset<256>;

  // All bytes follow every rule where the grammar has more than bytes and rules, or its rules are too
  // entangled.
  explicit FollowSets(const Grammar& grammar) : grammar_(grammar) {
    const int32_t num_rules = grammar->NumRules();
    first_.resize(static_cast<size_t>(num_rules));
    is_nullable_.resize(static_cast<size_t>(num_rules));
    follow_.resize(static_cast<size_t>(num_rules));
    is_known_ = find_states() && find_first();
    if (is_known_) find_follow();
  }

  bool is_known() const { return is_known_; }
  const Bytes& of(int32_t rule) const { return follow_[static_cast<size_t>(rule)]; }

 private:
  static constexpr int kMaxRounds = 64;

  const CompactFSMWithStartEnd& fsm(int32_t rule) const { return grammar_->per_rule_fsms[rule]->GetFsm(); }

  // The states of each rule: the library has those of all rules in one automaton. False when some are more
  // than bytes and rules.
  bool find_states() {
    states_.resize(follow_.size());
    for (int32_t rule = 0; rule < grammar_->NumRules(); ++rule) {
      if (!grammar_->per_rule_fsms[rule].has_value()) return false;
      const auto type = grammar_->GetGrammarExpr(grammar_->GetRule(rule).body_expr_id).type;
      if (type == Grammar::Impl::GrammarExprType::kTagDispatch ||
          type == Grammar::Impl::GrammarExprType::kTokenTagDispatch)
        return false;
      seen_by_.resize(std::max(seen_by_.size(), static_cast<size_t>(fsm(rule).GetFsm().NumStates())));
      std::vector<int32_t>& states = states_[static_cast<size_t>(rule)];
      begin_search(fsm(rule).GetStart());
      while (!pending_.empty()) {
        states.push_back(pending_.back());
        pending_.pop_back();
        for (const auto& edge : fsm(rule).GetFsm().GetEdges(states.back())) {
          count_work();
          if (!edge.IsCharRange() && !edge.IsRuleRef() && !edge.IsEpsilon() && !edge.IsRepeatRef())
            return false;
          go_on(edge.target);
        }
      }
    }
    return true;
  }

  void begin_search(int32_t state) {
    ++num_searches_;
    pending_.clear();
    go_on(state);
  }
  void go_on(int32_t state) {
    uint64_t& seen_by = seen_by_[static_cast<size_t>(state)];
    if (seen_by == num_searches_) return;
    seen_by = num_searches_;
    pending_.push_back(state);
  }

  // What may come first from that state of the rule on is added to `bytes`. Returns whether the rule may end
  // before anything comes.
  bool add_first(int32_t rule, int32_t state, Bytes& bytes) {
    bool ends = false;
    begin_search(state);
    while (!pending_.empty()) {
      const int32_t at = pending_.back();
      pending_.pop_back();
      ends = ends || fsm(rule).IsEndState(at);
      for (const auto& edge : fsm(rule).GetFsm().GetEdges(at)) {
        count_work();
        if (edge.IsCharRange()) {
          for (int32_t byte = edge.min; byte <= edge.max; ++byte) bytes.set(static_cast<size_t>(byte));
        } else if (edge.IsEpsilon()) {
          go_on(edge.target);
        } else if (edge.IsRuleRef()) {
          bytes |= first_[static_cast<size_t>(edge.GetRefRuleId())];
          if (is_nullable_[static_cast<size_t>(edge.GetRefRuleId())]) go_on(edge.target);
        } else {
          // How often a rule is repeated does not matter where anything may come.
          bytes.set();
          go_on(edge.target);
        }
      }
    }
    return ends;
  }

  bool find_first() {
    for (int round = 0; round < kMaxRounds; ++round) {
      bool changed = false;
      for (int32_t i = 0; i < grammar_->NumRules(); ++i) {
        // Rules mostly refer to those in front of them, or to those behind.
        const int32_t rule = round % 2 == 0 ? grammar_->NumRules() - 1 - i : i;
        Bytes bytes;
        const bool ends = add_first(rule, fsm(rule).GetStart(), bytes);
        const auto at = static_cast<size_t>(rule);
        changed = changed || bytes != first_[at] || ends != is_nullable_[at];
        first_[at] = bytes;
        is_nullable_[at] = ends;
      }
      if (!changed) return true;
    }
    return false;
  }

  void find_follow() {
    // What follows a rule follows those that it may end with.
    std::vector<std::vector<int32_t>> last_of(follow_.size());
    for (int32_t rule = 0; rule < grammar_->NumRules(); ++rule) {
      for (const int32_t state : states_[static_cast<size_t>(rule)]) {
        for (const auto& edge : fsm(rule).GetFsm().GetEdges(state)) {
          if (edge.IsRepeatRef())
            follow_[static_cast<size_t>(fsm(rule).GetFsm().GetRepeatEdgeInfo(edge.GetAuxIndex()).RuleId())]
                .set();
          if (!edge.IsRuleRef()) continue;
          const auto callee = static_cast<size_t>(edge.GetRefRuleId());
          if (add_first(rule, edge.target, follow_[callee]))
            last_of[static_cast<size_t>(rule)].push_back(edge.GetRefRuleId());
        }
      }
    }
    std::vector<int32_t> changed(follow_.size());
    std::iota(changed.begin(), changed.end(), 0);
    while (!changed.empty()) {
      const auto rule = static_cast<size_t>(changed.back());
      changed.pop_back();
      for (const int32_t callee : last_of[rule]) {
        count_work();
        Bytes& follow = follow_[static_cast<size_t>(callee)];
        const Bytes more = follow | follow_[rule];
        if (more == follow) continue;
        follow = more;
        changed.push_back(callee);
      }
    }
  }

  static void count_work() {
    if (--quire_grammar_checks_left < 0) quire_grammar_check();
  }

  const Grammar& grammar_;
  bool is_known_ = false;
  std::vector<std::vector<int32_t>> states_;  // of each rule
  std::vector<Bytes> first_, follow_;
  std::vector<bool> is_nullable_;
  std::vector<uint64_t> seen_by_;  // of each state, of the rule at hand: the last search that came there
  uint64_t num_searches_ = 0;
  std::vector<int32_t> pending_;
};

}  // namespace quire_grammar
