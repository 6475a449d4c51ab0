// A config.json, as far as a plan of its model without weights: what is accepted has sizes that add up.
//
// Behind a NUL stand pairs of bytes: which member, in the order of their names, and which odd value it gets,
// so that what is changed is still a document.
#include <fstream>
#include <string_view>

#include "formats/json.h"
#include "quire/error.h"
#include "quire/memory_plan.h"
#include "scratch_directory.h"

namespace {

using quire::Json;

bool has_accepted = false, was_wrong_about_a_key = false, was_too_large = false;

const std::string& directory() {
  static const quire::ScratchDirectory scratch;
  static const std::string path = scratch.path().string();
  return path;
}

const std::vector<Json>& odd_values() {
  static const std::vector<Json> values = {
      0,
      -1,
      1,
      3,
      (1LL << 31) - 1,
      1LL << 40,
      1e308,
      0.5,
      "",
      "linear",
      nullptr,
      true,
      Json::array(),
      Json::object(),
      Json::array({nullptr, "full_attention"}),
      Json{{"rope_type", "yarn"}, {"factor", 1e308}},
      Json{{"rope_type", "longrope"}, {"short_factor", Json::array({0})}},
  };
  return values;
}

std::string changed(std::string_view text) {
  const size_t end = text.find('\0');
  if (end == text.npos) return std::string(text);
  Json document = quire::try_parse_json(text.substr(0, end));
  if (!document.is_object() || document.empty()) return std::string(text);
  for (size_t i = end + 1; i + 1 < text.size(); i += 2) {
    const auto which = static_cast<uint8_t>(text[i]), value = static_cast<uint8_t>(text[i + 1]);
    if (value >= 128) continue;  // a pair that waits for a bit to flip
    auto member = document.begin();
    std::advance(member, which % document.size());
    *member = odd_values()[value % odd_values().size()];
  }
  return document.dump();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::ofstream(directory() + "/config.json", std::ios::binary)
      << changed({reinterpret_cast<const char*>(data), size});
  quire::EngineConfig config;
  config.model = directory();
  config.load_format = "dummy";
  config.device = "cpu";
  config.skip_tokenizer_init = true;
  config.kv_cache_memory_bytes = 64 << 20;
  try {
    const quire::MemoryPlan plan = quire::plan_memory(config, quire::find_planned_device(config));
    const quire::RankMemory& memory = plan.memory;
    for (const int64_t bytes : {memory.weights, memory.activations, memory.workspace, memory.batch,
                                memory.kv_cache, plan.kv_bytes_per_token})
      if (bytes < 0) __builtin_trap();
    if (plan.fits() && (plan.num_blocks <= 0 || memory.weights == 0)) __builtin_trap();
    has_accepted |= plan.fits();
    was_too_large |= !plan.fits();
  } catch (const quire::InvalidArgument& refused) {
    was_wrong_about_a_key |=
        std::string_view(refused.what()).find("config.json: '") != std::string_view::npos;
  } catch (const quire::ResourceExhausted&) {
    was_too_large = true;
  }
  return 0;
}

extern "C" const char* fuzz_target_missed() {
  return !has_accepted            ? "a configuration that is accepted"
         : !was_wrong_about_a_key ? "a configuration that is wrong about a key"
         : !was_too_large         ? "a model that does not fit"
                                  : nullptr;
}
