// Engines of packed weights: the answers of the checkpoint that they were packed from, bit by bit.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <utility>

#include "quire/engine.h"
#include "quire/weights.h"
#include "util/error_of.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

EngineConfig packing_config(const std::string& dtype, int32_t world_size) {
  EngineConfig config;
  config.model = QUIRE_DEMO_MODEL;
  config.device = "cpu";
  config.dtype = dtype;
  config.max_model_len = 256;
  config.max_num_seqs = 8;
  config.num_threads = world_size > 1 ? 1 : 2;
  config.kv_cache_memory_bytes = 32 << 20;
  config.tensor_parallel_size = world_size;
  return config;
}

std::vector<std::pair<int32_t, float>> packed_answers(Engine& engine) {
  std::vector<std::pair<int32_t, float>> found;
  std::vector<EngineRequest> requests;
  for (const char* prompt : {"Once upon a time", "The baker said", "She"}) {
    EngineRequest request;
    request.prompt = prompt;
    request.sampling_params.temperature = 0;
    request.sampling_params.max_tokens = 20;
    request.sampling_params.ignore_eos = true;
    request.sampling_params.logprobs = 2;
    requests.push_back(std::move(request));
  }
  for (const RequestOutput& output : engine.generate(std::move(requests))) {
    const CompletionOutput& completion = output.outputs.at(0);
    for (size_t i = 0; i < completion.token_ids.size(); ++i)
      found.emplace_back(completion.token_ids[i], completion.logprobs.at(i).at(0).logprob);
  }
  return found;
}

// The demo model's directory with packed weights in place of its own.
class PackedModel {
 public:
  explicit PackedModel(const EngineConfig& config) {
    std::string pattern = (fs::temp_directory_path() / "quire_packed_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
    for (const auto& entry : fs::directory_iterator(QUIRE_DEMO_MODEL))
      if (entry.is_regular_file() && entry.path().extension() != ".safetensors")
        fs::copy(entry.path(), fs::path(path_) / entry.path().filename());
    files_ = pack_weights(config, path_);
  }
  ~PackedModel() { fs::remove_all(path_); }
  PackedModel(const PackedModel&) = delete;
  PackedModel& operator=(const PackedModel&) = delete;

  EngineConfig config(EngineConfig from) const {
    from.model = path_;
    return from;
  }
  const std::vector<std::string>& files() const { return files_; }

 private:
  std::string path_;
  std::vector<std::string> files_;
};

class PackedWeightsTest : public testing::TestWithParam<std::pair<const char*, int32_t>> {};

TEST_P(PackedWeightsTest, TheAnswersAreTheCheckpoints) {
  const EngineConfig config = packing_config(GetParam().first, GetParam().second);
  const PackedModel model(config);
  ASSERT_EQ(model.files().size(), static_cast<size_t>(config.tensor_parallel_size));
  std::vector<std::pair<int32_t, float>> expected;
  {
    Engine engine(config);
    expected = packed_answers(engine);
  }
  EngineConfig packed = model.config(config);
  packed.dtype = "auto";       // what it is packed for
  packed.max_model_len = 200;  // and no length is packed
  Engine engine(packed);
  EXPECT_EQ(engine.model().dtype, config.dtype);
  EXPECT_EQ(packed_answers(engine), expected);
  for (const int32_t level : {1, 2}) {
    engine.sleep(level);
    engine.wake_up();
    EXPECT_EQ(packed_answers(engine), expected) << level;
  }
}

INSTANTIATE_TEST_SUITE_P(All, PackedWeightsTest,
                         testing::Values(std::pair("float32", 1), std::pair("bfloat16", 1),
                                         std::pair("bfloat16", 2)),
                         [](const auto& info) {
                           return std::string(info.param.first) + "_" + std::to_string(info.param.second);
                         });

TEST(PackedEngineTest, NewWeightsComeAndGoOverAMapping) {
  const EngineConfig config = packing_config("float32", 1);
  const PackedModel model(config);
  Engine engine(model.config(config));
  const auto expected = packed_answers(engine);
  const std::vector<float> values(4096 * 256, 0.01F);
  const std::vector<WeightTensor> embedding = {
      {"model.embed_tokens.weight", "float32", {4096, 256}, values.data()}};
  UpdateWeightsOptions options;
  options.partial = true;
  engine.update_weights(embedding, options);
  EXPECT_NE(packed_answers(engine), expected);
  engine.update_weights(model.config(config).model);
  EXPECT_EQ(packed_answers(engine), expected);
  engine.update_weights(QUIRE_DEMO_MODEL);
  EXPECT_EQ(packed_answers(engine), expected);
  engine.sleep(2);
  engine.wake_up();
  EXPECT_EQ(packed_answers(engine), expected);
  EXPECT_NE(error_of([&] {
              engine.update_weights(model.config(config).model, options);
            }).find("packed weights are whole"),
            std::string::npos);
  // An engine with memory of its own reads them.
  Engine other(config);
  other.update_weights(model.config(config).model);
  EXPECT_EQ(packed_answers(other), expected);
}

TEST(PackedEngineTest, AFileThatIsCutOffWhileItIsMappedEndsTheEngineWithItsName) {
  const EngineConfig config = packing_config("float32", 1);
  const PackedModel model(config);
  Engine engine(model.config(config));
  packed_answers(engine);
  const std::string file = model.files().at(0);
  // A page that every step reads, and no check of the file's size: while the step runs.
  EngineRequest request;
  request.prompt = "Once upon a time";
  request.sampling_params.max_tokens = 100;
  request.sampling_params.ignore_eos = true;
  std::promise<RequestOutput> last;
  engine.add_request(request, [&, cut = false](RequestOutput&& output) mutable {
    if (!std::exchange(cut, true)) fs::resize_file(file, fs::file_size(file) / 2);
    if (output.finished) last.set_value(output);
  });
  const RequestOutput output = last.get_future().get();
  EXPECT_EQ(output.outputs.at(0).finish_reason, FinishReason::kError);
  EXPECT_NE(output.outputs.at(0).error.find(file + ": was "), std::string::npos)
      << output.outputs.at(0).error;
  EXPECT_NE(error_of<std::exception>([&] { packed_answers(engine); }).find(file), std::string::npos);
}

TEST(PackedEngineTest, WhoCannotUseThemIsTold) {
  const EngineConfig config = packing_config("bfloat16", 1);
  const PackedModel model(config);
  EngineConfig other = model.config(config);
  other.dtype = "float32";
  const std::string error = error_of([&] { const Engine engine(other); });
  EXPECT_NE(error.find("has no weights for cpu"), std::string::npos) << error;
  EXPECT_NE(error.find("in bfloat16, one rank"), std::string::npos) << error;
  other.load_format = "dummy";
  EXPECT_EQ(error_of([&] { const Engine engine(other); }), "");
  EXPECT_NE(error_of([&] { pack_weights(other, "/tmp"); }).find("load_format 'dummy'"), std::string::npos);
  EXPECT_NE(error_of([&] { pack_weights(config, "/tmp/there/is/none"); }).find("make it first"),
            std::string::npos);
}

}  // namespace
}  // namespace quire
