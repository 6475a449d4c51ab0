// What a model answers, split while it streams: reasoning, content and tool calls.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/export.h"
#include "quire/tokenizer.h"

namespace quire {

// What is new of a tool call. `id` and `name` come once, whole, in the first delta of the call; `arguments`
// come in pieces. Joined they are the text of a JSON object, or the beginning of one when the answer ends, or
// is malformed, within it.
struct ToolCallDelta {
  int32_t index = 0;  // of the call in the answer, from 0
  std::string id;
  std::string name;
  std::string arguments;

  bool operator==(const ToolCallDelta&) const = default;
};

// What is new of an answer. Within a delta a call stands at most once, in the order of `index`.
struct ChatDelta {
  std::string reasoning;
  std::string content;
  std::vector<ToolCallDelta> tool_calls;

  bool empty() const { return reasoning.empty() && content.empty() && tool_calls.empty(); }
  bool operator==(const ChatDelta&) const = default;
};

// Joins what follows to what there is: deltas of a stream become the answer.
QUIRE_API void join(ChatDelta& answer, const ChatDelta& delta);

// What one completion is parsed with.
struct ChatParserOptions {
  // The request's tools: a JSON array of {"type": "function", "function": {"name", "parameters"}}. Formats
  // whose arguments have no types of their own (XML) take them from `parameters`.
  std::string tools_json = "[]";
  // False, as for tool_choice "none": calls are left in the content.
  bool parse_tool_calls = true;
  // Whether the prompt leaves the model thinking (the template's `enable_thinking` or `thinking`). Absent: as
  // the format's templates do by default.
  std::optional<bool> enable_thinking;
};

// Splits one completion. Reads byte by byte: the joined deltas depend on the text alone, however it is cut,
// and take time in proportion to its length. What is no valid call is content. Not thread-safe.
class QUIRE_API ChatParser {
 public:
  virtual ~ChatParser();

  // The next text, whole characters of UTF-8, and the next token ids. Either may be empty, and they need not
  // belong to each other: ids are only counted.
  virtual ChatDelta append(std::string_view text, std::span<const int32_t> token_ids = {}) = 0;
  // What was held back because it might have been the beginning of something. Call once, at the end.
  virtual ChatDelta finish() = 0;

  // Tokens of reasoning among the ids so far, its markers not counted. 0 where the format was made without a
  // tokenizer, or its markers are no tokens.
  virtual int64_t num_reasoning_tokens() const = 0;
};

// Which calls a structural tag makes the model write.
struct ToolChoice {
  // The only tool that is called, once; empty: any of them ("required").
  std::string name;
  // Several calls, where `name` is empty.
  bool parallel_tool_calls = true;
  // As in ChatParserOptions: where the model thinks first, the tag leaves room for that.
  std::optional<bool> enable_thinking;
};

// How a model writes reasoning and tool calls: made once for a model, it makes a parser for each completion.
// Thread-safe: const once made.
class QUIRE_API ChatFormat {
 public:
  virtual ~ChatFormat();

  // By vLLM's names; an empty name: there is none in the answers. With the model's tokenizer, special tokens
  // that are not the format's own are taken out of the text, and tokens of reasoning are counted. Throws
  // InvalidArgument with the known names for one that is not known, and for two that do not go with each
  // other.
  static std::shared_ptr<const ChatFormat> make(const std::string& reasoning_parser,
                                                const std::string& tool_parser,
                                                std::shared_ptr<const Tokenizer> tokenizer = nullptr);
  static std::vector<std::string> reasoning_parser_names();
  static std::vector<std::string> tool_parser_names();

  // Throws InvalidArgument, naming the field, for tools that are none.
  virtual std::unique_ptr<ChatParser> parser(const ChatParserOptions& options = {}) const = 0;
  // A whole answer.
  ChatDelta parse(std::string_view text, const ChatParserOptions& options = {}) const;

  // Whether calls are parsed: the format was made with a tool parser.
  virtual bool has_tool_parser() const = 0;
  // For ChatParserOptions::enable_thinking: whether this prompt, or its end, leaves the model thinking.
  // Nothing unless it ends with a marker of the format's, white space aside.
  virtual std::optional<bool> thinks_after(std::string_view prompt) const = 0;
  // What SamplingParams::skip_special_tokens must be for the text that is fed: false when a marker of the
  // format is a special token.
  virtual bool skip_special_tokens() const = 0;

  // A structural tag (JSON, as xgrammar reads it) under which the model writes nothing but calls in this
  // format, with arguments that fit the tools' schemas. Throws InvalidArgument for tools that are none or
  // none of that name, and when the format has no tool parser.
  virtual std::string structural_tag(const std::string& tools_json, const ToolChoice& choice = {}) const = 0;
};

}  // namespace quire
