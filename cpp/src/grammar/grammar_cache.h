// Compiled grammars, by what they are made of: each is compiled once, on a thread of the cache's, and kept
// while it is used and there is room.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "grammar/grammar.h"

namespace quire {

// A grammar on its way, or there, or refused. `state` says when the rest may be read.
struct GrammarEntry {
  enum class State : uint8_t { kCompiling, kReady, kFailed };

  std::atomic<State> state{State::kCompiling};
  std::shared_ptr<const CompiledGrammar> grammar;
  std::string error;
};

// Thread-safe. Its threads take what processor time steps leave.
class GrammarCache {
 public:
  // At most `max_bytes` of grammars that nobody uses are kept.
  GrammarCache(std::shared_ptr<GrammarCompiler> compiler, int32_t num_threads, int64_t max_bytes);
  // Cancels what is being compiled.
  ~GrammarCache();

  // At once: the entry may still be kCompiling. One that everybody has let go of before its turn is not
  // compiled.
  std::shared_ptr<const GrammarEntry> find_or_compile(GrammarKey key);

  int64_t bytes() const;
  uint64_t num_compiled() const { return num_compiled_; }

 private:
  struct Slot {
    std::shared_ptr<GrammarEntry> entry;
    int64_t bytes = 0;                             // 0: not compiled yet
    std::list<const GrammarKey*>::iterator place;  // in used_
  };
  using Slots = std::unordered_map<GrammarKey, Slot, GrammarKeyHash>;

  void work();
  void make_room();

  const std::shared_ptr<GrammarCompiler> compiler_;
  const size_t num_threads_;
  const int64_t max_bytes_;
  std::atomic<uint64_t> num_compiled_{0};

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  Slots slots_;                          // their keys stay where they are
  std::list<const GrammarKey*> used_;    // the one asked for last comes first
  std::deque<const GrammarKey*> queue_;  // to be compiled
  int64_t bytes_ = 0;
  size_t num_idle_ = 0;  // threads that wait for a grammar
  bool stopping_ = false;
  std::vector<std::thread> threads_;  // started by the first grammar
};

}  // namespace quire
