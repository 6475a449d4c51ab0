#include "weights/load_progress.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

namespace quire {
namespace {

TEST(LoadProgressTest, ALineSaysHowMuchIsThere) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  EXPECT_EQ(LoadProgress::line(0, 2 * kGiB),
            "loading weights:   0 % [                              ] 0.00 of 2.00 GiB");
  EXPECT_EQ(LoadProgress::line(kGiB, 2 * kGiB),
            "loading weights:  50 % [###############               ] 1.00 of 2.00 GiB");
  EXPECT_EQ(LoadProgress::line(3 * kGiB, 2 * kGiB),
            "loading weights: 100 % [##############################] 2.00 of 2.00 GiB");
}

// What is written to standard error, which is a terminal or a pipe, while something is loaded.
std::string written(bool is_terminal, std::chrono::milliseconds duration) {
  int ends[2] = {-1, -1};
  if (is_terminal) {
    ends[0] = ::posix_openpt(O_RDWR | O_NOCTTY);
    EXPECT_EQ(::grantpt(ends[0]) | ::unlockpt(ends[0]), 0);
    ends[1] = ::open(::ptsname(ends[0]), O_RDWR | O_NOCTTY);
  } else {
    EXPECT_EQ(::pipe(ends), 0);
  }
  const int stderr_before = ::dup(STDERR_FILENO);
  ::dup2(ends[1], STDERR_FILENO);
  {
    const LoadProgress progress(int64_t{4} << 30, [] { return int64_t{1} << 30; });
    std::this_thread::sleep_for(duration);
  }
  ::dup2(stderr_before, STDERR_FILENO);
  ::close(stderr_before);
  // To the end, which a pipe says and a terminal has as an error: it may bring what was written in pieces.
  ::close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t count; (count = ::read(ends[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<size_t>(count));
  ::close(ends[0]);
  return text;
}

TEST(LoadProgressTest, ATerminalShowsItAndIsLeftClean) {
  std::string text;
  // A machine that is busy may take longer to come to the first line.
  for (int duration = 500; duration <= 8000 && text.empty(); duration *= 2)
    text = written(/*is_terminal=*/true, std::chrono::milliseconds(duration));
  EXPECT_EQ(text.find("\rloading weights:  25 % ["), 0U) << text;
  EXPECT_TRUE(text.ends_with("\r\x1b[K")) << text;
}

TEST(LoadProgressTest, NothingElseDoes) {
  EXPECT_EQ(written(/*is_terminal=*/false, std::chrono::milliseconds(450)), "");
  EXPECT_EQ(written(/*is_terminal=*/true, std::chrono::milliseconds(0)), "");
}

}  // namespace
}  // namespace quire
