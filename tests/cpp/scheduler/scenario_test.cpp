// Every file of tests/cpp/scenarios is a test.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "scheduler/scenario_runner.h"

namespace quire {
namespace {

std::vector<std::string> scenario_files() {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(QUIRE_SCENARIOS)) {
    if (entry.path().extension() == ".txt") files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

class ScenarioTest : public testing::TestWithParam<std::string> {};

TEST_P(ScenarioTest, HappensAsWritten) { ScenarioRunner().run_file(GetParam()); }

INSTANTIATE_TEST_SUITE_P(All, ScenarioTest, testing::ValuesIn(scenario_files()),
                         [](const auto& info) { return std::filesystem::path(info.param).stem().string(); });

}  // namespace
}  // namespace quire
