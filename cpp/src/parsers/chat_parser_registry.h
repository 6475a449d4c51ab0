// Which formats there are: each parser's file registers itself under vLLM's names.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "parsers/chat_output.h"
#include "parsers/stage.h"
#include "parsers/tools.h"
#include "quire/chat_parsers.h"

namespace quire::parsers {

// Counts tokens of reasoning, by id.
class ReasoningTokenCounter {
 public:
  virtual ~ReasoningTokenCounter() = default;
  virtual void put(int32_t token_id) = 0;
  int64_t count() const { return count_; }

 protected:
  int64_t count_ = 0;
};

// How calls are written.
struct ToolParser {
  // What the parser looks for. Those that are special tokens must be in the text.
  std::vector<std::string> markers;
  // The one that stands first where there are calls: some models end their reasoning with it. May be empty.
  std::string call_marker;
  // Reads content, and calls in it. Borrows its arguments.
  std::function<std::unique_ptr<Stage>(ChatOutput& out, const Tools& tools)> make;
  // The format of a structural tag, for these tools: at least one; just one where `choice` names it.
  std::function<OrderedJson(const std::vector<Tool>& tools, const ToolChoice& choice)> structural_tag;
};

// How reasoning is written.
struct ReasoningParser {
  std::vector<std::string> markers;  // those that begin it, then those that end it
  size_t num_begins = 0;
  // Reads what is reasoning and puts the rest into `content`. `call_marker` is the tool parser's, or empty
  // where calls are not parsed. Borrows its arguments.
  std::function<std::unique_ptr<Stage>(ChatOutput& out, Stage& content, const std::string& call_marker,
                                       const ChatParserOptions& options)>
      make;
  // Null when the markers are no tokens.
  std::function<std::unique_ptr<ReasoningTokenCounter>(
      const Tokenizer& tokenizer, const std::string& call_marker, const ChatParserOptions& options)>
      make_counter;
  // The format that stands before calls, null when there is none.
  std::function<OrderedJson(const ToolChoice& choice)> structural_tag;
};

// Reasoning and calls that cannot be told apart by one after the other, as channels of messages: one parser
// for both. `make` is asked with calls or without.
struct ChannelParser {
  std::vector<std::string> markers;
  std::function<std::unique_ptr<Stage>(ChatOutput& out, bool parse_tool_calls)> make;
  std::function<std::unique_ptr<ReasoningTokenCounter>(std::shared_ptr<const Tokenizer> tokenizer)>
      make_counter;
  std::function<OrderedJson(const std::vector<Tool>& tools, const ToolChoice& choice)> structural_tag;
};

// Called before main. Always true. A name is registered once.
bool register_tool_parser(const std::string& name, ToolParser parser);
bool register_reasoning_parser(const std::string& name, ReasoningParser parser);
// Under a name of each kind.
bool register_channel_parser(const std::string& reasoning_name, const std::string& tool_name,
                             ChannelParser parser);

// Null when there is none of that name.
const ToolParser* find_tool_parser(const std::string& name);
const ReasoningParser* find_reasoning_parser(const std::string& name);
const ChannelParser* find_channel_reasoning_parser(const std::string& name);
const ChannelParser* find_channel_tool_parser(const std::string& name);

}  // namespace quire::parsers
