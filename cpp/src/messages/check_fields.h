// Ranges of fields, checked by their table.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "quire/error.h"
#include "quire/field.h"
#include "quire/structured_outputs.h"
#include "util/str.h"

namespace quire {

// Whether the value, as text, is one of those that a range lists; of a range that lists none, true.
bool is_one_of(const Range& range, std::string_view value);
// Throws InvalidArgument: "NAME must be between 0 and 1, got 2".
template <typename T>
void require_within(const Range& range, const char* name, T value) {
  if (range.contains(static_cast<double>(value)) && (*range.one_of == '\0' || is_one_of(range, str(value))))
    return;
  throw InvalidArgument(str(name, " must be ", describe(range), ", got ", value));
}
// Throws InvalidArgument unless `id` is a token's.
void require_token_id(const char* name, int32_t id, int32_t vocab_size);

// One value of each kind of field. Numbers in a list, and keys of a map, are token ids.
template <typename T>
void check_field(const Range& range, const char* name, const T& value, int32_t) {
  if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) require_within(range, name, value);
}
template <typename T>
void check_field(const Range& range, const char* name, const std::optional<T>& value, int32_t vocab_size) {
  if (value) check_field(range, name, *value, vocab_size);
}
void check_field(const Range& range, const char* name, const std::string& value, int32_t);
void check_field(const Range& range, const char* name, const std::vector<int32_t>& ids, int32_t vocab_size);
void check_field(const Range& range, const char* name, const std::vector<std::string>& texts, int32_t);
void check_field(const Range& range, const char* name, const std::map<int32_t, float>& by_id,
                 int32_t vocab_size);

// Throws InvalidArgument for the first field of the table that is out of its range. `vocab_size` bounds the
// token ids.
template <typename Struct, typename Table>
void check_fields(const Struct& value, const Table& table, int32_t vocab_size) {
  for_each_field(table, [&](const auto& field) {
    check_field(field.range, field.name, value.*field.member, vocab_size);
  });
}

}  // namespace quire
