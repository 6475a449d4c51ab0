// Parsers of reasoning and tool calls.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>

#include "bindings.h"
#include "quire/chat.h"
#include "quire/chat_parsers.h"
#include "quire/fields.h"
#include "text.h"
#include "values.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace quire::bindings {
namespace {

struct FormatHandle {
  std::shared_ptr<const ChatFormat> format;
};
struct ParserHandle {
  std::unique_ptr<ChatParser> parser;
};

std::string name_of(const char* argument, nb::handle value) {
  return value.is_none() ? std::string() : std::string(text_of(argument, value));
}

FormatHandle format_of(nb::handle reasoning_parser, nb::handle tool_parser, nb::handle tokenizer) {
  const TokenizerHandle* handle = nullptr;
  if (!tokenizer.is_none() && !nb::try_cast(tokenizer, handle))
    fail_type("tokenizer", "Tokenizer or None", "", tokenizer);
  return {ChatFormat::make(name_of("reasoning_parser", reasoning_parser), name_of("tool_parser", tool_parser),
                           handle == nullptr ? nullptr : handle->tokenizer)};
}

std::string tools_json(nb::handle tools) {
  if (tools.is_none()) return "[]";
  if (nb::isinstance<nb::str>(tools) || !nb::hasattr(tools, "__iter__"))
    fail_type("tools", "a sequence of dicts or None", "", tools);
  return std::string(text_of("tools", dump_json(nb::list(nb::borrow(tools)))));
}

ChatParserOptions options_of(nb::handle tools, bool parse_tool_calls, std::optional<bool> enable_thinking) {
  ChatParserOptions options;
  options.tools_json = tools_json(tools);
  options.parse_tool_calls = parse_tool_calls;
  options.enable_thinking = enable_thinking;
  return options;
}

// The prompt, and the parameters where they have changed.
nb::tuple prepare(const EngineBase& engine, std::string messages_json, std::string tools_json,
                  const std::string& fields_json, const SamplingParams& params, const FormatHandle& format) {
  ChatRequest chat;
  EngineRequest request;
  {
    const ReleasedGil released;
    set_fields(request, chat, fields_json, "chat arguments");
    chat.messages.text = std::move(messages_json);
    chat.tools.text = std::move(tools_json);
    request.sampling_params = params;
    prepare_chat(engine, format.format, chat, request);
  }
  const bool changed = !(request.sampling_params == params);
  return nb::make_tuple(request.prompt,
                        changed ? nb::cast(std::move(request.sampling_params)) : nb::object(nb::none()));
}

#define QUIRE_TOOLS "collections.abc.Sequence[collections.abc.Mapping[str, object]] | None"
#define QUIRE_OPTIONS \
  "tools: " QUIRE_TOOLS " = None, parse_tool_calls: bool = True, enable_thinking: bool | None = None"

}  // namespace

