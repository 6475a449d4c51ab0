#include "quire/model_directory.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iterator>
#include <string_view>
#include <system_error>

#include "formats/gguf.h"
#include "formats/json.h"
#include "quire/error.h"
#include "util/str.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code error;  // a name that is too long is none
  return fs::exists(path, error);
}

bool is_name_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.';
}

// By the hub's rules; never "." or "..".
bool is_name_part(std::string_view part) {
  const auto is_edge = [](char c) { return c == '-' || c == '.'; };
  return !part.empty() && part.size() <= 96 && std::ranges::all_of(part, is_name_character) &&
         !is_edge(part.front()) && !is_edge(part.back()) && part.find("--") == std::string_view::npos &&
         part.find("..") == std::string_view::npos;
}

// A relative path that stays below where it begins: "main", "v1.0", "refs/pr/1", a commit.
bool is_revision(std::string_view text) {
  if (text.empty() || text.size() > 200) return false;
  while (true) {
    const std::string_view part = text.substr(0, text.find('/'));
    const bool is_dots = part == "." || part == "..";
    const auto is_fine = [](char c) { return is_name_character(c) || c == '+'; };
    if (part.empty() || is_dots || !std::ranges::all_of(part, is_fine)) return false;
    if (part.size() == text.size()) return true;
    text.remove_prefix(part.size() + 1);
  }
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// As a shell has it: what begins with "~/" is the user's.
fs::path expanded(const std::string& path) {
  return path.starts_with("~/") ? fs::path(environment("HOME")) / path.substr(2) : fs::path(path);
}

fs::path hub_cache(const std::string& download_dir) {
  if (!download_dir.empty()) return expanded(download_dir);
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const std::string path = environment(name); !path.empty()) return expanded(path);
  }
  if (const std::string home = environment("HF_HOME"); !home.empty()) return expanded(home) / "hub";
  const std::string cache = environment("XDG_CACHE_HOME");
  return (cache.empty() ? expanded("~/.cache") : expanded(cache)) / "huggingface" / "hub";
}

fs::path repository_in(const fs::path& cache, const std::string& name) {
  const size_t slash = name.find('/');
  return cache / str("models--", name.substr(0, slash), "--", name.substr(slash + 1));
}

// Of a revision; a branch or tag is a file with its commit. Empty: not in the cache.
fs::path snapshot_of(const fs::path& repository, const std::string& revision) {
  const fs::path by_commit = repository / "snapshots" / revision;
  std::string commit;
  const fs::path reference = repository / "refs" / revision;
  std::error_code error;
  if (fs::is_regular_file(reference, error)) std::ifstream(reference) >> std::setw(256) >> commit;
  if (commit.empty()) return revision.find('/') == std::string::npos && is_there(by_commit) ? by_commit : "";
  if (!is_revision(commit) || commit.find('/') != std::string::npos) return "";
  const fs::path snapshot = repository / "snapshots" / commit;
  return is_there(snapshot) ? snapshot : "";
}

constexpr std::array kTokenizerFiles{"tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json"};

// The first file that is missing; a link whose file is gone is missing.
std::string missing_of(const fs::path& snapshot, HubFiles files) {
  if (files == HubFiles::kTokenizer) {
    const bool there =
        std::ranges::any_of(kTokenizerFiles, [&](const char* name) { return is_there(snapshot / name); });
    return there ? "" : kTokenizerFiles.front();
  }
  if (!is_there(snapshot / "config.json")) return "config.json";
  if (files == HubFiles::kConfig || is_there(snapshot / "model.safetensors")) return "";
  const fs::path index = snapshot / "model.safetensors.index.json";
  if (!is_there(index)) return "model.safetensors";
  const Json document = try_parse_json(read_text_file(index.string()));
  const auto weights = document.is_object() ? document.find("weight_map") : document.end();
  if (!document.is_object() || weights == document.end() || !weights->is_object())
    return "";  // whoever reads it says what is wrong
  for (const auto& [tensor, shard] : weights->items()) {
    if (!shard.is_string()) continue;
    const auto& name = shard.get_ref<const std::string&>();
    if (fs::path(name).filename() == name && !is_there(snapshot / name)) return name;
  }
  return "";
}

// The GGUF file of a quantization, in a snapshot or one directory below.
CachedModel find_gguf_of(const fs::path& snapshot, const HubName& name) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::recursive_directory_iterator at(snapshot, error), end; !error && at != end; at.increment(error)) {
    if (at.depth() >= 1) at.disable_recursion_pending();
    names.push_back(at->path().lexically_relative(snapshot).string());
  }
  const std::vector<std::string> selected = select_gguf_files(names, name.quantization, name.name);
  if (selected.empty()) return {snapshot.string(), str("GGUF file of ", name.quantization)};
  const std::string first = (snapshot / selected[0]).string();
  if (gguf_part_of(first).first > 1) return {snapshot.string(), "the first part of " + selected[0]};
  for (const std::string& part : gguf_parts(first)) {
    if (!is_there(part)) return {snapshot.string(), fs::path(part).filename().string()};
  }
  return {first, ""};
}

