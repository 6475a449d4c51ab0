#include "chat/sequence_filters.h"

#include <algorithm>
#include <set>

#include "chat/budget.h"
#include "chat/python_format.h"
#include "chat/python_strings.h"
#include "util/str.h"

namespace quire::chat {
namespace {

using Kind = Value::Kind;

// item.a.0.b, for the attribute "a.0.b". Null and None name the item itself.
Value attribute_of(Value item, const Value* attribute, const Value* absent = nullptr) {
  if (!attribute || attribute->is(Kind::kNone)) return item;
  std::vector<Value> path;
  if (attribute->is_integer()) {
    path.push_back(*attribute);
  } else {
    for (std::string_view part :
         split(require_string(*attribute, "attribute"), ".", -1, /*from_right=*/false)) {
      spend(10);
      const bool is_index =
          *ask_characters("isdigit", part) && part.size() < 10 && *ask_characters("isascii", part);
      path.push_back(is_index ? Value(int64_t{std::stoll(std::string(part))}) : Value(part));
    }
  }
  for (const Value& part : path) {
    item = get_item(item, part);
    if (!item.is_defined() && absent && !absent->is(Kind::kNone)) item = *absent;
  }
  return item;
}

// What sorting and telling apart goes by: strings without their case, unless it counts.
Value sort_key(const Value& item, const Value* attribute, bool case_sensitive) {
  Value key = attribute_of(item, attribute);
  return key.is(Kind::kString) && !case_sensitive ? Value(to_lower(key.as_string())) : key;
}

// The items of a dict, as tuples.
Values pairs_of(const Value& dict) {
  spend_values(2 * dict.as_dict().items.size());
  Values pairs;
  for (const auto& [key, value] : dict.as_dict().items) pairs.push_back(Value::tuple({key, value}));
  return pairs;
}

Value first_filter(const Value& input, const Arguments& arguments) {
  BoundArguments("first", arguments, {});
  if (input.is(Kind::kIterator)) {
    Sequence& iterator = input.as_iterator();
    if (iterator.next < iterator.items.size()) return iterator.items[iterator.next++];
  } else if (input.is(Kind::kString) && !input.as_string().empty()) {
    return Value(slice_characters(input.as_string(), 0, 1));
  } else if (const Values items = iterate(input); !items.empty()) {
    return items.front();
  }
  return Value::undefined("No first item, sequence was empty.");
}

Value last_filter(const Value& input, const Arguments& arguments) {
  BoundArguments("last", arguments, {});
  if (input.is(Kind::kIterator)) fail("'generator' object is not reversible");
  if (input.is(Kind::kString) && !input.as_string().empty()) return get_item(input, Value(int64_t{-1}));
  const Values items = iterate(input);
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}

Value list_filter(const Value& input, const Arguments& arguments) {
  BoundArguments("list", arguments, {});
  return Value::list(iterate(input));
}

Value items_filter(const Value& input, const Arguments& arguments) {
  BoundArguments("items", arguments, {});
  if (!input.is_defined()) return Value::iterator({});
  if (!input.is(Kind::kDict)) fail("Can only get item pairs from a mapping.");
  return Value::iterator(pairs_of(input));
}

Value join_filter(const Value& input, const Arguments& arguments) {
  const BoundArguments bound("join", arguments, {"d", "attribute"});
  const std::string separator = bound.find(0) ? to_text(*bound.find(0)) : "";
  std::string out;
  bool is_first = true;
  for (const Value& item : iterate(input)) {
    if (!is_first) out += separator;
    is_first = false;
    spend_copy(separator.size());
    out += to_text(attribute_of(item, bound.find(1)));
    check_string_size(out.size() + separator.size());
  }
  return Value(std::move(out));
}

Value reverse_filter(const Value& input, const Arguments& arguments) {
  BoundArguments("reverse", arguments, {});
  Values items = iterate(input);
  std::reverse(items.begin(), items.end());
  if (input.is(Kind::kIterator)) return Value::list(std::move(items));
  if (!input.is(Kind::kString)) return Value::iterator(std::move(items));
  std::string text;
  for (const Value& item : items) text += item.as_string();
  return Value(std::move(text));
}

void sort_by(Values& items, bool reverse, const std::function<Value(const Value&)>& key_of) {
  spend_values(2 * items.size());
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : items) keyed.emplace_back(key_of(item), item);
  // Reversing keeps equal items in their order, as sorted() does.
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? compare(b.first, a.first) < 0 : compare(a.first, b.first) < 0;
  });
  for (size_t i = 0; i < items.size(); ++i) items[i] = std::move(keyed[i].second);
}

