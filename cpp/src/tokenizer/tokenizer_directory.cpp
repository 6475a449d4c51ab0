#include "tokenizer/tokenizer_directory.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>

#include "quire/error.h"
#include "tokenizer/bpe_model.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/gguf_tokenizer.h"
#include "tokenizer/sentencepiece.h"
#include "tokenizer/split_patterns.h"
#include "util/base64.h"
#include "util/str.h"

namespace quire::text {

Json added_token(int64_t id, const std::string& content, bool special) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

Json byte_level_document(const std::vector<std::string>& patterns, Json added_tokens) {
  Json stages = Json::array();
  for (const std::string& pattern : patterns)
    stages.push_back(
        {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}});
  stages.push_back(
      {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}});
  return {{"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", std::move(stages)}}},
          {"decoder", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"added_tokens", std::move(added_tokens)}};
}

namespace {

// Tokens of more bytes than any vocabulary has would bring too many ways to merge.
constexpr size_t kMaxTokenBytes = 4096;
constexpr size_t kMaxRank = size_t{1} << 22;  // each takes memory, named or not

// added_tokens_decoder of tokenizer_config.json: {"128000": {"content": ..., "special": ...}}.
Json added_tokens_of(const Json& config, const std::string& file) {
  std::map<int64_t, Json> by_id;
  if (config.is_object() && config.contains("added_tokens_decoder")) {
    const JsonNode tokens(config.at("added_tokens_decoder"), str(file, ": added_tokens_decoder"));
    for (const auto& [key, value] : tokens.object().items()) {
      int64_t id = -1;
      const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
      if (error != std::errc() || end != key.data() + key.size() || id < 0 || id > INT32_MAX)
        tokens.fail(str("has the key '", key, "'; token ids are expected"));
      const JsonNode token = tokens.at(key);
      Json& entry = by_id[id] = added_token(id, token.at("content").string(), false);
      for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized", "special"})
        entry[flag] = token.boolean_or(flag, false);
    }
  }
  Json tokens = Json::array();
  for (auto& [id, token] : by_id) tokens.push_back(std::move(token));
  return tokens;
}

// Any two neighbours that are a token together merge, the lowest rank first; whole words go before.
// The added tokens are given their ids by being in the vocabulary, too.
std::unique_ptr<const TokenizerModel> make_ranked(const std::vector<std::string>& tokens, int32_t first_id,
                                                  const Json& added, const std::string& file) {
  BpeParts parts;
  parts.takes_bytes = true;
  parts.ignore_merges = true;
  TokenTable by_bytes;
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    if (tokens[rank].empty()) continue;
    const int32_t id = first_id + static_cast<int32_t>(rank);
    if (!by_bytes.insert(tokens[rank], id) || !parts.vocab.insert(to_byte_level(tokens[rank]), id))
      throw InvalidArgument(str(file, ": the token of rank ", rank, " is there a second time"));
  }
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    const std::string_view token = tokens[rank];
    for (size_t split = 1; split < token.size(); ++split) {
      const int32_t left = by_bytes.find(token.substr(0, split));
      const int32_t right = left >= 0 ? by_bytes.find(token.substr(split)) : -1;
      if (right < 0) continue;
      const auto merged = static_cast<int32_t>(rank);
      parts.merges.push_back({left, right, {merged, first_id + merged}});
    }
  }
  for (const Json& token : added) {
    const auto id = token.at("id").get<int64_t>();
    const std::string& content = token.at("content").get_ref<const std::string&>();
    if (id >= static_cast<int64_t>(kMaxRank) || !parts.vocab.insert(content, static_cast<int32_t>(id))) {
      throw InvalidArgument(str(file, ": the special token '", content, "' with the id ", id,
                                " is there already, or its id is ", kMaxRank, " or more"));
    }
  }
  return std::make_unique<BpeModel>(std::move(parts));
}

