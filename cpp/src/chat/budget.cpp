#include "chat/budget.h"

#include <utility>

#include "chat/value.h"

namespace quire::chat {
namespace {

thread_local Budget* current = nullptr;

}  // namespace

Budget::Budget() : outer_(std::exchange(current, this)) {}
Budget::~Budget() { current = outer_; }

void Budget::spend(int64_t steps) {
  steps_left_ -= steps;
  if (steps_left_ < 0) fail("rendering takes too many steps");
}

void Budget::spend_bytes(int64_t bytes) {
  bytes_left_ -= bytes;
  if (bytes_left_ < 0) fail("rendering takes too much memory");
}

void spend(int64_t steps) {
  if (current) current->spend(steps);
}

void spend_bytes(int64_t bytes) {
  if (current) current->spend_bytes(bytes);
}

}  // namespace quire::chat
