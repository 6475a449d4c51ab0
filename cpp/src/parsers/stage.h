// A parser is a chain of stages. Text goes through it byte by byte, so nothing can depend on how it was cut.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "util/aho_corasick.h"

namespace quire::parsers {

// Of what is held back, because it is not known yet what it is, at most so many bytes. Then it is text.
inline constexpr size_t kMaxHeldBytes = size_t{1} << 20;
// Longer names, of functions and of parameters, are none.
inline constexpr size_t kMaxNameBytes = 256;

inline bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
std::string_view trim(std::string_view text);

class Stage {
 public:
  virtual ~Stage() = default;
  virtual void put(char byte) = 0;
  // The end of the text: what is held back goes on.
  virtual void finish() = 0;

  void put_all(std::string_view text) {
    for (const char byte : text) put(byte);
  }
};

// The markers of a format, made once. They must not begin with one another.
class Markers {
 public:
  explicit Markers(std::vector<std::string> texts);

  const std::string& text(int32_t marker) const { return texts_[marker]; }
  const std::vector<std::string>& texts() const { return texts_; }
  const AhoCorasick& search() const { return search_; }

 private:
  std::vector<std::string> texts_;
  AhoCorasick search_;
};

// A stage that sees text and markers. What may be the beginning of a marker is held back until it is known.
class MarkedStage : public Stage {
 public:
  explicit MarkedStage(std::shared_ptr<const Markers> markers) : markers_(std::move(markers)) {}

  void put(char byte) final;
  void finish() final;

 protected:
  virtual void on_text(char byte) = 0;
  virtual void on_marker(int32_t marker) = 0;
  virtual void on_end() = 0;

  const Markers& markers() const { return *markers_; }

 private:
  std::shared_ptr<const Markers> markers_;
  AhoCorasick::State state_ = AhoCorasick::kStart;
  std::string held_;  // what a marker begins with
};

}  // namespace quire::parsers
