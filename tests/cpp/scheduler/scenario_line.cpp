#include "scheduler/scenario_line.h"

#include <sstream>

namespace quire {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

std::string join(const std::vector<std::string>& parts, const char* separator) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : separator) + part;
  return text;
}

ScenarioLine ScenarioLine::parse(const std::string& text, const std::string& place) {
  ScenarioLine line;
  line.place = place;
  std::stringstream stream(text.substr(0, text.find('#')));
  stream >> line.word;
  for (std::string token; stream >> token;) {
    const size_t equals = token.find('=');
    if (equals == std::string::npos) {
      line.arguments.push_back(token);
    } else {
      line.values[token.substr(0, equals)] = token.substr(equals + 1);
    }
  }
  return line;
}

int64_t ScenarioLine::number(const std::string& key, int64_t otherwise) const {
  const auto found = values.find(key);
  return found == values.end() ? otherwise : std::stoll(found->second);
}

std::string ScenarioLine::text(const std::string& key, const std::string& otherwise) const {
  const auto found = values.find(key);
  return found == values.end() ? otherwise : found->second;
}

}  // namespace quire