Value sort_filter(const Value& input, const Arguments& arguments) {
  const BoundArguments bound("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  const bool case_sensitive = bound.boolean_or(1, false);
  const Value* attribute = bound.find(2);
  std::vector<Value> attributes;
  if (attribute && attribute->is(Kind::kString)) {
    for (std::string_view one : split(attribute->as_string(), ",", -1, false)) attributes.emplace_back(one);
  }
  Values items = iterate(input);
  sort_by(items, bound.boolean_or(0, false), [&](const Value& item) {
    Values keys;  // a list even of one, which lets undefined values be equal
    if (attributes.empty()) keys.push_back(sort_key(item, attribute, case_sensitive));
    for (const Value& one : attributes) keys.push_back(sort_key(item, &one, case_sensitive));
    return Value::tuple(std::move(keys));
  });
  return Value::list(std::move(items));
}

Value dictsort_filter(const Value& input, const Arguments& arguments) {
  const BoundArguments bound("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  const std::string by = bound.string_or(1, "key");
  if (by != "key" && by != "value") fail("You can only sort by either \"key\" or \"value\"");
  if (!input.is(Kind::kDict)) fail(str("'dictsort' needs a dict, got '", input.type_name(), "'"));
  Values items = pairs_of(input);
  sort_by(items, bound.boolean_or(2, false), [&](const Value& item) {
    return sort_key(item.as_sequence().items[by == "key" ? 0 : 1], nullptr, bound.boolean_or(0, false));
  });
  return Value::list(std::move(items));
}

Value unique_filter(const Value& input, const Arguments& arguments) {
  const BoundArguments bound("unique", arguments, {"case_sensitive", "attribute"});
  std::set<std::string> seen;
  Values kept;
  for (const Value& item : iterate(input)) {
    spend_values(1);
    if (seen.insert(hash_key(sort_key(item, bound.find(1), bound.boolean_or(0, false)))).second)
      kept.push_back(item);
  }
  return Value::iterator(std::move(kept));
}

Value extreme(std::string_view name, const Value& input, const Arguments& arguments) {
  const BoundArguments bound(name, arguments, {"case_sensitive", "attribute"});
  const Values items = iterate(input);
  if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  const auto key = [&](const Value& item) {
    return sort_key(item, bound.find(1), bound.boolean_or(0, false));
  };
  size_t best = 0;
  for (size_t i = 1; i < items.size(); ++i) {
    const int order = compare(key(items[i]), key(items[best]));
    if (name == "min" ? order < 0 : order > 0) best = i;
  }
  return items[best];
}

Value min_filter(const Value& input, const Arguments& arguments) { return extreme("min", input, arguments); }
Value max_filter(const Value& input, const Arguments& arguments) { return extreme("max", input, arguments); }

Value sum_filter(const Value& input, const Arguments& arguments) {
  const BoundArguments bound("sum", arguments, {"attribute", "start"});
  Value total = bound.find(1) ? *bound.find(1) : Value(int64_t{0});
  for (const Value& item : iterate(input))
    total = apply_operator("+", total, attribute_of(item, bound.find(0)));
  return total;
}

// The arguments from the `num_taken`-th on.
Arguments rest_of(const Arguments& arguments, size_t num_taken) {
  Arguments rest = arguments;
  rest.positional.erase(rest.positional.begin(), rest.positional.begin() + static_cast<ptrdiff_t>(num_taken));
  return rest;
}

Value map_filter(const Value& input, const Arguments& arguments) {
  Values mapped;
  if (!is_true(input)) return Value::iterator({});  // whatever it is
  if (arguments.positional.empty()) {
    const BoundArguments bound("map", arguments, {"attribute", "default"});
    for (const Value& item : iterate(input))
      mapped.push_back(attribute_of(item, &bound.required(0), bound.find(1)));
  } else {
    const std::string& name = require_string(arguments.positional[0], "map");
    const Arguments rest = rest_of(arguments, 1);
    if (!is_filter(name)) fail(str("the filter '", name, "' is not supported"));
    for (const Value& item : iterate(input)) mapped.push_back(apply_filter(name, item, rest));
  }
  return Value::iterator(std::move(mapped));
}

// select, reject, selectattr, rejectattr: what passes a test, by default that of being true.
Value choose(const Value& input, const Arguments& arguments, bool by_attribute, bool keep) {
  const size_t num_attributes = by_attribute ? 1 : 0;
  const Values& given = arguments.positional;
  if (given.size() < num_attributes) fail("missing parameter for attribute name");
  const bool has_test = given.size() > num_attributes;
  const std::string test = has_test ? require_string(given[num_attributes], "a test's name") : "";
  if (has_test && !is_test(test)) fail(str("the test '", test, "' is not supported"));
  const Arguments rest = rest_of(arguments, num_attributes + (has_test ? 1 : 0));
  if (!is_true(input)) return Value::iterator({});  // whatever it is
  Values chosen;
  for (const Value& item : iterate(input)) {
    const Value tested = attribute_of(item, by_attribute ? &given[0] : nullptr);
    if ((has_test ? apply_test(test, tested, rest) : is_true(tested)) == keep) chosen.push_back(item);
  }
  return Value::iterator(std::move(chosen));
}

Value select_filter(const Value& input, const Arguments& arguments) {
  return choose(input, arguments, false, true);
}
Value reject_filter(const Value& input, const Arguments& arguments) {
  return choose(input, arguments, false, false);
}
Value selectattr_filter(const Value& input, const Arguments& arguments) {
  return choose(input, arguments, true, true);
}
Value rejectattr_filter(const Value& input, const Arguments& arguments) {
  return choose(input, arguments, true, false);
}

constexpr std::pair<std::string_view, SequenceFilter> kTable[] = {
    {"dictsort", dictsort_filter},
    {"first", first_filter},
    {"items", items_filter},
    {"join", join_filter},
    {"last", last_filter},
    {"list", list_filter},
    {"map", map_filter},
    {"max", max_filter},
    {"min", min_filter},
    {"reject", reject_filter},
    {"rejectattr", rejectattr_filter},
    {"reverse", reverse_filter},
    {"select", select_filter},
    {"selectattr", selectattr_filter},
    {"sort", sort_filter},
    {"sum", sum_filter},
    {"unique", unique_filter},
};

}  // namespace

const std::span<const std::pair<std::string_view, SequenceFilter>> kSequenceFilters{kTable};

}  // namespace quire::chat
