#include "quire/tokenizer.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "quire/error.h"
#include "tokenizer/hf_tokenizer.h"
#include "util/error_of.h"
#include "util/sanitized.h"
#include "util/str.h"

namespace quire::text {
namespace {

// "l o" goes before "lo w", and "e r" last: low -> lo w -> low; "Ġ" is the space.
constexpr const char* kModel =
    R"({"type": "BPE", "vocab": {"l": 0, "o": 1, "w": 2, "e": 3, "r": 4, "Ġ": 5, "lo": 6,
  "low": 7, "er": 8, "Ġlow": 9, "Ã": 10, "©": 11, "ow": 12}, "merges": ["l o", "lo w", "e r", "Ġ low", "o w"]})";

std::string document(const std::string& changes = "") {
  return std::string(R"({"model": )") + kModel +
         R"(, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}, "decoder": {"type": "ByteLevel"},
             "added_tokens": [{"id": 13, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false,
                               "normalized": false, "special": true}])" +
         changes + "}";
}

std::string tokenizer_refusal(const std::string& text) {
  return error_of([&] { const HfTokenizer tokenizer(text, "tokenizer.json"); });
}

using Ids = std::vector<int32_t>;

TEST(TokenizerTest, ATokenStandsForSoManyBytesOfText) {
  EXPECT_EQ(HfTokenizer(document(), "tokenizer.json").max_token_bytes(), 5U);  // <end>
  const std::string nfc = document(R"(, "normalizer": {"type": "NFC"})");
  EXPECT_EQ(HfTokenizer(nfc, "tokenizer.json").max_token_bytes(), 20U);
}

TEST(TokenizerTest, TheMemoryOfALongTextComesBack) {
  if (kSanitized) GTEST_SKIP() << "the allocator is the sanitizer's";
  const HfTokenizer tokenizer(document(), "tokenizer.json");
  const auto in_use = [] {
    const struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
  };
  const std::string text(size_t{4} << 20, 'l');
  tokenizer.encode("low", true);
  const size_t before = in_use();
  EXPECT_EQ(tokenizer.encode(text, true).size(), text.size());
  EXPECT_LT(in_use(), before + (size_t{1} << 20));
}

TEST(TokenizerTest, MergesGoByRankAndThenFromTheLeft) {
  const HfTokenizer tokenizer(document(), "tokenizer.json");
  EXPECT_EQ(tokenizer.encode("low", true), (Ids{7}));
  EXPECT_EQ(tokenizer.encode("low lower", true), (Ids{7, 9, 8}));
  EXPECT_EQ(tokenizer.encode("ow", true), (Ids{12}));
  EXPECT_EQ(tokenizer.encode("", true), Ids{});
}

TEST(TokenizerTest, LongWordsMergeAsShortOnesDo) {
  const HfTokenizer tokenizer(document(), "tokenizer.json");
  std::string word;
  Ids expected;
  for (int i = 0; i < 50; ++i) {
    word += "lower";
    expected.insert(expected.end(), {7, 8});
  }
  EXPECT_EQ(tokenizer.encode(word, true), expected);
}

TEST(TokenizerTest, AddedTokensAreCutOutFirst) {
  const HfTokenizer tokenizer(document(), "tokenizer.json");
  EXPECT_EQ(tokenizer.encode("low<end>low", true), (Ids{7, 13, 7}));
  EXPECT_EQ(tokenizer.decode(Ids{7, 13, 7}, true), "lowlow");
  EXPECT_EQ(tokenizer.decode(Ids{7, 13, 7}, false), "low<end>low");
  EXPECT_TRUE(tokenizer.is_special(13));
  EXPECT_EQ(tokenizer.vocab_size(), 14);
}

TEST(TokenizerTest, InvalidTextIsRefusedWithTheByte) {
  const HfTokenizer tokenizer(document(), "tokenizer.json");
  EXPECT_THROW(tokenizer.encode("low\xFF", true), InvalidArgument);
  EXPECT_THROW(tokenizer.decode(Ids{-1}, true), InvalidArgument);
  EXPECT_EQ(tokenizer.decode(Ids{999}, true), "");
}

TEST(DetokenizerTest, HoldsBytesBackUntilACharacterIsWhole) {
  const HfTokenizer tokenizer(document(), "tokenizer.json");
  const auto detokenizer = tokenizer.detokenizer(true);
  std::string out;
  detokenizer->append(Ids{7, 10}, out);  // the first byte of "é"
  EXPECT_EQ(out, "low");
  detokenizer->append(Ids{11}, out);
  EXPECT_EQ(out, "lowé");
  detokenizer->append(Ids{10}, out);
  detokenizer->finish(out);
  EXPECT_EQ(out, "lowé\uFFFD");
}

