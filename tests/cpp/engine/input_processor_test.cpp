#include "engine/input_processor.h"

#include <gtest/gtest.h>

#include "quire/error.h"

namespace quire {
namespace {

class InputProcessorTest : public testing::Test {
 protected:
  std::string complaint(std::string prompt) {
    EngineRequest request;
    request.prompt = std::move(prompt);
    try {
      processor_.process(request);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "accepted";
  }

  static ModelInfo model(const Tokenizer& tokenizer) {
    ModelInfo info;
    info.vocab_size = tokenizer.vocab_size();
    info.max_model_len = 64;
    return info;
  }

  std::shared_ptr<const Tokenizer> tokenizer_ = Tokenizer::load(QUIRE_DEMO_MODEL);
  InputProcessor processor_{model(*tokenizer_), {}, tokenizer_, 1};
};

TEST_F(InputProcessorTest, TextBeyondAContextOfTheLongestTokensIsNotEncoded) {
  const size_t limit = 64 * tokenizer_->max_token_bytes();
  const std::string tokens_complaint = " tokens; with max_model_len 64 it may have at most 63";
  const std::string at_the_limit = complaint(std::string(limit, 'a'));
  EXPECT_NE(at_the_limit.find(tokens_complaint), std::string::npos) << at_the_limit;
  EXPECT_EQ(complaint(std::string(limit + 1, 'a')),
            "prompt has " + std::to_string(limit + 1) +
                " bytes; with max_model_len 64 and tokens of at most " +
                std::to_string(tokenizer_->max_token_bytes()) + " bytes it may have at most " +
                std::to_string(limit));
  // Not even looked at: it is no UTF-8.
  EXPECT_NE(complaint(std::string(size_t{64} << 20, '\xff')).find("67108864 bytes"), std::string::npos);
}

TEST_F(InputProcessorTest, TheLongestTokensMayFillTheContext) {
  std::string longest;
  for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id) {
    const std::string token = tokenizer_->decode(std::vector<int32_t>{id});
    if (token.size() > longest.size() && tokenizer_->encode(token + token, false).size() == 2)
      longest = token;
  }
  ASSERT_GT(longest.size(), 6U);
  std::string prompt;
  for (int i = 0; i < 63; ++i) prompt += longest;
  EXPECT_EQ(complaint(prompt), "accepted");
}

}  // namespace
}  // namespace quire
