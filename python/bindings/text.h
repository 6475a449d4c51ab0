// Text, token ids and JSON as Python gives them.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "arguments.h"
#include "quire/tokenizer.h"

namespace quire::bindings {

// The shared const object, behind a class that nanobind can construct.
struct TokenizerHandle {
  std::shared_ptr<const Tokenizer> tokenizer;
};

// Valid as long as the value is.
inline std::string_view text_of(const char* name, nanobind::handle value) {
  if (!PyUnicode_Check(value.ptr())) fail_type(name, "str", "", value);
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(value.ptr(), &size);
  if (text == nullptr) {
    PyErr_Clear();
    const nanobind::object message =
        nanobind::str("{} must be valid Unicode, got {!r:.60}, which has a lone surrogate")
            .format(name, value);
    throw nanobind::value_error(nanobind::cast<std::string>(message).c_str());
  }
  return {text, static_cast<size_t>(size)};
}

inline std::vector<int32_t> ids_of(const char* name, nanobind::handle value) {
  std::vector<int32_t> ids;
  if (!nanobind::try_cast(value, ids)) fail_type(name, "a sequence of token ids, int below 2**31", "", value);
  return ids;
}

inline nanobind::object dump_json(nanobind::handle value) {
  using namespace nanobind::literals;
  return nanobind::module_::import_("json").attr("dumps")(value, "ensure_ascii"_a = false);
}

}  // namespace quire::bindings
