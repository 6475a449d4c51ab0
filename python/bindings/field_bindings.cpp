// The tables of fields (quire/field.h), for documentation and for tests that walk them.
#include "arguments.h"
#include "bindings.h"
#include "quire/engine.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace quire::bindings {
namespace {

template <const auto& table, typename Struct>
void append_fields(nb::list& fields, const char* owner) {
  constexpr auto arguments = arguments_of_table<table>();
  const Struct defaults;
  auto argument = arguments.begin();
  for_each_field(table, [&](const auto& field) {
    nb::dict described;
    described["struct"] = owner;
    described["name"] = field.name;
    described["type"] = argument->type;
    described["default"] = argument->get(defaults);
    described["range"] = describe(field.range);
    described["min"] = field.range.min;
    described["max"] = field.range.max;
    described["excludes_min"] = field.range.excludes_min;
    described["set_by_clients"] = field.set_by == SetBy::kClients;
    described["doc"] = field.doc;
    fields.append(described);
    ++argument;
  });
}

nb::list request_fields() {
  nb::list fields;
  append_fields<kSamplingParamsFields, SamplingParams>(fields, "SamplingParams");
  append_fields<kEngineRequestFields, EngineRequest>(fields, "EngineRequest");
  return fields;
}

}  // namespace

void bind_fields(nb::module_& m) {
  m.def("request_fields", request_fields, nb::sig("def request_fields() -> list[dict[str, typing.Any]]"),
        "What every door knows of the fields of a request, in their order.");
}

}  // namespace quire::bindings
