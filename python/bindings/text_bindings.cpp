// Tokenizer, its incremental detokenizer, and chat templates.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "arguments.h"
#include "bindings.h"
#include "quire/chat_template.h"
#include "quire/tokenizer.h"
#include "text.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace quire::bindings {
namespace {

// Keeps the tokenizer alive as long as its detokenizer.
struct Detokenizer {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::unique_ptr<IncrementalDetokenizer> detokenizer;
};

struct ChatTemplateHandle {
  std::shared_ptr<const ChatTemplate> chat_template;
};

// A string, or an object for a path.
std::string directory_of(nb::handle value) {
  nb::object path = nb::borrow(value);
  if (nb::hasattr(value, "__fspath__")) path = value.attr("__fspath__")();
  std::string directory(text_of("directory", path));
  if (directory.empty()) throw nb::value_error("directory is empty; give one with tokenizer.json");
  return directory;
}

}  // namespace

void bind_text(nb::module_& m) {
  nb::class_<Detokenizer>(m, "Detokenizer",
                          "Token ids to text, as they arrive. A UTF-8 character is never split.")
      .def(
          "append",
          [](Detokenizer& self, nb::handle ids) {
            std::string out;
            self.detokenizer->append(ids_of("ids", ids), out);
            return out;
          },
          "ids"_a.none(), nb::sig("def append(self, ids: collections.abc.Sequence[int]) -> str"),
          "The text that these ids completed.")
      .def(
          "finish",
          [](Detokenizer& self) {
            std::string out;
            self.detokenizer->finish(out);
            return out;
          },
          "What is still held back. Call once, at the end.");

  nb::class_<TokenizerHandle>(m, "Tokenizer", "A Hugging Face tokenizer.json, run in C++.")
      .def(
          "__init__",
          [](TokenizerHandle* self, nb::handle directory) {
            new (self) TokenizerHandle{Tokenizer::load(directory_of(directory))};
          },
          "directory"_a.none(), nb::sig("def __init__(self, directory: str | os.PathLike[str]) -> None"),
          "Raises ValueError, naming file and key, for what is missing or not supported.")
      .def(
          "encode",
          [](const TokenizerHandle& self, nb::handle text, bool add_special_tokens) {
            const std::string_view bytes = text_of("text", text);
            const ReleasedGil released;
            return self.tokenizer->encode(bytes, add_special_tokens);
          },
          "text"_a.none(), nb::kw_only(), "add_special_tokens"_a = true,
          nb::sig("def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]"))
      .def(
          "encode_with_offsets",
          [](const TokenizerHandle& self, nb::handle text, bool add_special_tokens) {
            const std::string_view bytes = text_of("text", text);
            const ReleasedGil released;
            Encoding encoding = self.tokenizer->encode_with_offsets(bytes, add_special_tokens);
            count_code_points(bytes, encoding.offsets);
            std::vector<std::pair<size_t, size_t>> offsets;
            for (const TextSpan& span : encoding.offsets) offsets.emplace_back(span.begin, span.end);
            return std::pair(std::move(encoding.ids), std::move(offsets));
          },
          "text"_a.none(), nb::kw_only(), "add_special_tokens"_a = true,
          nb::sig("def encode_with_offsets(self, text: str, *, add_special_tokens: bool = True) -> "
                  "tuple[list[int], list[tuple[int, int]]]"),
          "The ids, and for each the part of the text that it stands for: text[begin:end], as in the offsets "
          "of `tokenizers`. Tokens that are not in the text have (0, 0).")
      .def(
          "decode",
          [](const TokenizerHandle& self, nb::handle ids, bool skip_special_tokens) {
            return self.tokenizer->decode(ids_of("ids", ids), skip_special_tokens);
          },
          "ids"_a.none(), nb::kw_only(), "skip_special_tokens"_a = true,
          nb::sig("def decode(self, ids: collections.abc.Sequence[int], *, skip_special_tokens: bool = True) "
                  "-> str"))
      .def(
          "detokenizer",
          [](const TokenizerHandle& self, bool skip_special_tokens) {
            return Detokenizer{self.tokenizer, self.tokenizer->detokenizer(skip_special_tokens)};
          },
          nb::kw_only(), "skip_special_tokens"_a = true)
      .def(
          "is_special",
          [](const TokenizerHandle& self, int32_t id) { return self.tokenizer->is_special(id); }, "id"_a)
      .def_prop_ro("vocab_size", [](const TokenizerHandle& self) { return self.tokenizer->vocab_size(); })
      .def(
          "id_to_token",
          [](const TokenizerHandle& self, int32_t id) { return self.tokenizer->id_to_token(id); }, "id"_a)
      .def(
          "token_to_id",
          [](const TokenizerHandle& self, nb::handle token) {
            return self.tokenizer->token_to_id(text_of("token", token));
          },
          "token"_a.none(), nb::sig("def token_to_id(self, token: str) -> int | None"));

  nb::class_<ChatTemplateHandle>(m, "ChatTemplate", "A model directory's chat template, rendered in C++.")
      .def(
          "__init__",
          [](ChatTemplateHandle* self, const std::string& directory) {
            new (self) ChatTemplateHandle{ChatTemplate::load(directory)};
          },
          "directory"_a, "Raises ValueError for a missing template or syntax that is not supported.")
      .def(
          "render",
          [](const ChatTemplateHandle& self, nb::handle messages, const nb::kwargs& options) {
            return self.chat_template->render(nb::cast<std::string>(dump_json(nb::list(messages))),
                                              nb::cast<std::string>(dump_json(options)));
          },
          nb::sig(
              "def render(self, messages: collections.abc.Sequence[collections.abc.Mapping[str, object]], "
              "**options: object) -> str"),
          "Renders a conversation. Options: add_generation_prompt, tools, and what the template reads.");
}

}  // namespace quire::bindings
