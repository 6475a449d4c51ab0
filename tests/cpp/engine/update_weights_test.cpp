// New weights for an engine that is there: it answers as one that was made from them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <limits>
#include <map>

#include "formats/safetensors.h"
#include "quire/engine.h"
#include "quire/flight_recorder.h"
#include "util/error_of.h"
#include "util/str.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

// The demo model's tensors, in memory, to be changed and written.
class Weights {
 public:
  Weights() {
    const SafetensorsFile file(std::string(QUIRE_DEMO_MODEL) + "/model.safetensors");
    for (const SafetensorsEntry& entry : file.entries()) {
      const auto bytes = file.bytes(entry);
      tensors_[entry.name] = {entry, {bytes.begin(), bytes.end()}};
    }
  }

  // Other values, as finite as they were: a bit of each mantissa is turned.
  void change(const std::string& name) {
    Tensor& tensor = tensors_.at(name);
    const size_t size = tensor.entry.dtype == "F32" ? 4 : 2;
    const std::byte bit{tensor.entry.dtype == "F16" ? uint8_t{2} : uint8_t{0x40}};
    const size_t place = tensor.entry.dtype == "F16" ? 1 : size - 2;
    for (size_t i = place; i < tensor.bytes.size(); i += size) tensor.bytes[i] ^= bit;
  }
  void change_all() {
    for (const auto& [name, tensor] : tensors_) change(name);
  }
  std::vector<WeightTensor> tensors() const {
    std::vector<WeightTensor> all;
    for (const auto& [name, tensor] : tensors_) all.push_back(of(name));
    return all;
  }
  WeightTensor of(const std::string& name) const {
    const Tensor& tensor = tensors_.at(name);
    const char* dtype = tensor.entry.dtype == "F32"   ? "float32"
                        : tensor.entry.dtype == "F16" ? "float16"
                                                      : "bfloat16";
    return {name, dtype, tensor.entry.shape, tensor.bytes.data()};
  }
  std::byte* data(const std::string& name) { return tensors_.at(name).bytes.data(); }
  void write(const std::string& path) const {
    std::string header, data;
    for (const auto& [name, tensor] : tensors_) {
      std::string shape;
      for (const int64_t size : tensor.entry.shape)
        shape += (shape.empty() ? "" : ",") + std::to_string(size);
      header +=
          str(header.empty() ? "{" : ",", '"', name, R"(":{"dtype":")", tensor.entry.dtype, R"(","shape":[)",
              shape, R"(],"data_offsets":[)", data.size(), ",", data.size() + tensor.bytes.size(), "]}");
      data.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
    }
    header += "}";
    const uint64_t length = header.size();
    std::ofstream(path, std::ios::binary)
        << std::string(reinterpret_cast<const char*>(&length), sizeof length) << header << data;
  }

 private:
  struct Tensor {
    SafetensorsEntry entry;
    std::vector<std::byte> bytes;
  };
  std::map<std::string, Tensor> tensors_;
};

// A directory with the demo model's files and these weights.
class NewModel {
 public:
  explicit NewModel(const Weights& weights) {
    std::string pattern = (fs::temp_directory_path() / "quire_update_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
    for (const auto& file : fs::directory_iterator(QUIRE_DEMO_MODEL))
      if (file.path().extension() == ".json") fs::copy(file, path_);
    weights.write(path_ + "/model.safetensors");
  }
  ~NewModel() { fs::remove_all(path_); }
  NewModel(const NewModel&) = delete;
  NewModel& operator=(const NewModel&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct Setting {
  const char* dtype;
  bool async_scheduling;
  int32_t ranks;
};

class UpdateWeightsTest : public testing::TestWithParam<Setting> {
 protected:
  static EngineConfig config(const std::string& model = QUIRE_DEMO_MODEL) {
    EngineConfig config;
    config.model = model;
    config.device = "cpu";
    config.dtype = GetParam().dtype;
    config.async_scheduling = GetParam().async_scheduling;
    config.tensor_parallel_size = GetParam().ranks;
    config.max_model_len = 256;
    config.max_num_seqs = 8;
    config.num_threads = 2;
    config.kv_cache_memory_bytes = 8 << 20;
    config.flight_recorder_bytes = 4 << 20;
    return config;
  }
  static EngineRequest request(std::vector<int32_t> prompt, int32_t max_tokens) {
    EngineRequest request;
    request.prompt_token_ids = std::move(prompt);
    request.sampling_params.temperature = 0;
    request.sampling_params.max_tokens = max_tokens;
    request.sampling_params.ignore_eos = true;
    request.sampling_params.logprobs = 0;
    return request;
  }
  // Tokens and log-probabilities, to be compared bit by bit.
  static std::vector<std::pair<int32_t, float>> answers(Engine& engine) {
    std::vector<std::pair<int32_t, float>> found;
    std::vector<int32_t> prompt;
    for (int32_t i = 0; i < 40; ++i) prompt.push_back(20 + i * 7 % 300);
    for (const RequestOutput& output : engine.generate({request(prompt, 20), request({50, 60, 70}, 12)})) {
      const CompletionOutput& completion = output.outputs.at(0);
      for (size_t i = 0; i < completion.token_ids.size(); ++i)
        found.emplace_back(completion.token_ids[i], completion.logprobs.at(i).at(0).logprob);
    }
    return found;
  }
  static std::vector<std::pair<int32_t, float>> answers_of(const NewModel& model) {
    Engine engine(config(model.path()));
    return answers(engine);
  }
  static void expect_replays(Engine& engine) {
    const std::string path = testing::TempDir() + "update_weights_test.rec";
    engine.dump_flight_recorder(path);
    EXPECT_EQ(replay_recording(path).divergence, "");
    fs::remove(path);
  }
};

TEST_P(UpdateWeightsTest, AnEngineAnswersAsOneThatWasMadeFromThem) {
  const Weights old;
  Weights changed;
  changed.change_all();
  const NewModel before(old), after(changed);
  Engine engine(config());
  const auto expected_before = answers(engine), expected_after = answers_of(after);
  EXPECT_NE(expected_before, expected_after);
  engine.update_weights(after.path());
  EXPECT_EQ(answers(engine), expected_after);
  engine.update_weights(old.tensors());
  EXPECT_EQ(answers(engine), expected_before);
  EXPECT_GT(engine.stats().num_free_blocks, 0);
  EXPECT_EQ(engine.stats().prefix_cache_hits, 0U) << "what was cached is of other weights";
  EXPECT_EQ(answers(engine), expected_before);
  expect_replays(engine);
  // Of what came from memory level 1 keeps a copy, and level 2 has none.
  engine.sleep(1);
  engine.wake_up();
  EXPECT_EQ(answers(engine), expected_before);
  engine.sleep(2);
  EXPECT_NE(error_of([&] { engine.wake_up(); }).find("update_weights"), std::string::npos);
  EXPECT_NE(error_of([&] { engine.update_weights(old.tensors(), {.partial = true}); }).find("partial"),
            std::string::npos);
  engine.update_weights(changed.tensors());
  EXPECT_TRUE(engine.is_sleeping()) << "without its KV cache";
  engine.wake_up();
  EXPECT_EQ(answers(engine), expected_after);
  // From the directory that they came from last, not the first.
  engine.update_weights(after.path());
  engine.sleep(2);
  engine.wake_up();
  EXPECT_EQ(answers(engine), expected_after);
}

TEST_P(UpdateWeightsTest, PartOfThemLeavesTheRest) {
  Weights changed;
  const std::string layer = "model.layers.1.";
  std::vector<WeightTensor> part;
  for (const std::string& name :
       {layer + "self_attn.k_proj.weight", layer + "mlp.up_proj.weight", layer + "input_layernorm.weight",
        std::string("model.embed_tokens.weight")}) {
    changed.change(name);
    part.push_back(changed.of(name));
  }
  const NewModel after(changed);
  Engine engine(config());
  const auto before = answers(engine);
  EXPECT_NE(error_of([&] { engine.update_weights(part); }).find(" more are missing"), std::string::npos);
  EXPECT_EQ(answers(engine), before);
  engine.sleep(1);
  engine.update_weights(part, {.partial = true});
  engine.wake_up();
  EXPECT_EQ(answers(engine), answers_of(after));
}

TEST_P(UpdateWeightsTest, WhatDoesNotFitIsRefusedByNameAndChangesNothing) {
  Weights weights;
  Engine engine(config());
  const auto expected = answers(engine);
  weights.change_all();
  const std::string name = "model.layers.0.self_attn.q_proj.weight";
  const auto refused = [&](std::vector<WeightTensor> tensors, bool partial = false) {
    const std::string error =
        error_of<InvalidArgument>([&] { engine.update_weights(tensors, {.partial = partial}); });
    EXPECT_FALSE(engine.is_sleeping()) << error;
    return error;
  };
  const auto says = [](const std::string& error, const std::string& part) {
    EXPECT_NE(error.find(part), std::string::npos) << error;
  };
  WeightTensor tensor = weights.of(name);
  tensor.name = "model.layers.0.self_attn.q_projection.weight";
  says(refused({tensor}, true), "no place for tensor 'model.layers.0.self_attn.q_projection.weight'");
  says(refused({tensor}, true), "the nearest that it has is '" + name + "'");
  std::vector<WeightTensor> all = weights.tensors();
  const std::string down = "model.layers.0.mlp.down_proj.weight", wrong = "model.layers.0.mlp.down.weight";
  for (WeightTensor& each : all)
    if (each.name == down) each.name = wrong;
  says(refused(all), "no place for tensor '" + wrong + "'");
  says(refused(all), "the nearest that it has is '" + down + "'");
  std::erase_if(all, [&](const WeightTensor& each) { return each.name == wrong || each.name == name; });
  says(refused(all), "tensor '" + down + "' and 1 more are missing");
  tensor = weights.of(name);
  tensor.shape[0] -= 1;
  says(refused({tensor}, true), "tensor '" + name + "' has shape");
  tensor = weights.of(name);
  tensor.dtype = "int32";
  says(refused({tensor}, true), "has dtype I32");
  tensor.dtype = "complex64";
  says(refused({tensor}, true), "has dtype 'complex64'");
  says(refused({weights.of(name), weights.of(name)}, true), "is given twice");
  says(refused({}), "at least one");
  std::memset(weights.data(name) + 8, 0xFF, 4);  // NaN in any type
  says(refused(weights.tensors()), "tensor '" + name + "' holds NaN or an infinite value, at place ");
  says(error_of([&] { engine.update_weights(std::string("/none")); }), "/none");
  const NewModel damaged(weights);
  says(error_of([&] { engine.update_weights(damaged.path()); }), "holds NaN");
  const NewModel other{Weights()};
  std::ifstream in(other.path() + "/config.json");
  std::string text{std::istreambuf_iterator<char>(in), {}};
  const size_t at = text.find("\"rms_norm_eps\":");
  ASSERT_NE(at, std::string::npos);
  text.replace(at, text.find_first_of(",}", at) - at, "\"rms_norm_eps\": 0.5");
  std::ofstream(other.path() + "/config.json") << text;
  says(error_of([&] { engine.update_weights(other.path()); }), "'rms_norm_eps' is ");
  EXPECT_EQ(answers(engine), expected);
}

TEST_P(UpdateWeightsTest, UnfinishedRequestsAreRefusedAbortedWaitedForOrGoOnWithTheNewWeights) {
  Weights changed;
  changed.change_all();
  const NewModel after(changed);
  Engine engine(config());
  answers(engine);
  struct Running {
    std::mutex mutex;
    std::vector<int32_t> tokens;
    std::promise<FinishReason> finished;
  };
  const auto begin = [&engine](int32_t max_tokens) {
    auto running = std::make_shared<Running>();
    EngineRequest asked = request({50, 60, 70, 80}, max_tokens);
    asked.sampling_params.output_kind = RequestOutputKind::kDelta;
    engine.add_request(asked, [running](RequestOutput&& output) {
      const std::lock_guard lock(running->mutex);
      for (const int32_t token : output.outputs.at(0).token_ids) running->tokens.push_back(token);
      if (output.finished) running->finished.set_value(output.outputs.at(0).finish_reason);
    });
    return running;
  };
  const auto kept = begin(200);
  const auto num_tokens = [&kept] {
    const std::lock_guard lock(kept->mutex);
    return kept->tokens.size();
  };
  while (num_tokens() < 3) std::this_thread::yield();
  engine.pause();
  EXPECT_NE(error_of([&] { engine.update_weights(after.path()); }).find("1 requests are unfinished"),
            std::string::npos);
  engine.update_weights(after.path(), {.unfinished = UnfinishedRequests::kKeep});
  size_t before = num_tokens();
  for (bool settled = false; !settled;) {  // the last tokens of the old weights may be on their way
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    settled = num_tokens() == std::exchange(before, num_tokens());
  }
  engine.resume();
  EXPECT_EQ(kept->finished.get_future().get(), FinishReason::kLength);
  ASSERT_EQ(kept->tokens.size(), 200U);
  std::vector<int32_t> prompt = {50, 60, 70, 80};
  const auto middle = kept->tokens.begin() + static_cast<std::ptrdiff_t>(before);
  prompt.insert(prompt.end(), kept->tokens.begin(), middle);
  Engine fresh(config(after.path()));
  const auto rest = fresh.generate({request(prompt, static_cast<int32_t>(200 - before))});
  EXPECT_EQ(rest.at(0).outputs.at(0).token_ids, std::vector<int32_t>(middle, kept->tokens.end()));
  expect_replays(engine);

  const auto waited_for = begin(60);
  engine.update_weights(Weights().tensors(), {.unfinished = UnfinishedRequests::kWait});
  EXPECT_EQ(waited_for->finished.get_future().get(), FinishReason::kLength);
  const auto aborted = begin(200);
  engine.update_weights(changed.tensors(), {.unfinished = UnfinishedRequests::kAbort});
  aborted->finished.get_future().get();
  EXPECT_EQ(answers(engine), answers(fresh));
  EXPECT_EQ(engine.stats().num_free_blocks, engine.stats().num_total_blocks);
}

INSTANTIATE_TEST_SUITE_P(Settings, UpdateWeightsTest,
                         testing::Values(Setting{"float32", false, 1}, Setting{"bfloat16", true, 1},
                                         Setting{"float32", true, 2}));

// Two beams share blocks, and hold them for those that come.
TEST(UpdateWeightsInStepsTest, SearchesAndRequestsOfAnLLMEngineGoOn) {
  EngineConfig config;
  config.model = QUIRE_DEMO_MODEL;
  config.device = "cpu";
  config.max_model_len = 128;
  config.num_threads = 1;
  config.async_scheduling = true;
  const Weights weights;
  std::vector<std::vector<std::vector<int32_t>>> found(2);
  for (const bool updates : {false, true}) {
    LLMEngine engine(config);
    for (const int32_t beam_width : {1, 3, 1}) {
      EngineRequest request;
      request.prompt = "Once upon a time there was";
      request.sampling_params.temperature = 0;
      request.sampling_params.max_tokens = 20;
      request.sampling_params.ignore_eos = true;
      request.sampling_params.beam_width = beam_width;
      engine.add_request(request);
    }
    for (int i = 0; engine.has_unfinished_requests(); ++i) {
      // With the weights that it has.
      if (updates && i % 4 == 2)
        engine.update_weights(weights.tensors(), {.unfinished = UnfinishedRequests::kKeep});
      for (const RequestOutput& output : engine.step()) {
        if (!output.finished) continue;
        for (const CompletionOutput& completion : output.outputs)
          found[static_cast<size_t>(updates)].push_back(completion.token_ids);
      }
    }
    EXPECT_EQ(engine.stats().num_free_blocks, engine.stats().num_total_blocks);
  }
  std::ranges::sort(found[0]);
  std::ranges::sort(found[1]);
  EXPECT_EQ(found[0].size(), 3U);
  EXPECT_EQ(found[0], found[1]);
}

}  // namespace
}  // namespace quire
