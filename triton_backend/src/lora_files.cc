#include "lora_files.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "quire/error.h"
#include "server_api.h"

namespace quire::triton {
namespace {

namespace fs = std::filesystem;

constexpr uintmax_t kMaxMultiLoraBytes = 4 << 20;

// Refuses all but {"name": "text", ...} as soon as it is seen, so that nothing else is held, however deep it
// goes.
class MultiLoraReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit MultiLoraReader(const std::string& file) : file_(file) {}

  std::vector<LoraRequest> loras;

  bool null() override { return refuse("null"); }
  bool boolean(bool value) override { return refuse(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { return refuse(std::to_string(value)); }
  bool number_unsigned(number_unsigned_t value) override { return refuse(std::to_string(value)); }
  bool number_float(number_float_t, const string_t& text) override { return refuse(excerpt(text)); }
  bool binary(binary_t&) override { return refuse("binary data"); }
  bool start_array(size_t) override { return refuse("an array"); }
  bool end_array() override { return true; }
  bool start_object(size_t) override {
    if (is_inside_) return refuse("an object");
    return is_inside_ = true;
  }
  bool end_object() override { return true; }

  bool key(string_t& name) override {
    if (!names_.insert(name).second)
      throw InvalidArgument(file_ + ": '" + excerpt(name) + "' is there twice; leave one of them out");
    loras.emplace_back().lora_name = name;
    return true;
  }

  bool string(string_t& path) override {
    if (!is_inside_) return refuse("a string");
    if (path.empty() || path.find('\0') != std::string::npos)
      throw InvalidArgument(entry() + " must be the path of a directory, got \"" + excerpt(path) + "\"");
    loras.back().lora_path = path;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    throw InvalidArgument(file_ + " is not valid JSON, from byte " + std::to_string(position) +
                          " on; it must be an object of names and paths: {\"name\": \"path\"}");
  }

 private:
  std::string entry() const { return file_ + ": '" + excerpt(loras.back().lora_name) + "'"; }

  [[noreturn]] bool refuse(const std::string& what) const {
    if (is_inside_) throw InvalidArgument(entry() + " must be a path, a string, got " + what);
    throw InvalidArgument(file_ + " must be an object of names and paths, {\"name\": \"path\"}, got " + what);
  }

  const std::string& file_;
  bool is_inside_ = false;
  std::unordered_set<std::string> names_;
};

bool is_inside(const fs::path& path, const fs::path& root) {
  return std::mismatch(root.begin(), root.end(), path.begin(), path.end()).first == root.end();
}

// Of the directory and of what is in it.
bool stays_inside(const std::string& directory, const std::string& root) {
  if (directory.empty() || !is_inside(directory, root)) return false;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error))
    if (!is_inside(real_path(entry->path().string()), root)) return false;
  return !error;
}

}  // namespace

std::string real_path(const std::string& path) {
  std::error_code error;
  const fs::path found = fs::weakly_canonical(path, error);
  if (error) return {};
  return (found.has_filename() ? found : found.parent_path()).string();
}

std::vector<LoraRequest> parse_multi_lora(const std::string& json, const std::string& file) {
  MultiLoraReader reader(file);
  nlohmann::json::sax_parse(json, &reader);
  return std::move(reader.loras);
}

std::vector<LoraRequest> read_multi_lora(const std::string& file) {
  std::error_code error;
  if (!fs::exists(file, error)) throw InvalidArgument(file + ": there is no such file");
  if (!fs::is_regular_file(file, error)) throw InvalidArgument(file + " is not a file");
  if (fs::file_size(file, error) > kMaxMultiLoraBytes || error)
    throw InvalidArgument(file + " is larger than " + std::to_string(kMaxMultiLoraBytes >> 20) + " MiB");
  std::ifstream stream(file, std::ios::binary);
  std::string json(std::istreambuf_iterator<char>(stream), {});
  if (!stream) throw InvalidArgument(file + " cannot be read");
  std::vector<LoraRequest> loras = parse_multi_lora(json, file);
  for (LoraRequest& lora : loras) {
    const fs::path path = fs::path(file).parent_path() / lora.lora_path;
    if (!fs::is_directory(path, error)) {
      throw InvalidArgument(file + ": '" + excerpt(lora.lora_name) + "': there is no directory " +
                            excerpt(path.lexically_normal().string()));
    }
    lora.lora_path = real_path(path.string());
  }
  return loras;
}

// One complaint for what is outside and for what is not there: clients learn nothing about the rest of the
// file system.
std::string find_lora(const std::string& path, const std::string& base, bool confined) {
  const std::string found = real_path((fs::path(base) / path).string());
  if (!confined && found.empty())
    throw InvalidArgument("lora_path '" + excerpt(path) + "' cannot be followed");
  if (!confined || stays_inside(found, base)) return found;
  throw InvalidArgument(
      "lora_path '" + excerpt(path) +
      "' is no directory in the lora_root of this model, or holds links that lead out of it");
}

}  // namespace quire::triton
