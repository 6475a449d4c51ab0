#include "parsers/chat_parser_registry.h"

#include <map>
#include <utility>

#include "util/check.h"
#include "util/str.h"

namespace quire {
namespace parsers {
namespace {

// Built on first use: registration precedes main.
struct Registry {
  std::map<std::string, ToolParser> tool_parsers;
  std::map<std::string, ReasoningParser> reasoning_parsers;
  std::map<std::string, std::shared_ptr<const ChannelParser>> channel_reasoning_parsers, channel_tool_parsers;
};
Registry& registry() {
  static Registry one;
  return one;
}

template <typename Map>
auto find_in(const Map& map, const std::string& name) {
  const auto found = map.find(name);
  return found == map.end() ? nullptr : &found->second;
}

template <typename... Maps>
std::vector<std::string> names_in(const Maps&... maps) {
  std::map<std::string, int> sorted;
  const auto add = [&sorted](const auto& map) {
    for (const auto& [name, parser] : map) sorted[name] = 0;
  };
  (add(maps), ...);
  std::vector<std::string> names;
  for (const auto& [name, unused] : sorted) names.push_back(name);
  return names;
}

}  // namespace

bool register_tool_parser(const std::string& name, ToolParser parser) {
  QUIRE_CHECK(registry().tool_parsers.try_emplace(name, std::move(parser)).second, name,
              " is registered twice");
  return true;
}

bool register_reasoning_parser(const std::string& name, ReasoningParser parser) {
  QUIRE_CHECK(registry().reasoning_parsers.try_emplace(name, std::move(parser)).second, name,
              " is registered twice");
  return true;
}

bool register_channel_parser(const std::string& reasoning_name, const std::string& tool_name,
                             ChannelParser parser) {
  const auto shared = std::make_shared<const ChannelParser>(std::move(parser));
  registry().channel_reasoning_parsers[reasoning_name] = shared;
  registry().channel_tool_parsers[tool_name] = shared;
  return true;
}

const ToolParser* find_tool_parser(const std::string& name) { return find_in(registry().tool_parsers, name); }

const ReasoningParser* find_reasoning_parser(const std::string& name) {
  return find_in(registry().reasoning_parsers, name);
}

const ChannelParser* find_channel_reasoning_parser(const std::string& name) {
  const auto* found = find_in(registry().channel_reasoning_parsers, name);
  return found == nullptr ? nullptr : found->get();
}

const ChannelParser* find_channel_tool_parser(const std::string& name) {
  const auto* found = find_in(registry().channel_tool_parsers, name);
  return found == nullptr ? nullptr : found->get();
}

}  // namespace parsers

std::vector<std::string> ChatFormat::reasoning_parser_names() {
  const parsers::Registry& all = parsers::registry();
  return parsers::names_in(all.reasoning_parsers, all.channel_reasoning_parsers);
}

std::vector<std::string> ChatFormat::tool_parser_names() {
  const parsers::Registry& all = parsers::registry();
  return parsers::names_in(all.tool_parsers, all.channel_tool_parsers);
}

}  // namespace quire
