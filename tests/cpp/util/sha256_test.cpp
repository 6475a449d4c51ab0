#include "util/sha256.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <random>
#include <string>

namespace quire {
namespace {

std::string hex(const Sha256State& state) {
  std::string text;
  for (const uint32_t word : state) {
    char digits[9];
    std::snprintf(digits, sizeof digits, "%08x", word);
    text += digits;
  }
  return text;
}

// The examples of FIPS 180-4's author.
TEST(Sha256Test, KnownAnswers) {
  EXPECT_EQ(hex(Sha256().finish()), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(Sha256().add("abc").finish()),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(Sha256().add("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmno").add("mnopnopq").finish()),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex(Sha256().add(std::string(1'000'000, 'a')).finish()),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256Test, AMessageIsTheSameHoweverItIsCut) {
  std::string message;
  for (int i = 0; i < 300; ++i) message += static_cast<char>(i * 7 + i / 11);
  const std::string whole = hex(Sha256().add(message).finish());
  for (size_t first = 0; first <= message.size(); first += 3) {
    for (size_t second : {size_t{0}, size_t{1}, size_t{63}, size_t{64}, size_t{129}}) {
      Sha256 hash;
      hash.add(message.substr(0, first)).add(message.substr(first, second));
      if (first + second < message.size()) hash.add(message.substr(first + second));
      ASSERT_EQ(hex(hash.finish()), whole) << first << " and " << second;
    }
  }
}

TEST(Sha256Test, InstructionsAndPlainCodeAgree) {
  std::mt19937 random(1);
  Sha256State state{}, plain{};
  for (int round = 0; round < 1000; ++round) {
    Sha256Block block;
    for (uint32_t& word : block) word = static_cast<uint32_t>(random());
    sha256_compress(state, block);
    sha256_compress_portable(plain, block);
    ASSERT_EQ(state, plain);
  }
}

}  // namespace
}  // namespace quire