TEST(DetokenizerTest, OutlivesItsTokenizer) {
  auto tokenizer = std::make_unique<HfTokenizer>(document(), "tokenizer.json");
  const auto detokenizer = tokenizer->detokenizer(true);
  tokenizer.reset();
  std::string out;
  detokenizer->append(Ids{7}, out);
  EXPECT_EQ(out, "low");
}

TEST(TokenizerTest, SpecialTokensAreAddedOnRequest) {
  const HfTokenizer tokenizer(document(R"(, "post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<end>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
      "pair": [], "special_tokens": {"<end>": {"id": "<end>", "ids": [13], "tokens": ["<end>"]}}})"),
                              "tokenizer.json");
  EXPECT_EQ(tokenizer.encode("low", true), (Ids{13, 7}));
  EXPECT_EQ(tokenizer.encode("low", false), (Ids{7}));
}

TEST(TokenizerTest, WhatIsNotSupportedIsRefusedByName) {
  EXPECT_EQ(tokenizer_refusal(R"({"model": {"type": "Bigram"}})"),
            "tokenizer.json: model.type 'Bigram' is not supported; supported: BPE, Unigram, WordPiece, "
            "WordLevel");
  EXPECT_EQ(tokenizer_refusal(document(R"(, "normalizer": {"type": "Uppercase"})")),
            "tokenizer.json: normalizer.type 'Uppercase' is not supported; supported: NFC, NFD, NFKC, NFKD, "
            "Lowercase, StripAccents, Strip, Prepend, Replace, Precompiled, BertNormalizer, Nmt, ByteLevel, "
            "Sequence");
  EXPECT_EQ(tokenizer_refusal(document(R"(, "surprise": 1)")),
            "tokenizer.json: surprise is not a key we know, and it may change the result");
  EXPECT_EQ(tokenizer_refusal("{}"), "tokenizer.json: model is missing");
}

// "▁" is the space; "é" has no token, and its bytes do.
constexpr const char* kByteFallback =
    R"({"model": {"type": "BPE", "vocab": {"<unk>": 0, "<0xC3>": 1, "<0xA9>": 2, "▁": 3, "l": 4, "▁l": 5},
  "merges": ["▁ l"], "byte_fallback": true, "unk_token": "<unk>", "fuse_unk": true},
  "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
    {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
  "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
    {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}})";

TEST(TokenizerTest, ACharacterWithoutATokenFallsBackToItsBytes) {
  const HfTokenizer tokenizer(kByteFallback, "tokenizer.json");
  EXPECT_EQ(tokenizer.encode("l lé", true), (Ids{5, 5, 1, 2}));
  EXPECT_EQ(tokenizer.decode(Ids{5, 5, 1, 2}, true), "l lé");
  EXPECT_EQ(tokenizer.decode(Ids{5, 1, 1, 2, 5}, true), "l\uFFFD\uFFFD\uFFFD l");
  EXPECT_EQ(tokenizer.encode("x", true), (Ids{3, 0}));
}

TEST(TokenizerTest, TheBytesOfATokenAreThoseItAddsToAText) {
  const HfTokenizer tokenizer(kByteFallback, "tokenizer.json");
  EXPECT_EQ(tokenizer.token_bytes(1), "\xC3");
  EXPECT_EQ(tokenizer.token_bytes(5), " l");
}

TEST(DetokenizerTest, ARunOfByteTokensIsHeldBackToItsEnd) {
  const HfTokenizer tokenizer(kByteFallback, "tokenizer.json");
  const auto detokenizer = tokenizer.detokenizer(true);
  std::string out;
  detokenizer->append(Ids{5, 1, 2}, out);
  EXPECT_EQ(out, "l");
  detokenizer->append(Ids{3}, out);
  EXPECT_EQ(out, "lé ");
  detokenizer->append(Ids{2}, out);
  detokenizer->finish(out);
  EXPECT_EQ(out, "lé \uFFFD");
}

TEST(DetokenizerTest, ARepeatedTokenGoesOnWhereTheDecoderIsCtc) {
  const HfTokenizer tokenizer(
      R"({"model": {"type": "WordLevel", "vocab": {"<pad>": 0, "|": 1, "l": 2, "o": 3},
      "unk_token": "<pad>"}, "decoder": {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|",
      "cleanup": true}})",
      "tokenizer.json");
  const auto detokenizer = tokenizer.detokenizer(true);
  std::string out;
  detokenizer->append(Ids{2, 2, 3}, out);
  detokenizer->append(Ids{3, 0, 3, 1}, out);
  detokenizer->append(Ids{1, 2}, out);
  EXPECT_EQ(out, "loo l");
}

