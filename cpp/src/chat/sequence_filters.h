// The filters that look at items one by one.
#pragma once

#include <span>
#include <string_view>
#include <utility>

#include "chat/filters.h"

namespace quire::chat {

using SequenceFilter = Value (*)(const Value& input, const Arguments& arguments);
extern const std::span<const std::pair<std::string_view, SequenceFilter>> kSequenceFilters;

}  // namespace quire::chat
