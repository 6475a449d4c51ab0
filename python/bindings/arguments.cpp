#include "arguments.h"

#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;

namespace quire::bindings {

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
  const nb::object text =
      nb::str("{} must be {}, got {} ({})").format(name, accepts, shown, value.type().attr("__name__"));
  throw nb::type_error(nb::cast<std::string>(text).c_str());
}

}  // namespace quire::bindings
