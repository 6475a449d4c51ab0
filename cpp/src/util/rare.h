// A value that hardly anybody has: where there is none it takes a pointer.
#pragma once

#include <memory>
#include <utility>

namespace quire {

// T is a container. An empty one is not kept. Moved from, it is empty.
template <typename T>
class Rare {
 public:
  Rare() = default;
  Rare(T value) { *this = std::move(value); }
  Rare(const Rare& other) : value_(other.value_ ? std::make_unique<T>(*other.value_) : nullptr) {}
  Rare(Rare&&) noexcept = default;
  Rare& operator=(const Rare& other) { return *this = Rare(other); }
  Rare& operator=(Rare&&) noexcept = default;
  Rare& operator=(T value) {
    value_ = value.empty() ? nullptr : std::make_unique<T>(std::move(value));
    return *this;
  }

  bool empty() const { return !value_; }
  const T& operator*() const {
    static const T none;
    return value_ ? *value_ : none;
  }
  const T* operator->() const { return &**this; }
  // Empty from now on.
  T take() { return value_ ? std::move(*std::exchange(value_, nullptr)) : T(); }
  // To add to it.
  T& edit() {
    if (!value_) value_ = std::make_unique<T>();
    return *value_;
  }

 private:
  std::unique_ptr<T> value_;  // null: empty
};

}  // namespace quire
