// A plugin library: forbids the tokens that a request's extra_args list under "forbid", as [1, 2, ...].
// Linked to nothing of ours.
#include <limits>
#include <stdexcept>

#include "quire/logits_processor.h"

namespace {

constexpr const char* kBegin = "{\"forbid\":[";

std::vector<int32_t> forbidden(const quire::SamplingParams& params) {
  std::vector<int32_t> ids;
  const std::string& text = params.extra_args.text;
  if (!text.starts_with(kBegin)) return ids;
  for (size_t at = std::string(kBegin).size(); at < text.size() && text[at] != ']';) {
    size_t length = 0;
    ids.push_back(std::stoi(text.substr(at), &length));
    at += length;
    if (text[at] == ',') ++at;
  }
  return ids;
}

class Forbidding final : public quire::LogitsProcessor {
 public:
  void update_state(const quire::BatchUpdate& update) override {
    rows_.resize(std::max(rows_.size(), static_cast<size_t>(update.batch_size) + update.moved.size()));
    for (const auto& added : update.added) rows_[static_cast<size_t>(added.row)] = forbidden(*added.params);
    for (const auto& moved : update.moved)
      rows_[static_cast<size_t>(moved.to)] = rows_[static_cast<size_t>(moved.from)];
  }
  void apply(std::span<const quire::LogitsRow> rows) override {
    for (const auto& row : rows)
      for (const int32_t id : rows_[static_cast<size_t>(row.row)])
        row.logits[static_cast<size_t>(id)] = -std::numeric_limits<float>::infinity();
  }

 private:
  std::vector<std::vector<int32_t>> rows_;
};

bool uses(const quire::SamplingParams& params) {
  const auto ids = forbidden(params);
  for (const int32_t id : ids)
    if (id < 0) throw std::invalid_argument("forbid has a negative id");
  return !ids.empty();
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const char* quire_register_logits_processors(
    uint64_t version, quire::LogitsProcessorRegistrar& all) {
  if (version != quire::kLogitsProcessorVersion + QUIRE_TEST_VERSION_OFFSET)
    return "compiled against another version";
  all.add("forbidding",
          {[](const quire::LogitsProcessorConfig&) { return std::make_unique<Forbidding>(); }, uses});
  return nullptr;
}
