// Python's str methods, on UTF-8. Positions and lengths count characters, as in Python. All spend what they
// do (see budget.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "util/utf8.h"

namespace quire::chat {

// No string that a template makes may be longer; templates and messages come from strangers.
inline constexpr size_t kMaxStringBytes = size_t{64} << 20;

// Throws InvalidArgument when a string of this size would be too long.
void check_string_size(size_t bytes);

size_t count_characters(std::string_view text);
std::vector<std::string_view> split_characters(std::string_view text);
// The characters [first, last), or fewer where there are no more.
std::string_view slice_characters(std::string_view text, size_t first, size_t last);

// std::string_view::find from byte `from` on, but in time proportional to the sizes, whatever they hold.
size_t find_text(std::string_view text, std::string_view part, size_t from = 0);
size_t rfind_text(std::string_view text, std::string_view part);

std::string to_lower(std::string_view text);
std::string to_upper(std::string_view text);
std::string to_title(std::string_view text);    // str.title()
std::string capitalize(std::string_view text);  // str.capitalize()

enum class Side { kLeft, kRight, kBoth };
// Takes off these characters; by default white space.
std::string_view strip(std::string_view text, Side side, std::optional<std::string_view> characters = {});

// A negative `max_splits` is no limit. Without `separator`: at runs of white space, none at the ends.
std::vector<std::string_view> split(std::string_view text, std::optional<std::string_view> separator,
                                    int64_t max_splits, bool from_right);
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);

// A negative `max_count` is no limit.
std::string replace(std::string_view text, std::string_view old, std::string_view with, int64_t max_count);
size_t count_occurrences(std::string_view text, std::string_view part);

// str.isspace() and so on, by name; nothing for a name that is none of them.
std::optional<bool> ask_characters(std::string_view method, std::string_view text);

// repr() of a string, quotes and all.
std::string quote(std::string_view text);

}  // namespace quire::chat
