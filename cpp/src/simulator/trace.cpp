#include "simulator/trace.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "formats/json.h"
#include "quire/error.h"
#include "simulator/json_lines.h"
#include "simulator/random.h"
#include "util/str.h"

namespace quire {
namespace {

constexpr int64_t kMaxLength = 1 << 24;
constexpr int32_t kMooncakeBlock = 512;
constexpr uint64_t kOwnKeys = 0x517CC1B727220A95;  // apart from the keys of segments

double number(const JsonNode& node, double min, double max) {
  if (!node.json().is_number()) node.fail("must be a number");
  const auto value = node.json().get<double>();
  if (!(value >= min && value <= max)) node.fail(str("must be between ", min, " and ", max, ", got ", value));
  return value;
}

int32_t length(const JsonNode& line, std::string_view key) {
  return static_cast<int32_t>(line.at(key).integer(1, kMaxLength));
}

int64_t integer_or(const JsonNode& line, std::string_view key, int64_t min, int64_t max, int64_t absent) {
  const auto node = line.find(key);
  return node ? node->integer(min, max) : absent;
}

uint64_t hash_name(std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  return mix_bits(hash);
}

class TraceReader {
 public:
  explicit TraceReader(Trace& trace) : trace_(trace) { user_ids_[""] = 0; }

  void read(const JsonNode& line) {
    TraceRequest& request = trace_.requests.emplace_back();
    request.first_segment = static_cast<uint32_t>(trace_.segments.size());
    if (line.object().contains("timestamp")) {
      read_mooncake(line, request);
    } else {
      read_own(line, request);
    }
    request.num_segments = static_cast<uint32_t>(trace_.segments.size()) - request.first_segment;
  }

 private:
  static constexpr double kMaxSeconds = 1e8;

  void read_own(const JsonNode& line, TraceRequest& request) {
    line.allow_only(
        {"arrival", "prompt_len", "output_len", "prefix", "prefix_len", "priority", "user", "deadline_ms"});
    request.arrival_ns = static_cast<int64_t>(number(line.at("arrival"), 0, kMaxSeconds) * 1e9);
    request.prompt_len = length(line, "prompt_len");
    request.output_len = length(line, "output_len");
    request.priority = static_cast<int32_t>(integer_or(line, "priority", INT32_MIN, INT32_MAX, 0));
    if (const auto deadline = line.find("deadline_ms"))
      request.deadline_ns = static_cast<int64_t>(number(*deadline, 0, kMaxSeconds * 1e3) * 1e6);
    if (const auto user = line.find("user")) {
      const auto [entry, is_new] =
          user_ids_.try_emplace(user->string(), static_cast<int32_t>(trace_.users.size()));
      if (is_new) trace_.users.push_back(user->string());
      request.user = entry->second;
    }
    const auto prefix = line.find("prefix");
    const int64_t prefix_len = integer_or(line, "prefix_len", 0, request.prompt_len, 0);
    if (prefix && !prefix->string().empty()) {
      if (prefix_len == 0) line.fail("has a prefix, but no prefix_len above 0");
      trace_.segments.push_back({hash_name(prefix->string()), static_cast<int32_t>(prefix_len)});
    } else if (prefix_len > 0) {
      line.fail("has a prefix_len, but no prefix that names it");
    }
  }

  void read_mooncake(const JsonNode& line, TraceRequest& request) {
    request.arrival_ns = static_cast<int64_t>(number(line.at("timestamp"), 0, kMaxSeconds * 1e3) * 1e6);
    request.prompt_len = length(line, "input_length");
    request.output_len = length(line, "output_length");
    const auto hash_ids = line.find("hash_ids");
    if (!hash_ids) return;
    int32_t num_left = request.prompt_len;
    for (const JsonNode& id : hash_ids->elements()) {
      if (num_left <= 0) hash_ids->fail(str("has more than one id for each ", kMooncakeBlock, " tokens"));
      const auto key = static_cast<uint64_t>(id.integer(0, INT64_MAX));
      trace_.segments.push_back({mix_bits(key), std::min(num_left, kMooncakeBlock)});
      num_left -= kMooncakeBlock;
    }
  }

  Trace& trace_;
  std::unordered_map<std::string, int32_t> user_ids_;
};

}  // namespace

std::vector<int32_t> Trace::make_prompt(size_t index, uint64_t seed) const {
  const TraceRequest& request = requests[index];
  std::vector<int32_t> tokens(static_cast<size_t>(request.prompt_len));
  size_t position = 0;
  const auto fill = [&](uint64_t key, size_t end) {
    for (; position < end; ++position) {
      const uint64_t mixed = (key + position) * 0x9E3779B97F4A7C15;
      tokens[position] = static_cast<int32_t>((mixed ^ (mixed >> 29)) >> 33);
    }
  };
  for (uint32_t i = 0; i < request.num_segments; ++i) {
    const PromptSegment& segment = segments[request.first_segment + i];
    fill(segment.key, std::min(position + static_cast<size_t>(segment.num_tokens), tokens.size()));
  }
  fill(mix_bits(seed ^ kOwnKeys) + mix_bits(index), tokens.size());
  return tokens;
}

Trace load_trace(const std::string& path) {
  const std::string text = read_text_file(path);
  Trace trace;
  TraceReader reader(trace);
  for_each_json_line(text, path, [&](const JsonNode& node) { reader.read(node); });
  if (trace.requests.empty()) throw InvalidArgument(str(path, ": has no requests"));
  std::stable_sort(trace.requests.begin(), trace.requests.end(),
                   [](const TraceRequest& a, const TraceRequest& b) { return a.arrival_ns < b.arrival_ns; });
  return trace;
}

}  // namespace quire
