#include "common/architectures.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

namespace quire::cuda {
namespace {

std::vector<int> devices_of(std::string_view architectures) {
  std::vector<int> devices;
  for (const int device : {70, 75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121})
    if (runs_on(architectures, device)) devices.push_back(device);
  return devices;
}
using Devices = std::vector<int>;

TEST(ArchitecturesTest, MachineCodeRunsOnLaterMinorVersionsOfItsMajorVersion) {
  EXPECT_EQ(devices_of("80-real"), (Devices{80, 86, 87, 89}));
  EXPECT_EQ(devices_of("89-real"), (Devices{89}));
  EXPECT_EQ(devices_of("100-real"), (Devices{100, 103}));
}

TEST(ArchitecturesTest, PtxRunsOnAllLaterVersions) {
  EXPECT_EQ(devices_of("89-virtual"), (Devices{89, 90, 100, 103, 110, 120, 121}));
  EXPECT_EQ(devices_of("103"), (Devices{103, 110, 120, 121}));
}

TEST(ArchitecturesTest, SpecificCodeRunsOnItsVersionOrFamily) {
  for (const char* text : {"100a-real", "100a-virtual", "100a"}) EXPECT_EQ(devices_of(text), (Devices{100}));
  for (const char* text : {"100f-real", "100f-virtual", "100f"})
    EXPECT_EQ(devices_of(text), (Devices{100, 103}));
  EXPECT_EQ(devices_of("103f-real"), (Devices{103}));
}

TEST(ArchitecturesTest, OneOfSeveralIsEnough) {
  EXPECT_EQ(devices_of("80-real,90a-real"), (Devices{80, 86, 87, 89, 90}));
  EXPECT_EQ(devices_of("90a-real,75-real"), (Devices{75, 90}));
}

TEST(ArchitecturesTest, OtherTextRunsNowhere) {
  for (const char* text : {"", ",", "native", "-real", "80-fast", "80b-real", "80x"})
    EXPECT_EQ(devices_of(text), Devices{}) << text;
  EXPECT_EQ(devices_of("off,90a-real,"), (Devices{90}));
}

TEST(ArchitecturesTest, CanBeAConstantExpression) {
  static_assert(runs_on("80-real,90a-real", 90));
  static_assert(!runs_on("80-real,90a-real", 100));
}

}  // namespace
}  // namespace quire::cuda
