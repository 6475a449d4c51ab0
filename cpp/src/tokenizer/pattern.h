// The "pattern" of a Split, a Replace or the like: a plain string or a regular expression.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "formats/json.h"
#include "tokenizer/regex.h"
#include "tokenizer/unicode.h"

namespace quire::text {

// Thread-safe.
class Pattern {
 public:
  // `node` is {"String": ...} or {"Regex": ...}. Throws InvalidArgument naming the key.
  explicit Pattern(const JsonNode& node);

  // Calls part(begin, end, is_match) for the matches in `text` and what lies between them, in order. Matches
  // may be empty; what lies between them never is. Throws InvalidArgument as Regex::find does.
  template <typename Part>
  void for_each(std::string_view text, RegexScratch& scratch, const Part& part) const {
    if (regex_) {
      for_each_match(*regex_, text, scratch, part);
      return;
    }
    size_t done = 0;
    for (size_t found; !literal_.empty() && (found = text.find(literal_, done)) != text.npos;) {
      if (found > done) part(done, found, false);
      part(found, found + literal_.size(), true);
      done = found + literal_.size();
    }
    if (done < text.size()) part(done, text.size(), false);
  }

  // Whether `text` has no match; false when that is not quickly told.
  bool is_surely_absent(std::string_view text) const {
    return !regex_ && (literal_.empty() || text.find(literal_) == text.npos);
  }

  template <typename Part>
  static void for_each_match(const Regex& regex, std::string_view text, RegexScratch& scratch,
                             const Part& part) {
    size_t from = 0, done = 0;
    bool any = false;
    Regex::Match match{};
    scratch.start_text(text);
    while (from <= text.size() && regex.find(text, from, scratch, match)) {
      // An empty match right after the last one would be found for ever.
      if (match.begin == match.end && any && match.end == done) {
        if (from == text.size()) break;
        decode_utf8(text, from);
        continue;
      }
      if (done != match.begin) part(done, match.begin, false);
      part(match.begin, match.end, true);
      from = done = match.end;
      any = true;
    }
    if (done != text.size()) part(done, text.size(), false);
  }

 private:
  std::string literal_;
  std::optional<Regex> regex_;
};

}  // namespace quire::text