// Where a directory's weights are one GGUF file, that is the model.
std::string gguf_or_directory(const std::string& model) {
  const std::string file = find_gguf(model);
  if (!file.empty()) return file;
  if (is_there(fs::path(model) / "config.json")) return model;
  std::vector<std::string> names;  // among which nobody has chosen
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(model, error))
    if (is_gguf_path(entry.path().string())) names.push_back(entry.path().filename().string());
  if (names.size() < 2) return model;
  std::ranges::sort(names);
  throw InvalidArgument(
      str(model, ": holds ", names.size(), " GGUF files, ", names[0], " among them; give one"));
}

// One field's directory: itself, or the cache's of that name.
std::string locate(const char* field, const std::string& given, const std::string& revision, HubFiles files,
                   const std::string& download_dir) {
  const auto parsed = parse_hub_name(given);
  if (!parsed || is_there(given)) return files == HubFiles::kTokenizer ? given : gguf_or_directory(given);
  HubName name = *parsed;
  if (!revision.empty() && !name.revision.empty() && revision != name.revision) {
    throw InvalidArgument(
        str(field, ": '", given, "' and the revision '", revision, "' are not the same; give one of them"));
  }
  if (name.revision.empty()) name.revision = revision;
  const CachedModel cached = find_cached_model(name, files, download_dir);
  if (!cached.directory.empty() && cached.missing.empty()) return cached.directory;
  const std::string at = name.revision.empty() ? "" : str(" --revision ", name.revision);
  const std::string why = cached.directory.empty() ? str("the hub's cache ", hub_cache(download_dir).string(),
                                                         " has none of that name")
                                                   : str(cached.directory, " has no ", cached.missing);
  throw InvalidArgument(str(field, ": no directory '", given, "', and ", why, "; fetch it with `hf download ",
                            name.name, at, "`, or give a directory"));
}

}  // namespace

std::optional<HubName> parse_hub_name(const std::string& text) {
  const size_t at = text.find('@');
  const std::string before = text.substr(0, at);
  const size_t colon = before.find(':');
  const std::string name = before.substr(0, colon);
  const std::string quantization = colon == std::string::npos ? "" : before.substr(colon + 1);
  if (colon != std::string::npos && !is_name_part(quantization)) return std::nullopt;
  const size_t slash = name.find('/');
  if (slash == std::string::npos || !is_name_part(std::string_view(name).substr(0, slash)) ||
      !is_name_part(std::string_view(name).substr(slash + 1)))
    return std::nullopt;
  if (at == std::string::npos) return HubName{name, "", quantization};
  if (!is_revision(std::string_view(text).substr(at + 1))) return std::nullopt;
  return HubName{name, text.substr(at + 1), quantization};
}

std::vector<std::string> select_gguf_files(const std::vector<std::string>& names,
                                           const std::string& quantization, const std::string& repository) {
  const auto lower = [](std::string text) {
    for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return text;
  };
  const auto is_edge = [](const std::string& text, size_t at) {
    return at >= text.size() || text[at] == '-' || text[at] == '.' || text[at] == '/';
  };
  const std::string wanted = lower(quantization);
  std::vector<std::string> selected;
  for (const std::string& name : names) {
    const std::string text = lower(name);
    if (!text.ends_with(".gguf") || wanted.empty()) continue;
    for (size_t at = text.find(wanted); at != text.npos; at = text.find(wanted, at + 1)) {
      if ((at > 0 && !is_edge(text, at - 1)) || !is_edge(text, at + wanted.size())) continue;
      selected.push_back(name);
      break;
    }
  }
  std::ranges::sort(selected);
  std::vector<std::string> models;
  std::ranges::copy_if(selected, std::back_inserter(models),
                       [](const std::string& name) { return gguf_part_of(name).first <= 1; });
  if (models.size() > 1)
    throw InvalidArgument(str("'", repository, ":", quantization, "' may be ", models[0], " or ", models[1],
                              "; name more of it, or give the file"));
  return selected;
}

CachedModel find_cached_model(const HubName& name, HubFiles files, const std::string& download_dir) {
  const std::string revision = name.revision.empty() ? "main" : name.revision;
  if (!is_revision(revision)) {
    throw InvalidArgument(
        str("revision must be a branch, a tag or a commit, got '", revision.substr(0, 200), "'"));
  }
  const fs::path snapshot = snapshot_of(repository_in(hub_cache(download_dir), name.name), revision);
  if (snapshot.empty()) return {};
  if (!name.quantization.empty()) return find_gguf_of(snapshot, name);
  const std::string missing = missing_of(snapshot, files);
  const std::string gguf =
      missing.empty() || files == HubFiles::kTokenizer ? "" : find_gguf(snapshot.string());
  return gguf.empty() ? CachedModel{snapshot.string(), missing} : CachedModel{gguf, ""};
}

EngineConfig locate_model(EngineConfig config) {
  // The tokenizer of another revision of the model is another tokenizer.
  if (config.tokenizer.empty() && !config.tokenizer_revision.empty()) {
    const auto name = parse_hub_name(config.model);
    if (name && !is_there(config.model)) config.tokenizer = name->name;
  }
  if (!config.tokenizer.empty() && !config.skip_tokenizer_init) {
    config.tokenizer = locate("tokenizer", config.tokenizer, config.tokenizer_revision, HubFiles::kTokenizer,
                              config.download_dir);
  }
  const HubFiles files = config.load_format == "dummy" ? HubFiles::kConfig : HubFiles::kModel;
  config.model = locate("model", config.model, config.revision, files, config.download_dir);
  return config;
}

}  // namespace quire
