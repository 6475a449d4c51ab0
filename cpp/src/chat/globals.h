// The functions that every template can call.
#pragma once

#include <string>
#include <string_view>

#include "chat/filters.h"

namespace quire::chat {

// range, dict, namespace, raise_exception, strftime_now.
bool is_global(std::string_view name);
// The last three but strftime_now are the interpreter's own.
Value apply_global(std::string_view name, const Arguments& arguments);
Value make_dict(const Arguments& arguments);
// Throws unless a namespace may have an attribute of this name.
void check_namespace_name(std::string_view name);

}  // namespace quire::chat