// The pattern of a file of ranks stands in no file, so the file's name tells it.
std::string pattern_for(const std::string& file, size_t num_tokens) {
  const std::string name = std::filesystem::path(file).filename();
  if (name.starts_with("o200k")) return kO200kPattern;
  if (name.starts_with("cl100k")) return kCl100kPattern;
  if (name.starts_with("qwen")) return kQwenPattern;
  if (name.starts_with("gpt2") || name.starts_with("r50k") || name.starts_with("p50k")) return kGpt2Pattern;
  if (name == "tokenizer.model" && num_tokens == 128'000) return kCl100kPattern;  // Llama 3
  throw InvalidArgument(
      str(file, ": has ", num_tokens,
          " ranks and does not say how text is split; known are cl100k_base.tiktoken, o200k_base.tiktoken, "
          "qwen.tiktoken, gpt2.tiktoken and Llama 3's tokenizer.model; give a tokenizer.json"));
}

bool is_llama3(const std::string& file, size_t num_tokens) {
  return std::filesystem::path(file).filename() == "tokenizer.model" && num_tokens == 128'000;
}

// Llama 3's special tokens follow its ranks, which its tokenizer_config.json need not repeat.
Json llama3_tokens() {
  Json tokens = Json::array();
  int64_t id = 128'000;
  const auto add = [&](const std::string& content) { tokens.push_back(added_token(id++, content, true)); };
  int reserved = 0;
  const auto reserve = [&] { add(str("<|reserved_special_token_", reserved++, "|>")); };
  add("<|begin_of_text|>");
  add("<|end_of_text|>");
  for (int i = 0; i < 2; ++i) reserve();
  add("<|finetune_right_pad_id|>");
  reserve();
  add("<|start_header_id|>");
  add("<|end_header_id|>");
  add("<|eom_id|>");
  add("<|eot_id|>");
  add("<|python_tag|>");
  while (id < 128'256) reserve();
  return tokens;
}

bool is_tiktoken(std::string_view text) {
  const std::string_view line = text.substr(0, std::min(text.find('\n'), text.size()));
  const size_t space = line.find(' ');
  return space != line.npos && space > 0 && decode_base64(line.substr(0, space)).has_value();
}

// A line of merges.txt is two tokens with a space between them.
Json read_merges_file(std::string_view text) {
  Json merges = Json::array();
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || (merges.empty() && line.starts_with("#version"))) continue;
    merges.push_back(std::string(line));
  }
  return merges;
}

Json read_config(const std::string& directory) {
  const std::string path = directory + "/tokenizer_config.json";
  if (!is_present(path)) return Json();
  Json config = parse_json(read_text_file(path), path);
  JsonNode(config, path).object();
  return config;
}

// GPT-2's, Qwen 2's and their like's: byte-level BPE without a word on how text is split.
std::shared_ptr<const Tokenizer> read_vocab_and_merges(const std::string& directory, const Json& config) {
  const std::string file = directory + "/vocab.json";
  const std::string config_file = directory + "/tokenizer_config.json";
  std::string kind;
  if (!config.is_null()) {
    if (const auto given = JsonNode(config, config_file).find("tokenizer_class")) kind = given->string();
  }
  Json document = byte_level_document({kind.starts_with("Qwen2") ? kQwenPattern : kGpt2Pattern},
                                      added_tokens_of(config, config_file));
  if (kind.starts_with("Qwen2")) document["normalizer"] = {{"type", "NFC"}};
  document["model"] = {{"type", "BPE"},
                       {"vocab", parse_json(read_text_file(file), file)},
                       {"merges", read_merges_file(read_text_file(directory + "/merges.txt"))}};
  return std::make_shared<HfTokenizer>(TokenizerParts{std::move(document), nullptr, nullptr}, file);
}

}  // namespace

