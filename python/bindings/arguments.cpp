#include "arguments.h"

#include <nanobind/stl/vector.h>

#include <string_view>

#include "text.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace quire::bindings {

std::string find_name(const char* owner, const std::string& name, nb::handle value) {
  const nb::object other = nb::module_::import_("quire.vllm_names").attr("find_name")(owner, name, value);
  return other.is_none() ? "" : nb::cast<std::string>(other);
}

void fail_unknown(const char* owner, const std::string& name, const std::vector<const char*>& known) {
  nb::list names;
  for (const char* other : known) names.append(other);
  const nb::object near = nb::module_::import_("difflib").attr("get_close_matches")(name, names, 1);
  std::string hint = std::string("see help(") + owner + ")";
  if (nb::len(near) > 0) hint = "did you mean '" + nb::cast<std::string>(near[0]) + "'?";
  throw nb::type_error(
      (std::string(owner) + " has no argument '" + name.substr(0, 100) + "'; " + hint).c_str());
}

void fail_type(const char* name, const char* accepts, const char* range, nb::handle value) {
  nb::object shown;
  try {
    shown = nb::str("{!r:.60}").format(value);
  } catch (nb::python_error&) {  // the repr of a class of the caller's, or of an int of too many digits
    shown = nb::str("something that cannot be printed");
  }
  if (*range != '\0' && PyLong_Check(value.ptr())) {
    const nb::object text = nb::str("{} must be from {}, got {}").format(name, range, shown);
    throw nb::value_error(nb::cast<std::string>(text).c_str());
  }
  if (PyUnicode_Check(value.ptr()) && std::string_view(accepts).starts_with("str")) {
    // A str with a surrogate by itself is no text.
    for (Py_ssize_t i = 0; i < PyUnicode_GetLength(value.ptr()); ++i) {
      const Py_UCS4 character = PyUnicode_ReadChar(value.ptr(), i);
      if (character < 0xD800 || character > 0xDFFF) continue;
      const nb::object lone = nb::steal(PyUnicode_Substring(value.ptr(), i, i + 1));
      const nb::object text =
          nb::str("{} must be valid Unicode; character {} is the lone surrogate {!r}").format(name, i, lone);
      throw nb::value_error(nb::cast<std::string>(text).c_str());
    }
  }
  const nb::object text =
      nb::str("{} must be {}, got {} ({})").format(name, accepts, shown, value.type().attr("__name__"));
  throw nb::type_error(nb::cast<std::string>(text).c_str());
}

void fail_value(const char* name, const nb::python_error& error) {
  const bool is_type = error.matches(PyExc_TypeError);
  if (!is_type && !error.matches(PyExc_ValueError) && !error.matches(PyExc_RecursionError))
    throw;  // what is caught
  const std::string text = std::string(name) + ": " + nb::cast<std::string>(nb::str(error.value()));
  if (is_type) throw nb::type_error(text.c_str());
  throw nb::value_error(text.c_str());
}

std::string argument_name(const char* owner, nb::handle key) {
  const std::string what = std::string("the name of an argument of ") + owner;
  return std::string(text_of(what.c_str(), key));
}

}  // namespace quire::bindings
