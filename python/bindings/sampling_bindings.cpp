// SamplingParams, and StructuredOutputsParams within it.
#include <limits>

#include "arguments.h"
#include "bindings.h"
#include "quire/sampling_params.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace quire::bindings {
namespace {

constexpr auto kSamplingArguments = arguments_of_table<kSamplingParamsFields>();
constexpr auto kStructuredOutputsArguments = arguments_of_table<kStructuredOutputsFields>();

// The vocabulary is not known here: ids are checked again when the request is made.
void validate(const SamplingParams& params) { params.validate(std::numeric_limits<int32_t>::max()); }
void validate(const StructuredOutputsParams& params) { params.validate(); }

// A class whose attributes are the fields of a table, all of them keywords.
template <typename P>
void bind_params(nb::module_& m, const char* name, std::span<const Argument<P>> arguments, const char* doc) {
  const auto construct = [arguments, name](P* self, const nb::dict& values) {
    P params;
    set_arguments(params, arguments, name, values);
    validate(params);
    new (self) P(std::move(params));
  };
  const std::string signature = "def __init__(self, *" + parameter_list(arguments) + ") -> None";
  nb::class_<P> type(m, name, doc);
  type.def(
      "__init__",
      [construct, name](P* self, const nb::args& args, const nb::kwargs& kwargs) {
        if (args.size() > 0) {
          const std::string complaint = std::string(name) + " takes keyword arguments only";
          throw nb::type_error(complaint.c_str());
        }
        construct(self, kwargs);
      },
      nb::sig(signature.c_str()));
  def_attributes(type, arguments, /*settable=*/true);
  type.def(
          "clone", [](const P& self) { return self; }, "An independent copy.")
      .def(
          "copy", [](const P& self) { return self; }, "The same as clone().")
      .def(
          "__getstate__",
          [arguments](const P& self) {
            nb::dict values;
            for (const Argument<P>& argument : arguments) values[argument.name] = argument.get(self);
            return values;
          },
          nb::sig("def __getstate__(self) -> dict[str, object]"))
      .def(
          "__setstate__", [construct](P& self, const nb::dict& values) { construct(&self, values); },
          nb::sig("def __setstate__(self, state: dict[str, object], /) -> None"))
      .def("__repr__",
           [arguments, name](const P& self) {
             std::string text;
             for (const Argument<P>& argument : arguments) {
               text += std::string(text.empty() ? "" : ", ") + argument.name + "=" +
                       python_repr(argument.get(self));
             }
             return std::string(name) + "(" + text + ")";
           })
      .def(
          "__eq__",
          [](const P& self, nb::handle other) {
            return nb::isinstance<P>(other) && self == nb::cast<const P&>(other);
          },
          nb::sig("def __eq__(self, other: object, /) -> bool"));
}

constexpr const char* kStructuredOutputsDoc =
    "What an answer must look like. Give exactly one of json (a schema: text, a dict, or a pydantic model), "
    "regex,\n"
    "choice, grammar, json_object and structural_tag. Raises ValueError, naming the field, for anything "
    "else.";

constexpr const char* kSamplingDoc =
    "How the next token is chosen, when to stop, and what to report.\n\n"
    "temperature 0 is greedy. top_k 0 (or -1) keeps all tokens. max_tokens None: as many as max_model_len\n"
    "leaves; any other None leaves the default. Raises ValueError, naming the field, for a value out of\n"
    "range, and TypeError for one of another type or a name that is none.";

}  // namespace

bool from_python(nb::handle value, std::optional<StructuredOutputsParams>& field) {
  if (value.is_none()) {
    field.reset();
    return true;
  }
  const StructuredOutputsParams* params = nullptr;
  if (nb::try_cast<const StructuredOutputsParams*>(value, params) && params != nullptr) {
    field = *params;
    return true;
  }
  if (!nb::isinstance<nb::dict>(value)) return false;
  set_arguments(field.emplace(),
                std::span<const Argument<StructuredOutputsParams>>(kStructuredOutputsArguments),
                "structured_outputs", nb::cast<nb::dict>(value), "structured_outputs.");
  return true;
}

bool from_python(nb::handle value, std::optional<JsonText>& field) {
  if (value.is_none()) {
    field.reset();
    return true;
  }
  std::string text;
  if (!nb::try_cast<std::string>(value, text)) {
    // A pydantic model says its schema.
    const nb::object schema =
        nb::hasattr(value, "model_json_schema") ? value.attr("model_json_schema")() : nb::borrow(value);
    if (!nb::isinstance<nb::dict>(schema) && !nb::isinstance<nb::list>(schema) &&
        !nb::isinstance<nb::bool_>(schema))
      return false;
    text = nb::cast<std::string>(nb::module_::import_("json").attr("dumps")(schema));
  }
  field = JsonText{std::move(text)};
  return true;
}

void bind_sampling(nb::module_& m) {
  nb::enum_<RequestOutputKind>(m, "RequestOutputKind", "What a stream of outputs carries.")
      .value("CUMULATIVE", RequestOutputKind::kCumulative, "everything so far")
      .value("DELTA", RequestOutputKind::kDelta, "what is new")
      .value("FINAL_ONLY", RequestOutputKind::kFinalOnly, "one output, at the end");
  bind_params<StructuredOutputsParams>(m, "StructuredOutputsParams", kStructuredOutputsArguments,
                                       kStructuredOutputsDoc);
  bind_params<SamplingParams>(m, "SamplingParams", kSamplingArguments, kSamplingDoc);
}

}  // namespace quire::bindings