std::shared_ptr<const Tokenizer> read_sentencepiece(std::string_view bytes, const std::string& file,
                                                    const Json& config) {
  const SentencePieceFile parsed = parse_sentencepiece(bytes, file);
  const auto says = [&](const char* key, bool absent) {
    const bool is_there = config.is_object() && config.contains(key) && config.at(key).is_boolean();
    return is_there ? config.at(key).get<bool>() : absent;
  };
  // Without a word on it, as the families that use each kind have it: Llama's BPE begins texts, T5's ends
  // them.
  Json sections =
      make_sections(parsed, says("add_bos_token", parsed.is_bpe), says("add_eos_token", !parsed.is_bpe));
  return std::make_shared<HfTokenizer>(
      TokenizerParts{std::move(sections), make_model(parsed, file), make_pre_tokenizer(parsed, file)}, file);
}

std::shared_ptr<const Tokenizer> read_tiktoken(std::string_view text, const std::string& file,
                                               const Json& config) {
  std::vector<std::string> tokens;
  size_t num_tokens = 0;
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const size_t space = std::min(line.find(' '), line.size());
    const std::string_view digits = line.substr(std::min(space + 1, line.size()));
    size_t rank = kMaxRank;
    const auto [last, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
    std::optional<std::string> token = decode_base64(line.substr(0, space));
    const bool valid = token && !token->empty() && token->size() <= kMaxTokenBytes && error == std::errc() &&
                       last == digits.data() + digits.size() && rank < kMaxRank;
    if (!valid) {
      throw InvalidArgument(
          str(file, ": line ", number, " is not a token in base64 and its rank, with a space between them"));
    }
    if (rank >= tokens.size()) tokens.resize(rank + 1);
    if (!tokens[rank].empty())
      throw InvalidArgument(str(file, ": line ", number, " has rank ", rank, " again"));
    tokens[rank] = std::move(*token);
    ++num_tokens;
  }
  Json added = added_tokens_of(config, "tokenizer_config.json");
  if (added.empty() && is_llama3(file, num_tokens)) added = llama3_tokens();
  Json document = byte_level_document({pattern_for(file, num_tokens)}, std::move(added));
  if (is_llama3(file, num_tokens)) {
    const char* begin = "<|begin_of_text|>";
    document["post_processor"] = {
        {"type", "TemplateProcessing"},
        {"single", Json::array({{{"SpecialToken", {{"id", begin}, {"type_id", 0}}}},
                                {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}})},
        {"special_tokens",
         {{begin, {{"id", begin}, {"ids", Json::array({128'000})}, {"tokens", Json::array({begin})}}}}}};
  }
  auto model = make_ranked(tokens, 0, document.at("added_tokens"), file);
  return std::make_shared<HfTokenizer>(TokenizerParts{std::move(document), std::move(model), nullptr}, file);
}

std::shared_ptr<const Tokenizer> read_tekken(std::string_view text, const std::string& file) {
  const Json parsed = parse_json(text, file);
  const JsonNode root(parsed, file);
  const JsonNode config = root.at("config");
  const int64_t num_special = config.at("default_num_special_tokens").integer(0, 1 << 16);
  const int64_t vocab_size = config.at("default_vocab_size").integer(num_special, kMaxRank);
  std::vector<std::string> tokens;
  // Ranks beyond the vocabulary's size are in the file, and not in the model.
  const JsonNode vocab = root.at("vocab");
  if (!vocab.json().is_array()) vocab.fail("must be an array");
  const auto used = std::min<size_t>(vocab.json().size(), static_cast<size_t>(vocab_size - num_special));
  for (size_t rank = 0; rank < used; ++rank) {
    const Json& entry = vocab.json()[rank];
    const bool is_token = entry.is_object() && entry.contains("token_bytes") &&
                          entry.at("token_bytes").is_string() && entry.contains("rank") &&
                          entry.at("rank") == rank;
    std::optional<std::string> bytes;
    if (is_token) bytes = decode_base64(entry.at("token_bytes").get_ref<const std::string&>());
    if (!bytes || bytes->empty() || bytes->size() > kMaxTokenBytes) {
      vocab.fail(str("[", rank, "] must have rank ", rank, " and token_bytes in base64, at most ",
                     kMaxTokenBytes, " bytes"));
    }
    tokens.push_back(std::move(*bytes));
  }
  std::vector<std::string> special(static_cast<size_t>(num_special));
  for (size_t i = 0; i < special.size(); ++i) special[i] = str("<SPECIAL_", i, ">");
  if (const auto listed = root.find("special_tokens")) {
    for (const JsonNode& token : listed->elements()) {
      const auto rank = static_cast<size_t>(token.at("rank").integer(0, num_special - 1));
      special[rank] = token.at("token_str").string();
    }
  } else {
    constexpr const char* kFirst[] = {"<unk>",
                                      "<s>",
                                      "</s>",
                                      "[INST]",
                                      "[/INST]",
                                      "[AVAILABLE_TOOLS]",
                                      "[/AVAILABLE_TOOLS]",
                                      "[TOOL_RESULTS]",
                                      "[/TOOL_RESULTS]",
                                      "[TOOL_CALLS]"};
    for (size_t i = 0; i < std::min(std::size(kFirst), special.size()); ++i) special[i] = kFirst[i];
  }
  Json added = Json::array();
  for (size_t i = 0; i < special.size(); ++i)
    added.push_back(added_token(static_cast<int64_t>(i), special[i], true));
  Json document = byte_level_document({config.at("pattern").string()}, std::move(added));
  if (special.size() > 1) {
    document["post_processor"] = {
        {"type", "TemplateProcessing"},
        {"single", Json::array({{{"SpecialToken", {{"id", special[1]}, {"type_id", 0}}}},
                                {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}})},
        {"special_tokens",
         {{special[1],
           {{"id", special[1]}, {"ids", Json::array({1})}, {"tokens", Json::array({special[1]})}}}}}};
  }
  auto model = make_ranked(tokens, static_cast<int32_t>(num_special), document.at("added_tokens"), file);
  return std::make_shared<HfTokenizer>(TokenizerParts{std::move(document), std::move(model), nullptr}, file);
}

std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& directory) {
  if (is_gguf_path(directory)) return read_gguf_tokenizer(GgufFile(gguf_parts(directory)[0]).header());
  const std::string json = directory + "/tokenizer.json";
  const auto path = [&](const char* name) { return directory + "/" + name; };
  if (is_present(json)) return std::make_shared<HfTokenizer>(read_text_file(json), json);
  if (const std::string tekken = path("tekken.json"); is_present(tekken))
    return read_tekken(read_text_file(tekken), tekken);
  if (const std::string model = path("tokenizer.model"); is_present(model)) {
    const std::string bytes = read_text_file(model);
    return is_tiktoken(bytes) ? read_tiktoken(bytes, model, read_config(directory))
                              : read_sentencepiece(bytes, model, read_config(directory));
  }
  std::vector<std::string> ranks;
  std::error_code unreadable;
  for (const auto& entry : std::filesystem::directory_iterator(directory, unreadable)) {
    if (entry.path().extension() == ".tiktoken" || entry.path().filename() == "tiktoken.model")
      ranks.push_back(entry.path());
  }
  if (ranks.size() > 1) {
    std::ranges::sort(ranks);
    throw InvalidArgument(
        str(directory, ": has ", ranks[0], " and ", ranks[1], "; leave one tokenizer there"));
  }
  if (!ranks.empty()) return read_tiktoken(read_text_file(ranks[0]), ranks[0], read_config(directory));
  if (is_present(path("vocab.json")) && is_present(path("merges.txt")))
    return read_vocab_and_merges(directory, read_config(directory));
  if (const std::string gguf = find_gguf(directory); !gguf.empty()) return load_tokenizer(gguf);
  return std::make_shared<HfTokenizer>(read_text_file(json), json);  // which says that there is none
}

}  // namespace quire::text
