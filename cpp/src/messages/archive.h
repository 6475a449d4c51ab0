// Messages to bytes and back.
//
// A message lists its fields once, in `template <class A> void fields(A& a) { a(x, y, z); }`; Writer and
// Reader walk the same list. Little-endian, no alignment. The leading version lets a reader refuse what it
// does not know; a Reader never trusts a length.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "quire/error.h"
#include "util/rare.h"
#include "util/shared.h"
#include "util/str.h"

namespace quire {

inline constexpr uint32_t kMessageVersion = 16;

template <typename T>
concept PlainField = std::is_arithmetic_v<T> || std::is_enum_v<T>;

class Writer {
 public:
  explicit Writer(std::vector<std::byte>& out) : out_(out) {}

  template <typename... Fields>
  void operator()(const Fields&... fields) {
    (put(fields), ...);
  }

 private:
  template <PlainField T>
  void put(T value) {
    put_bytes(&value, sizeof value);
  }
  void put(const std::string& value) {
    put(static_cast<uint64_t>(value.size()));
    put_bytes(value.data(), value.size());
  }
  template <typename T>
  void put(const std::vector<T>& values) {
    put(static_cast<uint64_t>(values.size()));
    if constexpr (PlainField<T>) {
      put_bytes(values.data(), values.size() * sizeof(T));
    } else {
      for (const T& value : values) put(value);
    }
  }
  template <typename T, typename U>
  void put(const std::pair<T, U>& value) {
    (*this)(value.first, value.second);
  }
  template <typename T, size_t N>
  void put(const std::array<T, N>& values) {
    for (const T& value : values) put(value);
  }
  template <typename T>
  void put(const Shared<T>& value) {
    put(*value);
  }
  template <typename T>
  void put(const Rare<T>& value) {
    put(*value);
  }
  template <typename T>
  void put(const std::optional<T>& value) {
    put(value.has_value());
    if (value) put(*value);
  }
  template <typename K, typename V>
  void put(const std::map<K, V>& values) {
    put(static_cast<uint64_t>(values.size()));
    for (const auto& [key, value] : values) (*this)(key, value);
  }
  void put(const std::variant<std::monostate, std::string, int32_t>& value) {
    put(static_cast<uint8_t>(value.index()));
    if (const auto* text = std::get_if<std::string>(&value)) put(*text);
    if (const auto* id = std::get_if<int32_t>(&value)) put(*id);
  }
  template <typename T>
    requires std::is_class_v<T>
  void put(const T& value) {
    visit_fields(*this, const_cast<T&>(value));  // the list of fields serves both ways; a Writer only reads
  }
  void put_bytes(const void* data, size_t size) {
    if (size == 0) return;
    const size_t at = out_.size();
    out_.resize(at + size);
    std::memcpy(out_.data() + at, data, size);
  }

  std::vector<std::byte>& out_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> in) : in_(in) {}

  template <typename... Fields>
  void operator()(Fields&... fields) {
    (get(fields), ...);
  }
  bool at_end() const { return in_.empty(); }

 private:
  template <PlainField T>
  void get(T& value) {
    get_bytes(&value, sizeof value);
  }
  void get(bool& value) {
    uint8_t byte = 0;
    get(byte);
    value = byte != 0;
  }
  void get(std::string& value) {
    value.resize(get_size(1));
    get_bytes(value.data(), value.size());
  }
  template <typename T>
  void get(std::vector<T>& values) {
    if constexpr (PlainField<T>) {
      values.resize(get_size(sizeof(T)));
      get_bytes(values.data(), values.size() * sizeof(T));
    } else {
      values.resize(get_size(1));
      for (T& value : values) get(value);
    }
  }
  template <typename T, typename U>
  void get(std::pair<T, U>& value) {
    (*this)(value.first, value.second);
  }
  template <typename T, size_t N>
  void get(std::array<T, N>& values) {
    for (T& value : values) get(value);
  }
  template <typename T>
  void get(Shared<T>& value) {
    T read{};
    get(read);
    value = std::move(read);
  }
  template <typename T>
  void get(Rare<T>& value) {
    T read{};
    get(read);
    value = std::move(read);
  }
  template <typename T>
  void get(std::optional<T>& value) {
    bool present = false;
    get(present);
    value.reset();
    if (present) get(value.emplace());
  }
  template <typename K, typename V>
  void get(std::map<K, V>& values) {
    values.clear();
    for (size_t i = get_size(1); i > 0; --i) {
      std::pair<K, V> entry{};
      (*this)(entry.first, entry.second);
      values.insert(std::move(entry));
    }
  }
  void get(std::variant<std::monostate, std::string, int32_t>& value) {
    uint8_t index = 0;
    get(index);
    if (index == 0)
      value = std::monostate{};
    else if (index == 1)
      get(value.emplace<std::string>());
    else if (index == 2)
      get(value.emplace<int32_t>());
    else
      throw InvalidArgument(str("message: no alternative ", int{index}));
  }
  template <typename T>
    requires std::is_class_v<T>
  void get(T& value) {
    visit_fields(*this, value);
  }
  // A count of elements that take at least `element_bytes` each: bounded by what is left.
  size_t get_size(size_t element_bytes) {
    uint64_t size = 0;
    get(size);
    if (size > in_.size() / element_bytes) throw InvalidArgument("message: truncated");
    return size;
  }
  void get_bytes(void* data, size_t size) {
    if (size > in_.size()) throw InvalidArgument("message: truncated");
    if (size > 0) std::memcpy(data, in_.data(), size);
    in_ = in_.subspan(size);
  }

  std::span<const std::byte> in_;
};

// Messages list their own fields; public types, which know nothing of archives, are listed beside them.
template <class A, class T>
void visit_fields(A& a, T& value) {
  value.fields(a);
}

// Appends the version and the message.
template <typename Message>
void serialize(const Message& message, std::vector<std::byte>& out) {
  Writer writer(out);
  writer(kMessageVersion, message);
}

// Throws InvalidArgument for another version, truncated input or bytes left over.
template <typename Message>
Message deserialize(std::span<const std::byte> in) {
  Reader reader(in);
  uint32_t version = 0;
  reader(version);
  if (version != kMessageVersion) {
    throw InvalidArgument(str("message version ", version, ", this build reads ", kMessageVersion));
  }
  Message message{};
  reader(message);
  if (!reader.at_end()) throw InvalidArgument("message: bytes left over");
  return message;
}

}  // namespace quire
