#include "weights/load_progress.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "util/thread_name.h"

namespace quire {
namespace {

constexpr auto kBeforeTheFirst = std::chrono::milliseconds(300);
constexpr auto kBetween = std::chrono::milliseconds(100);
constexpr int64_t kCells = 30;
constexpr double kGiB = 1 << 30;

void write(const std::string& text) {
  // A terminal that is gone is no reason to stop.
  [[maybe_unused]] const ssize_t count = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace

LoadProgress::LoadProgress(int64_t total, std::function<int64_t()> done)
    : total_(total), done_(std::move(done)) {
  if (total > 0 && ::isatty(STDERR_FILENO) == 1) thread_ = std::thread([this] { run(); });
}

LoadProgress::~LoadProgress() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::string LoadProgress::line(int64_t done, int64_t total) {
  done = std::clamp<int64_t>(done, 0, total);
  const auto part = static_cast<double>(done) / static_cast<double>(total);
  const auto cells = static_cast<size_t>(part * kCells);
  std::array<char, 120> text{};
  std::snprintf(text.data(), text.size(), "loading weights: %3d %% [%s%s] %.2f of %.2f GiB",
                static_cast<int>(part * 100), std::string(cells, '#').c_str(),
                std::string(kCells - cells, ' ').c_str(), static_cast<double>(done) / kGiB,
                static_cast<double>(total) / kGiB);
  return text.data();
}

void LoadProgress::run() {
  name_this_thread("quire-progress");
  bool has_written = false;
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, has_written ? kBetween : kBeforeTheFirst, [this] { return stop_; })) {
    write("\r" + line(done_(), total_));
    has_written = true;
  }
  if (has_written) write("\r\x1b[K");
}

}  // namespace quire
