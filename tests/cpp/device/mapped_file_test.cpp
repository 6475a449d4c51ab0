#include "device/mapped_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "util/sanitized.h"

namespace quire {
namespace {

constexpr size_t kBytes = 4 * MappedFile::kAlignment;

// A file of kBytes, its 65,536s numbered, that goes when the test does.
class NumberedFile {
 public:
  NumberedFile() {
    descriptor_ = ::mkstemp(path_);
    for (size_t i = 0; i < 4; ++i) {
      const std::vector<char> bytes(MappedFile::kAlignment, static_cast<char>('0' + i));
      EXPECT_EQ(::write(descriptor_, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    }
  }
  ~NumberedFile() {
    ::close(descriptor_);
    ::unlink(path_);
  }
  NumberedFile(const NumberedFile&) = delete;
  NumberedFile& operator=(const NumberedFile&) = delete;

  int descriptor() const { return descriptor_; }
  void truncate(size_t bytes) const { ASSERT_EQ(::ftruncate(descriptor_, static_cast<off_t>(bytes)), 0); }

 private:
  char path_[64] = "/tmp/quire_mapped_XXXXXX";
  int descriptor_;
};

// Not left to the optimizer.
char look(const std::byte* at) { return static_cast<char>(*static_cast<const volatile std::byte*>(at)); }

TEST(MappedFileTest, HoldsAPartOfTheFile) {
  const NumberedFile file;
  MappedFile mapping(file.descriptor(), "numbers", MappedFile::kAlignment, kBytes / 2);
  EXPECT_EQ(look(mapping.data()), '1');
  EXPECT_EQ(look(mapping.data() + mapping.size() - 1), '2');
  EXPECT_TRUE(mapping.contains(mapping.data() + mapping.size() - 1));
  EXPECT_FALSE(mapping.contains(mapping.data() + mapping.size()));
  mapping.data()[0] = std::byte{'x'};
  char stored = 0;
  ASSERT_EQ(::pread(file.descriptor(), &stored, 1, MappedFile::kAlignment), 1);
  EXPECT_EQ(stored, '1') << "what is written is this process's own";
  mapping.discard();
  mapping.restore(file.descriptor(), "numbers", MappedFile::kAlignment);
  EXPECT_EQ(look(mapping.data()), '1');
}

TEST(MappedFileTest, PagesThatAreCutOffBecomeZerosAndAreTold) {
  const NumberedFile file;
  const MappedFile whole(file.descriptor(), "numbers", 0, kBytes);
  MappedFile moved(file.descriptor(), "numbers", 0, kBytes);
  const MappedFile other = std::move(moved);
  file.truncate(MappedFile::kAlignment);
  EXPECT_FALSE(whole.is_damaged());
  // At once from several threads: each finds zeros.
  std::vector<std::thread> threads;
  std::vector<char> found(8, 'x');
  for (size_t i = 0; i < found.size(); ++i)
    threads.emplace_back([&, i] { found[i] = look(whole.data() + MappedFile::kAlignment + i * 16384); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(found, std::vector<char>(8, '\0'));
  EXPECT_EQ(look(whole.data()), '0');
  EXPECT_TRUE(whole.is_damaged());
  EXPECT_FALSE(other.is_damaged()) << "nobody has looked";
  EXPECT_EQ(look(other.data() + kBytes - 1), '\0');
  EXPECT_TRUE(other.is_damaged());
}

TEST(MappedFileTest, ThereAreAsManyAsFit) {
  const NumberedFile file;
  for (int round = 0; round < 2; ++round) {
    std::vector<MappedFile> mappings;
    for (int i = 0; i < 100; ++i) mappings.emplace_back(file.descriptor(), "numbers", 0, kBytes);
    EXPECT_EQ(look(mappings[99].data()), '0');
  }
}

// Faults elsewhere are somebody else's.
TEST(MappedFileDeathTest, OtherFaultsEndTheProcess) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer ends it in its own way";
  const NumberedFile file;
  const MappedFile mapping(file.descriptor(), "numbers", 0, kBytes);
  EXPECT_EXIT(::raise(SIGBUS), testing::KilledBySignal(SIGBUS), "");
}

TEST(MappedFileDeathTest, AnEarlierHandlerIsToldOfOtherFaults) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";  // a new process, in which nothing was mapped
  const auto raise_beside_a_mapping = [] {
    struct sigaction action{};
    action.sa_handler = [](int) { ::_exit(7); };
    ::sigaction(SIGBUS, &action, nullptr);
    const NumberedFile file;
    const MappedFile mapping(file.descriptor(), "numbers", 0, kBytes);
    file.truncate(0);
    if (look(mapping.data()) != 0 || !mapping.is_damaged()) ::_exit(1);
    ::raise(SIGBUS);
  };
  EXPECT_EXIT(raise_beside_a_mapping(), testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace quire
