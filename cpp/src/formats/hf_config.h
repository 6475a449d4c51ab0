// A Hugging Face JSON file (config.json, generation_config.json), read key by key.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "quire/export.h"

namespace quire QUIRE_MODEL_API {

// An object of the file. Every getter throws InvalidArgument naming the file, the key, what was found and
// what would do. A key whose value is null counts as absent. Cheap to copy; immutable.
class HfConfig {
 public:
  // Throws InvalidArgument when the file is missing, unreadable, larger or not a JSON object, or an object in
  // it has a member twice.
  static HfConfig load(const std::string& path, int64_t max_bytes = 16 << 20);
  // Reads text; `path` only names it in errors.
  static HfConfig parse(const std::string& text, const std::string& path);

  bool has(const std::string& key) const;
  // Whether the key is there, with null.
  bool is_null(const std::string& key) const;
  bool is_object(const std::string& key) const;
  std::vector<std::string> keys() const;
  // The value as JSON, in one form for equal values.
  std::string get_json(const std::string& key) const;
  // Within [min, max].
  int32_t get_int(const std::string& key, int32_t min, int32_t max) const;
  int32_t get_int(const std::string& key, int32_t min, int32_t max, int32_t otherwise) const;
  // Finite, and above zero.
  double get_positive(const std::string& key) const;
  double get_positive(const std::string& key, double otherwise) const;
  bool get_bool(const std::string& key, bool otherwise) const;
  std::string get_string(const std::string& key) const;
  std::string get_string(const std::string& key, const std::string& otherwise) const;
  std::vector<double> get_numbers(const std::string& key) const;
  // A list, or a single value as a list of one; empty when absent.
  std::vector<int32_t> get_ints(const std::string& key, int32_t min, int32_t max) const;
  std::vector<std::string> get_strings(const std::string& key) const;
  std::optional<HfConfig> get_object(const std::string& key) const;

  // A copy in which `key` has what an older one of its names has, where it is not there itself.
  HfConfig with_alias(const std::string& key, const std::string& older) const;
  // A copy in which what the object `key` holds stands beside it too, before what was there; not
  // "architectures", which is the whole's.
  HfConfig with_members_of(const std::string& key) const;
  // A copy in which `key` is `value`, where it is not there.
  HfConfig with_default(const std::string& key, int32_t value) const;
  // The same for an object, as JSON.
  HfConfig with_default_object(const std::string& key, const std::string& json) const;

  const std::string& path() const { return path_; }
  // InvalidArgument("<path>: <message>")
  [[noreturn]] void fail(const std::string& message) const;

 private:
  struct Node;
  HfConfig(std::shared_ptr<const Node> node, std::string path, std::string prefix);
  const void* find(const std::string& key) const;
  const void* require(const std::string& key) const;

  std::shared_ptr<const Node> node_;
  std::string path_;
  std::string prefix_;  // "rope_scaling." inside that object
};

}  // namespace quire
