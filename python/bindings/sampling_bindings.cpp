// SamplingParams.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <limits>

#include "arguments.h"
#include "bindings.h"
#include "quire/sampling_params.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace quire::bindings {
namespace {

// As many tokens as max_model_len leaves, which caps it.
constexpr int32_t kUnlimited = std::numeric_limits<int32_t>::max();

bool set_max_tokens(SamplingParams& params, nb::handle value) {
  if (!value.is_none()) return nb::try_cast<int32_t>(value, params.max_tokens);
  params.max_tokens = kUnlimited;
  return true;
}
nb::object get_max_tokens(const SamplingParams& params) {
  return params.max_tokens == kUnlimited ? nb::none() : nb::cast(params.max_tokens);
}

// A single stop string may be given without a list.
bool set_stop(SamplingParams& params, nb::handle value) {
  std::string one;
  if (value.is_none()) {
    params.stop.clear();
  } else if (nb::try_cast<std::string>(value, one)) {
    params.stop = {std::move(one)};
  } else {
    return nb::try_cast<std::vector<std::string>>(value, params.stop);
  }
  return true;
}

// None is an empty one.
template <auto member>
bool set_container(SamplingParams& params, nb::handle value) {
  using Container = typename MemberOf<member>::Type;
  if (!value.is_none()) return nb::try_cast<Container>(value, params.*member);
  (params.*member).clear();
  return true;
}

nb::object get_logit_bias(const SamplingParams& params) {
  nb::dict by_id;
  for (const auto& [id, bias] : params.logit_bias) by_id[nb::int_(id)] = to_python(bias);
  return by_id;
}

using P = SamplingParams;
constexpr Argument<P> kArguments[] = {
    argument<&P::temperature>("temperature"),
    argument<&P::top_k>("top_k"),
    argument<&P::top_p>("top_p"),
    argument<&P::min_p>("min_p"),
    argument<&P::presence_penalty>("presence_penalty"),
    argument<&P::frequency_penalty>("frequency_penalty"),
    argument<&P::repetition_penalty>("repetition_penalty"),
    {"logit_bias", "dict[int, float]", "collections.abc.Mapping[int, float] | None",
     set_container<&P::logit_bias>, get_logit_bias},
    argument<&P::seed>("seed"),
    {"max_tokens", "int | None", "int | None", set_max_tokens, get_max_tokens, python_range<int32_t>()},
    argument<&P::min_tokens>("min_tokens"),
    {"stop", "list[str]", "str | collections.abc.Sequence[str] | None", set_stop, MemberOf<&P::stop>::get},
    {"stop_token_ids", "list[int]", "collections.abc.Sequence[int] | None", set_container<&P::stop_token_ids>,
     MemberOf<&P::stop_token_ids>::get},
    argument<&P::ignore_eos>("ignore_eos"),
    argument<&P::include_stop_str_in_output>("include_stop_str_in_output"),
    argument<&P::n>("n"),
    argument<&P::logprobs>("logprobs"),
    argument<&P::detokenize>("detokenize"),
    argument<&P::skip_special_tokens>("skip_special_tokens"),
    argument<&P::output_kind>("output_kind"),
};
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
