// What is the same for every table of fields; and that the tables are complete.
#include <algorithm>
#include <cstddef>
#include <string_view>
#include <type_traits>
#include <utility>

#include "messages/check_fields.h"
#include "quire/engine.h"
#include "quire/engine_config.h"
#include "quire/sampling_params.h"

namespace quire {
namespace {

// Whatever a member wants to be made of; nullptr would be one thing too many for a pointer.
template <size_t>
struct Anything {
  template <typename T>
    requires(!std::is_same_v<T, std::nullptr_t>)
  operator T() const;
};
template <typename Struct, size_t... i>
constexpr bool has_members(std::index_sequence<i...>) {
  return requires { Struct{{Anything<i>()}...}; };
}
// How many members an aggregate has: the most values that it can be made of.
template <typename Struct, size_t count = 96>
constexpr size_t num_members() {
  if constexpr (count == 0 || has_members<Struct>(std::make_index_sequence<count>())) {
    return count;
  } else {
    return num_members<Struct, count - 1>();
  }
}

template <typename Table>
constexpr bool names_are_distinct(const Table& table) {
  bool distinct = true;
  for_each_field(table, [&](const auto& field) {
    int count = 0;
    for_each_field(table, [&](const auto& other) { count += std::string_view(field.name) == other.name; });
    distinct &= count == 1;
  });
  return distinct;
}

static_assert(num_members<SamplingParams>() == std::tuple_size_v<decltype(kSamplingParamsFields)>,
              "a field of SamplingParams is not in kSamplingParamsFields, or is there twice");
static_assert(names_are_distinct(kSamplingParamsFields));
static_assert(num_members<StructuredOutputsParams>() == std::tuple_size_v<decltype(kStructuredOutputsFields)>,
              "a field of StructuredOutputsParams is not in kStructuredOutputsFields, or is there twice");
static_assert(names_are_distinct(kStructuredOutputsFields));
constexpr size_t kContent = 4;  // request_id, prompt, prompt_token_ids, sampling_params
static_assert(num_members<EngineRequest>() == std::tuple_size_v<decltype(kEngineRequestFields)> + kContent,
              "a field of EngineRequest is not in kEngineRequestFields, or is there twice");
static_assert(names_are_distinct(kEngineRequestFields));
constexpr size_t kObjects = 4;  // kv_arena, metric_sink, on_dead, own_logits_processors
static_assert(num_members<EngineConfig>() == std::tuple_size_v<decltype(kEngineConfigFields)> + kObjects,
              "a field of EngineConfig is not in kEngineConfigFields, or is there twice");
static_assert(names_are_distinct(kEngineConfigFields));

// Calls `visit` with each of the values of Range::one_of.
template <typename Visit>
void for_each_of(const Range& range, Visit&& visit) {
  std::string_view rest = range.one_of;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(' '), rest.size());
    visit(rest.substr(0, end), /*is_last=*/end == rest.size());
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
}

}  // namespace

std::string describe(const Range& range) {
  if (*range.in_words != '\0') return range.in_words;
  if (*range.one_of != '\0') {
    std::string text;
    for_each_of(range, [&](std::string_view value, bool is_last) {
      const std::string_view quote = value.front() >= '0' && value.front() <= '9' ? "" : "'";
      text += str(text.empty() ? "" : is_last ? " or " : ", ", quote, value, quote);
    });
    return text;
  }
  constexpr double kNone = std::numeric_limits<double>::infinity();
  const bool has_min = range.min > -kNone;
  const bool has_max = range.max < kNone;
  if (!has_min && !has_max) return "";
  if (has_min && has_max && !range.excludes_min && !range.excludes_max)
    return str("between ", range.min, " and ", range.max);
  std::string text = has_min ? str(range.excludes_min ? "above " : "at least ", range.min) : "";
  if (has_max) text += str(has_min ? " and " : "", range.excludes_max ? "below " : "at most ", range.max);
  return text;
}

void require_token_id(const char* name, int32_t id, int32_t vocab_size) {
  if (id >= 0 && id < vocab_size) return;
  throw InvalidArgument(str(name, " has token id ", id, "; ids go from 0 to ", vocab_size - 1));
}

bool is_one_of(const Range& range, std::string_view value) {
  bool found = *range.one_of == '\0';
  for_each_of(range, [&](std::string_view other, bool) { found |= other == value; });
  return found;
}

void check_field(const Range& range, const char* name, const std::string& value, int32_t) {
  if (!is_one_of(range, value))
    throw InvalidArgument(str(name, " must be ", describe(range), ", got '", value.substr(0, 200), "'"));
}

void check_field(const Range&, const char* name, const std::vector<int32_t>& ids, int32_t vocab_size) {
  for (int32_t id : ids) require_token_id(name, id, vocab_size);
}

void check_field(const Range&, const char* name, const std::vector<std::string>& texts, int32_t) {
  for (const std::string& text : texts) {
    if (text.empty()) throw InvalidArgument(str(name, " holds an empty string; give non-empty strings"));
  }
}

void check_field(const Range& range, const char* name, const std::map<int32_t, float>& by_id,
                 int32_t vocab_size) {
  for (const auto& [id, value] : by_id) {
    require_token_id(name, id, vocab_size);
    if (!range.contains(static_cast<double>(value))) {
      throw InvalidArgument(str(name, " of token ", id, " must be ", describe(range), ", got ", value));
    }
  }
}

}  // namespace quire
