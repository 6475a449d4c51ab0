// SamplingParams.
#include <limits>

#include "arguments.h"
#include "bindings.h"
#include "quire/sampling_params.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace quire::bindings {
namespace {

using P = SamplingParams;
constexpr auto kArguments = arguments_of_table<kSamplingParamsFields>();
constexpr std::span<const Argument<P>> kAll(kArguments);

void construct(P* self, const nb::dict& values) {
  P params;
  set_arguments(params, kAll, "SamplingParams", values);
  // The vocabulary is not known here: ids are checked again when the request is made.
  params.validate(std::numeric_limits<int32_t>::max());
  new (self) P(std::move(params));
}

nb::dict state(const P& self) {
  nb::dict values;
  for (const Argument<P>& argument : kArguments) values[argument.name] = argument.get(self);
  return values;
}

std::string repr(const P& self) {
  std::string text;
  for (const Argument<P>& argument : kArguments) {
    text += std::string(text.empty() ? "" : ", ") + argument.name + "=" + python_repr(argument.get(self));
  }
  return "SamplingParams(" + text + ")";
}

constexpr const char* kDoc =
    "How the next token is chosen, when to stop, and what to report.\n\n"
    "temperature 0 is greedy. top_k 0 (or -1) keeps all tokens. max_tokens None: as many as max_model_len\n"
    "leaves; any other None leaves the default. Raises ValueError, naming the field, for a value out of\n"
    "range, and TypeError for one of another type or a name that is none.";

}  // namespace

void bind_sampling(nb::module_& m) {
  nb::enum_<RequestOutputKind>(m, "RequestOutputKind", "What a stream of outputs carries.")
      .value("CUMULATIVE", RequestOutputKind::kCumulative, "everything so far")
      .value("DELTA", RequestOutputKind::kDelta, "what is new")
      .value("FINAL_ONLY", RequestOutputKind::kFinalOnly, "one output, at the end");

  const std::string signature = "def __init__(self, *" + parameter_list(kAll) + ") -> None";
  nb::class_<P> type(m, "SamplingParams", kDoc);
  type.def(
      "__init__",
      [](P* self, const nb::args& args, const nb::kwargs& kwargs) {
        if (args.size() > 0)
          throw nb::type_error("SamplingParams takes keyword arguments only, such as temperature=0.8");
        construct(self, kwargs);
      },
      nb::sig(signature.c_str()));
  def_attributes(type, kAll, /*settable=*/true);
  type.def(
          "clone", [](const P& self) { return self; }, "An independent copy.")
      .def(
          "copy", [](const P& self) { return self; }, "The same as clone().")
      .def("__getstate__", state, nb::sig("def __getstate__(self) -> dict[str, object]"))
      .def(
          "__setstate__", [](P& self, const nb::dict& values) { construct(&self, values); },
          nb::sig("def __setstate__(self, state: dict[str, object], /) -> None"))
      .def("__repr__", repr)
      .def(
          "__eq__",
          [](const P& self, nb::handle other) {
            return nb::isinstance<P>(other) && self == nb::cast<const P&>(other);
          },
          nb::sig("def __eq__(self, other: object, /) -> bool"));
}

}  // namespace quire::bindings
