// A line of a scenario, and the lists that it is written with.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace quire {

// One line: a word, then plain arguments and key=value pairs.
struct ScenarioLine {
  std::string word;
  std::vector<std::string> arguments;
  std::map<std::string, std::string> values;
  std::string place;  // "file:line"

  static ScenarioLine parse(const std::string& text, const std::string& place);
  int64_t number(const std::string& key, int64_t otherwise) const;
  std::string text(const std::string& key, const std::string& otherwise = "") const;
};

// The parts of "a,b,c".
std::vector<std::string> split(const std::string& text, char separator);
std::string join(const std::vector<std::string>& parts, const char* separator);

}  // namespace quire
