// A value that several hold and nobody changes: copies share it.
#pragma once

#include <concepts>
#include <initializer_list>
#include <memory>
#include <utility>

namespace quire {

// Whoever has one may read it, on any thread, for as long as it is held. A default one is T{}; one that was
// moved from may only be assigned to.
template <typename T>
class Shared {
 public:
  Shared() : value_(none()) {}
  Shared(T value) : value_(std::make_shared<T>(std::move(value))) {}
  template <typename E>
    requires std::constructible_from<T, std::initializer_list<E>>
  Shared(std::initializer_list<E> values) : Shared(T(values)) {}

  const T& operator*() const { return *value_; }
  const T* operator->() const { return value_.get(); }
  std::shared_ptr<const T> pointer() const { return value_; }

  // To change what nobody else has seen yet; if others hold it, this becomes a copy first.
  T& edit() {
    if (value_.use_count() > 1) {
      value_ = std::make_shared<T>(*value_);
    } else {
      // Whoever let go of it has read it: to give back a share of our own comes after that.
      std::shared_ptr<T>(value_).reset();
    }
    return *value_;
  }

  bool operator==(const Shared& other) const { return value_ == other.value_ || *value_ == *other.value_; }

 private:
  static const std::shared_ptr<T>& none() {
    static const std::shared_ptr<T> value = std::make_shared<T>();
    return value;
  }

  std::shared_ptr<T> value_;  // never null
};

}  // namespace quire