TEST(TokenizerTest, StagesBeyondTheLimitAreRefusedHoweverTheyAreNested) {
  const auto sequence = [](const char* list, const std::string& stage, int count) {
    std::string text = str(R"({"type": "Sequence", ")", list, R"(": [)");
    for (int i = 0; i < count; ++i) text += (i > 0 ? "," : "") + stage;
    return text + "]}";
  };
  const auto refusal = [&](const char* section, const char* list, const std::string& stage, int count) {
    return tokenizer_refusal(
        document(str(", \"", section, "\": ", sequence(list, sequence(list, stage, count), 4))));
  };
  const std::string tail = "is stage 33 of its kind; at most 32 are supported";
  const std::string nfc = R"({"type": "NFC"})";
  EXPECT_EQ(refusal("normalizer", "normalizers", nfc, 8), "");
  EXPECT_EQ(refusal("normalizer", "normalizers", nfc, 9),
            "tokenizer.json: normalizer.normalizers[3].normalizers[5] " + tail);
  const std::string digits = R"({"type": "Digits", "individual_digits": true})";
  EXPECT_EQ(tokenizer_refusal(str(R"({"model": )", kModel, R"(, "pre_tokenizer": )",
                                  sequence("pretokenizers", digits, 40), "}")),
            "tokenizer.json: pre_tokenizer.pretokenizers[32] " + tail);
  const std::string text_only =
      R"({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}], "special_tokens": {}})";
  EXPECT_EQ(refusal("post_processor", "processors", text_only, 8), "");
  EXPECT_EQ(refusal("post_processor", "processors", text_only, 9),
            "tokenizer.json: post_processor.processors[3].processors[5] " + tail);
}

TEST(TokenizerTest, ATemplateThatMultipliesTheTextIsRefused) {
  const auto refusal = [](const std::string& single, const std::string& ids) {
    return tokenizer_refusal(document(str(R"(, "post_processor": {"type": "TemplateProcessing", "single": [)",
                                          single, R"(], "special_tokens": {"x": {"ids": [)", ids, "]}}}")));
  };
  const std::string x = R"({"SpecialToken": {"id": "x"}})", text = R"({"Sequence": {"id": "A"}})";
  std::string ids = "1";
  for (int i = 1; i < 512; ++i) ids += ",1";
  EXPECT_EQ(refusal(x + "," + text + "," + x, ids), "");
  EXPECT_EQ(refusal(x + "," + text + "," + x + "," + x, ids),
            "tokenizer.json: post_processor.single[3].SpecialToken.id brings the special tokens to 1536; at "
            "most 1024 are supported");
  EXPECT_EQ(
      refusal(text + "," + text, "1"),
      "tokenizer.json: post_processor.single[1].Sequence is the text a second time, which is not supported");
}

TEST(TokenizerTest, AddedTokensTakeTimeInTheLengthOfTheTextOnly) {
  // Each space is a token that takes those behind it along, and each "l" begins what turns out to be none.
  const std::string added =
      R"(, "single_word": false, "lstrip": false, "normalized": false, "special": true})";
  std::string text = document();
  text.insert(text.rfind(']'),
              str(R"(, {"id": 14, "content": " ", "rstrip": true)", added, R"(, {"id": 15, "content": ")",
                  std::string(30'000, 'l'), R"(o", "rstrip": false)", added));
  const HfTokenizer tokenizer(text, "tokenizer.json");
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(tokenizer.encode(std::string(500'000, ' ') + "low", true).size(), 500'001U);
  EXPECT_EQ(tokenizer.encode(std::string(500'000, 'l'), true).size(), 500'000U);
  EXPECT_EQ(tokenizer.encode_with_offsets(std::string(500'000, ' ') + "low", true).ids.size(), 500'001U);
  // Milliseconds; a minute where each place begins anew.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(TokenizerTest, ThreadsShareOneTokenizer) {
  const HfTokenizer tokenizer(document(), "tokenizer.json");
  std::atomic<int> num_wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) num_wrong += tokenizer.encode("low lower<end>", true) != Ids{7, 9, 8, 13};
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_wrong, 0);
}

}  // namespace
}  // namespace quire::text
