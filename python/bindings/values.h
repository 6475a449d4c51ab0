// Plain structs as values: printed, compared, copied and pickled by their fields.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <string>
#include <tuple>
#include <vector>

namespace quire::bindings {

// By `state`, a tuple that is all of the struct, and `from_state`; `shown` are the attributes to print, and
// those behind a '?' only where they are true.
template <typename T, typename... State>
void def_value(nanobind::class_<T>& type, std::vector<const char*> shown,
               std::tuple<State...> (*state)(const T&), T (*from_state)(const std::tuple<State...>&)) {
  namespace nb = nanobind;
  type.def("__getstate__", state)
      .def("__setstate__",
           [from_state](T& self, const std::tuple<State...>& values) { new (&self) T(from_state(values)); })
      .def(
          "__eq__",
          [state](const T& self, nb::handle other) {
            return nb::isinstance<T>(other) && state(self) == state(nb::cast<const T&>(other));
          },
          nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__repr__", [shown = std::move(shown)](nb::handle self) {
        std::string text;
        for (const char* name : shown) {
          const bool where_true = *name == '?';
          name += where_true ? 1 : 0;
          if (where_true && PyObject_IsTrue(nb::object(self.attr(name)).ptr()) != 1) continue;
          text += std::string(text.empty() ? "" : ", ") + name + "=" +
                  nb::cast<std::string>(nb::repr(self.attr(name)));
        }
        return nb::cast<std::string>(self.type().attr("__name__")) + "(" + text + ")";
      });
}

template <auto... members, typename T>
void def_plain_value(nanobind::class_<T>& type, std::vector<const char*> shown) {
  using State = decltype(std::make_tuple(std::declval<const T&>().*members...));
  def_value(
      type, std::move(shown), +[](const T& self) { return State(self.*members...); },
      +[](const State& state) {
        T self;
        std::tie(self.*members...) = state;
        return self;
      });
}

}  // namespace quire::bindings
