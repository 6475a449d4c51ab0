// How much work and memory rendering a template may take.
//
// Templates come from model directories and messages from users. Whoever does work in proportion to a value's
// size says so here before doing it: the interpreter, and also Python's operations on strings and lists,
// which call one another and are called by comparators. So the budget is not passed along but is the
// thread's, while it renders.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire::chat {

// What one rendering may spend. The thread's budget from construction until destruction; they may nest.
class Budget {
 public:
  Budget();
  ~Budget();
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  // These throw InvalidArgument when too much was spent.
  void spend(int64_t steps);
  void spend_bytes(int64_t bytes);

 private:
  Budget* outer_;
  int64_t steps_left_ = 50'000'000;
  int64_t bytes_left_ = int64_t{1} << 30;
};

// Takes from the thread's budget, if it has one. A step is some tens of nanoseconds of work: the evaluation
// of a name is ten, a character that is looked up in a table is one.
void spend(int64_t steps);
// Memory that is taken, given back or not.
void spend_bytes(int64_t bytes);

// For work at the speed of memory, and for work that looks at each byte but not long.
inline void spend_copy(size_t bytes) { spend(static_cast<int64_t>(bytes / 32)); }
inline void spend_scan(size_t bytes) { spend(static_cast<int64_t>(bytes / 8)); }

}  // namespace quire::chat