void bind_chat_parsers(nb::module_& m) {
  auto call =
      nb::class_<ToolCallDelta>(m, "ToolCallDelta",
                                "What is new of a tool call: id and name come once, arguments in pieces.")
          .def_ro("index", &ToolCallDelta::index, "of the call in the answer")
          .def_ro("id", &ToolCallDelta::id, "in the first delta of the call, else empty")
          .def_ro("name", &ToolCallDelta::name, "in the first delta of the call, else empty")
          .def_ro("arguments", &ToolCallDelta::arguments,
                  "joined they are the text of a JSON object, or the beginning of one when the answer "
                  "ends within it");
  def_plain_value<&ToolCallDelta::index, &ToolCallDelta::id, &ToolCallDelta::name, &ToolCallDelta::arguments>(
      call, {"index", "id", "name", "arguments"});

  auto delta =
      nb::class_<ChatDelta>(m, "ChatDelta", "What is new of an answer, or all of it. False when empty.")
          .def_ro("reasoning", &ChatDelta::reasoning, "what the model thought")
          .def_ro("content", &ChatDelta::content, "what it said")
          .def_ro("tool_calls", &ChatDelta::tool_calls, "one entry for each call, by index")
          .def("__bool__", [](const ChatDelta& self) { return !self.empty(); });
  def_plain_value<&ChatDelta::reasoning, &ChatDelta::content, &ChatDelta::tool_calls>(
      delta, {"reasoning", "content", "tool_calls"});

  nb::class_<ParserHandle>(
      m, "ChatParser",
      "Splits one answer into reasoning, content and tool calls while it streams.\n\n"
      "reasoning_parser and tool_parser are vLLM's names. The joined deltas do not depend on how the text is "
      "cut. What is no valid call is content.")
      .def(
          "__init__",
          [](ParserHandle* self, nb::handle reasoning_parser, nb::handle tool_parser, nb::handle tokenizer,
             nb::handle tools, bool parse_tool_calls, std::optional<bool> enable_thinking) {
            const FormatHandle format = format_of(reasoning_parser, tool_parser, tokenizer);
            new (self)
                ParserHandle{format.format->parser(options_of(tools, parse_tool_calls, enable_thinking))};
          },
          nb::kw_only(), "reasoning_parser"_a.none() = nb::none(), "tool_parser"_a.none() = nb::none(),
          "tokenizer"_a.none() = nb::none(), "tools"_a.none() = nb::none(), "parse_tool_calls"_a = true,
          "enable_thinking"_a = nb::none(),
          nb::sig(
              "def __init__(self, *, reasoning_parser: str | None = None, tool_parser: str | None = None, "
              "tokenizer: Tokenizer | None = None, " QUIRE_OPTIONS ") -> None"),
          "Arguments are ChatFormat's and ChatFormat.parser's.")
      .def(
          "append",
          [](ParserHandle& self, nb::handle text, nb::handle token_ids) {
            const auto ids = ids_of("token_ids", token_ids);
            return self.parser->append(text_of("text", text), ids);
          },
          "text"_a.none(), "token_ids"_a.none() = nb::tuple(),
          nb::sig("def append(self, text: str, token_ids: collections.abc.Sequence[int] = ()) -> ChatDelta"),
          "What the next text, and the next ids, make known. Either may be empty.")
      .def(
          "finish", [](ParserHandle& self) { return self.parser->finish(); },
          "What was held back because it might have been the beginning of something. Call once, at the end.")
      .def_prop_ro(
          "num_reasoning_tokens",
          [](const ParserHandle& self) { return self.parser->num_reasoning_tokens(); },
          "tokens of reasoning among the ids so far; 0 without a tokenizer");

  nb::class_<FormatHandle>(m, "ChatFormat",
                           "How a model writes reasoning and tool calls. Made once, it parses many answers.")
      .def(
          "__init__",
          [](FormatHandle* self, nb::handle reasoning_parser, nb::handle tool_parser, nb::handle tokenizer) {
            new (self) FormatHandle(format_of(reasoning_parser, tool_parser, tokenizer));
          },
          nb::kw_only(), "reasoning_parser"_a.none() = nb::none(), "tool_parser"_a.none() = nb::none(),
          "tokenizer"_a.none() = nb::none(),
          nb::sig(
              "def __init__(self, *, reasoning_parser: str | None = None, tool_parser: str | None = None, "
              "tokenizer: Tokenizer | None = None) -> None"),
          "With the model's tokenizer, special tokens that are not the format's own are taken out of the "
          "text, "
          "and tokens of reasoning are counted. Raises ValueError with the known names for one that is not "
          "known.")
      .def(
          "parser",
          [](const FormatHandle& self, nb::handle tools, bool parse_tool_calls,
             std::optional<bool> enable_thinking) {
            return ParserHandle{self.format->parser(options_of(tools, parse_tool_calls, enable_thinking))};
          },
          nb::kw_only(), "tools"_a.none() = nb::none(), "parse_tool_calls"_a = true,
          "enable_thinking"_a = nb::none(), nb::sig("def parser(self, *, " QUIRE_OPTIONS ") -> ChatParser"),
          "A parser for one answer. `tools` are the request's, as OpenAI's API has them; `enable_thinking` "
          "says "
          "whether the prompt leaves the model thinking (None: as the model's templates do).")
      .def(
          "parse",
          [](const FormatHandle& self, nb::handle text, nb::handle tools, bool parse_tool_calls,
             std::optional<bool> enable_thinking) {
            return self.format->parse(text_of("text", text),
                                      options_of(tools, parse_tool_calls, enable_thinking));
          },
          "text"_a.none(), nb::kw_only(), "tools"_a.none() = nb::none(), "parse_tool_calls"_a = true,
          "enable_thinking"_a = nb::none(),
          nb::sig("def parse(self, text: str, *, " QUIRE_OPTIONS ") -> ChatDelta"), "A whole answer at once.")
      .def_prop_ro(
          "skip_special_tokens", [](const FormatHandle& self) { return self.format->skip_special_tokens(); },
          "what SamplingParams.skip_special_tokens must be for the text that is parsed")
      .def(
          "structural_tag",
          [](const FormatHandle& self, nb::handle tools, nb::handle name, bool parallel_tool_calls,
             std::optional<bool> enable_thinking) {
            return self.format->structural_tag(tools_json(tools),
                                               {name_of("name", name), parallel_tool_calls, enable_thinking});
          },
          "tools"_a.none(), nb::kw_only(), "name"_a.none() = nb::none(), "parallel_tool_calls"_a = true,
          "enable_thinking"_a = nb::none(),
          nb::sig(
              "def structural_tag(self, tools: collections.abc.Sequence[collections.abc.Mapping[str, "
              "object]], "
              "*, name: str | None = None, parallel_tool_calls: bool = True, enable_thinking: bool | None = "
              "None) -> str"),
          "A structural tag (JSON, as xgrammar reads it) under which the model calls these tools, or the one "
          "of "
          "that name, in this format.")
      .def_prop_ro(
          "has_tool_parser", [](const FormatHandle& self) { return self.format->has_tool_parser(); },
          "whether calls are parsed")
      .def(
          "thinks_after",
          [](const FormatHandle& self, nb::handle prompt) {
            return self.format->thinks_after(text_of("prompt", prompt));
          },
          "prompt"_a.none(), nb::sig("def thinks_after(self, prompt: str) -> bool | None"),
          "For enable_thinking: whether this prompt, or its end, leaves the model thinking. None unless it "
          "ends "
          "with a marker of the format's, white space aside.")
      .def_static("reasoning_parsers", &ChatFormat::reasoning_parser_names, "The names that are known.")
      .def_static("tool_parsers", &ChatFormat::tool_parser_names, "The names that are known.");

  m.def("prepare_chat", prepare, "engine"_a, "messages_json"_a, "tools_json"_a, "fields_json"_a,
        "sampling_params"_a, "chat_format"_a,
        nb::sig("def prepare_chat(engine: EngineBase, messages_json: str, tools_json: str, fields_json: str, "
                "sampling_params: SamplingParams, chat_format: ChatFormat) -> tuple[str, SamplingParams | "
                "None]"),
        "A conversation's prompt and, where its tool_choice or its format changes them, other parameters. "
        "`tools_json` may be empty; `fields_json` is an object of ChatRequest's other fields.");
  m.def(
      "chat_format_of",
      [](const EngineBase& engine, const std::string& reasoning_parser, const std::string& tool_parser) {
        return FormatHandle{ChatFormat::make(reasoning_parser, tool_parser, engine.tokenizer())};
      },
      "engine"_a, "reasoning_parser"_a, "tool_parser"_a, "A format with the engine's tokenizer.");
}

}  // namespace quire::bindings
