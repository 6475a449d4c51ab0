// Engines whose keys and values go to a store in host memory, and come from it: the connector of
// cpp/examples, and some that do otherwise.
#include "quire/kv_connector.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <mutex>
#include <set>
#include <thread>

#include "examples/host_memory_connector.h"
#include "quire/engine.h"
#include "quire/error.h"
#include "quire/flight_recorder.h"
#include "quire/kernels/backend_registry.h"
#include "util/error_of.h"
#include "util/sanitized.h"

namespace quire {
namespace {

using quire_examples::HostMemoryScheduler;
using quire_examples::HostMemoryStore;
using quire_examples::HostMemoryWorker;
using quire_examples::Transfer;

// Engines after one another over one store: a second one begins with what the first has stored. Under a
// sanitizer one, whose requests come again instead.
constexpr int kNumRounds = kSanitized ? 1 : 2;

// What the tests share with the connectors that they register; one test at a time.
struct SharedWithConnectors {
  std::shared_ptr<HostMemoryStore> store;
  std::atomic<int> num_questions{0}, num_loads{0}, num_layers_saved{0};
  std::string fingerprint;            // of the request that was asked about last
  std::atomic<int> failing_load{-1};  // this one does not find what it was to load; counted from 0
};
SharedWithConnectors& shared() {
  static SharedWithConnectors one;
  return one;
}

class CountingScheduler final : public HostMemoryScheduler {
 public:
  using HostMemoryScheduler::HostMemoryScheduler;
  std::optional<KVConnectorMatch> get_num_new_matched_tokens(const KVConnectorRequest& request,
                                                             int32_t num_computed_tokens) override {
    shared().fingerprint = request.lora_fingerprint;
    // Every third question is answered at the next step.
    if (++shared().num_questions % 3 == 0) return std::nullopt;
    return HostMemoryScheduler::get_num_new_matched_tokens(request, num_computed_tokens);
  }
};

class CountingWorker : public HostMemoryWorker {
 public:
  using HostMemoryWorker::HostMemoryWorker;

 protected:
  bool load(const Transfer& transfer) override {
    if (shared().num_loads++ == shared().failing_load) return false;
    return HostMemoryWorker::load(transfer);
  }
};

// Loads each layer's page when its attention is about to read it.
class LayerWorker final : public CountingWorker {
 public:
  using CountingWorker::CountingWorker;
  bool has_layer_hooks() const override { return true; }
  void start_load_kv(std::string_view metadata) override {
    waiting_.clear();
    CountingWorker::start_load_kv(metadata);
  }
  void wait_for_layer_load(int32_t layer) override {
    for (const Transfer& transfer : waiting_) {
      const KVCachePages& pages = group(transfer);
      for (size_t i = 0; i < pages.layers.size(); ++i) {
        if (pages.layers[i] != layer) continue;
        const auto offset = static_cast<size_t>(pages.page_bytes) * i;
        copier().copy(block(transfer) + offset, store().find(key(transfer))->data() + offset,
                      static_cast<size_t>(pages.page_bytes));
      }
    }
  }
  void save_kv_layer(int32_t) override { ++shared().num_layers_saved; }

 protected:
  bool load(const Transfer& transfer) override {
    ++shared().num_loads;
    waiting_.push_back(transfer);
    return true;
  }

 private:
  std::vector<Transfer> waiting_;
};

template <typename WorkerType>
KVConnectorFactory factory(bool load_async) {
  return {[load_async](const KVConnectorConfig& config) {
            return std::make_shared<CountingScheduler>(shared().store, config, load_async);
          },
          [](const KVConnectorConfig& config) {
            return std::make_unique<WorkerType>(shared().store, config.rank);
          }};
}

void register_connectors() {
  static std::once_flag once;
  std::call_once(once, [] {
    register_kv_connector("test_sync", factory<CountingWorker>(false));
    register_kv_connector("test_async", factory<CountingWorker>(true));
    register_kv_connector("test_layers", factory<LayerWorker>(false));
  });
}

struct Case {
  std::string device, connector;
  bool async_scheduling = false;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.device << "_" << c.connector << (c.async_scheduling ? "_async" : "");
}

class KVConnectorTest : public testing::Test {
 protected:
  void SetUp() override {
    register_connectors();
    shared().store = std::make_shared<HostMemoryStore>();
    shared().num_questions = shared().num_loads = shared().num_layers_saved = 0;
    shared().failing_load = -1;
  }
  static EngineConfig config(const Case& c = {"cpu", "test_sync", false}) {
    EngineConfig config;
    config.model = QUIRE_DEMO_MODEL;
    config.device = c.device;
    config.dtype = "float32";
    config.max_model_len = 256;
    config.max_num_batched_tokens = 64;
    config.max_num_seqs = 8;
    config.num_threads = 2;
    config.gpu_memory_bytes = int64_t{2} << 30;
    config.kv_cache_memory_bytes = 32 << 20;
    config.async_scheduling = c.async_scheduling;
    config.kv_connector = c.connector;
    config.enforce_eager = c.connector != "test_layers";  // on a device: graphs take long to capture
    return config;
  }
  static EngineConfig without_connector(EngineConfig config) {
    config.kv_connector.clear();
    config.tensor_parallel_size = 1;
    return config;
  }
  // `length` tokens, which begin like those of all others of this `family`.
  static EngineRequest request(int32_t length, int32_t family = 0, int32_t num_common = 1000) {
    EngineRequest result;
    for (int32_t i = 0; i < length; ++i)
      result.prompt_token_ids.push_back(100 +
                                        (i * 37 + family * 101 + (i >= num_common ? length * 7 : 0)) % 3900);
    result.sampling_params.temperature = 0;
    result.sampling_params.max_tokens = 12;
    result.sampling_params.ignore_eos = true;
    return result;
  }
  static RequestOutput run(Engine& engine, const EngineRequest& request) {
    RequestOutput output = engine.generate({request}).at(0);
    EXPECT_EQ(output.outputs.at(0).error, "");
    return output;
  }
  static void wait_for_blocks(size_t count) {
    for (int i = 0; i < 1000 && shared().store->num_blocks() < count; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ASSERT_GE(shared().store->num_blocks(), count);
  }
  // Two engines after one another, the second with what the first has computed.
  static void expect_loaded(const EngineConfig& config) {
    const EngineRequest prompt = request(70);
    Engine plain(without_connector(config));
    const auto expected = run(plain, prompt).outputs.at(0).token_ids;
    const auto ranks = static_cast<size_t>(config.tensor_parallel_size);
    Engine first(config);
    EXPECT_EQ(run(first, prompt).outputs.at(0).token_ids, expected);
    EXPECT_EQ(shared().num_loads, 0);
    wait_for_blocks(5 * ranks);  // 70 + 11 tokens are computed
    Engine second(config);
    const RequestOutput output = run(second, prompt);
    EXPECT_EQ(output.outputs.at(0).token_ids, expected);
    EXPECT_EQ(output.num_cached_tokens, 64);
    EXPECT_EQ(second.stats().external_prefix_cache_hits, 64U);
    EXPECT_EQ(shared().num_loads, static_cast<int>(4 * ranks));
    // By now the blocks are cached in the second engine.
    EXPECT_EQ(run(second, prompt).outputs.at(0).token_ids, expected);
    EXPECT_EQ(shared().num_loads, static_cast<int>(4 * ranks));
  }
};

// A store has the blocks of all of them; what a name stands for differs.
TEST_F(KVConnectorTest, BlocksOfAnAdapterAreThoseOfItsFilesAndNotOfItsName) {
  EngineConfig with_adapters = config();
  with_adapters.enable_lora = true;
  EngineRequest prompt = request(70);
  prompt.lora_name = "mine";
  // As long as the engine is there: what it has not stored by its end is lost.
  const auto hits = [&](const std::string& directory, std::string* told, size_t num_stored = 0) {
    Engine engine(with_adapters);
    engine.add_lora({"mine", 0, directory});
    run(engine, prompt);
    wait_for_blocks(num_stored);
    *told = shared().fingerprint;
    return engine.stats().external_prefix_cache_hits;
  };
  const std::string trained = "tests/python/data/adapters/";
  const auto copy = std::filesystem::path(testing::TempDir()) / "copy_of_sailor";
  std::filesystem::remove_all(copy);
  std::filesystem::copy(trained + "sailor", copy);
  std::string sailor, json, copied;
  EXPECT_EQ(hits(trained + "sailor", &sailor, 5), 0U);
  EXPECT_EQ(hits(trained + "json", &json, 10), 0U);
  EXPECT_EQ(hits(copy.string(), &copied), 64U);
  EXPECT_EQ(sailor.size(), 64U);
  EXPECT_EQ(sailor, copied);
  EXPECT_NE(sailor, json);
  prompt.lora_name.clear();
  std::string none = "?";
  EXPECT_EQ(hits(trained + "sailor", &none), 0U);
  EXPECT_EQ(none, "");
  std::filesystem::remove_all(copy);
}

class KVConnectorCasesTest : public KVConnectorTest, public testing::WithParamInterface<Case> {
 protected:
  void SetUp() override {
    KVConnectorTest::SetUp();
    if (GetParam().device == "cuda" && cuda_kernel_table(0) == nullptr) GTEST_SKIP() << "no CUDA device";
  }
};

TEST_P(KVConnectorCasesTest, APrefixThatAnotherEngineComputedIsLoaded) {
  expect_loaded(config(GetParam()));
  EXPECT_EQ(shared().num_layers_saved > 0, GetParam().connector == "test_layers");
}

// Some cases run steps as graphs of pieces, between which the hooks are called.
TEST_P(KVConnectorCasesTest, ManyRequestsGiveTheTokensOfAnEngineWithout) {
  std::vector<EngineRequest> requests;
  for (int32_t i = 0; i < 24; ++i) requests.push_back(request(20 + 5 * i, i % 3, 16 * (1 + i % 4)));
  const auto tokens = [&](Engine& engine) {
    std::vector<std::vector<int32_t>> all;
    for (const RequestOutput& output : engine.generate(requests)) {
      EXPECT_EQ(output.outputs.at(0).error, "");
      all.push_back(output.outputs.at(0).token_ids);
    }
    return all;
  };
  EngineConfig with = config(GetParam());
  Engine plain(without_connector(with));
  const auto expected = tokens(plain);
  with.kv_cache_memory_bytes = 0;
  with.num_gpu_blocks_override = 40;  // so few that requests are preempted, and what was loaded is lost
  for (int round = 0; round < kNumRounds; ++round) {
    Engine engine(with);
    EXPECT_EQ(tokens(engine), expected);
    EXPECT_EQ(tokens(engine), expected);
  }
  EXPECT_GT(shared().num_loads, 10 * kNumRounds);
}

INSTANTIATE_TEST_SUITE_P(Host, KVConnectorCasesTest,
                         testing::Values(Case{"cpu", "test_sync", false}, Case{"cpu", "test_sync", true},
                                         Case{"cpu", "test_async", false}, Case{"cpu", "test_async", true},
                                         Case{"cpu", "test_layers", false},
                                         Case{"cpu", "test_layers", true}));
INSTANTIATE_TEST_SUITE_P(Cuda, KVConnectorCasesTest,
                         testing::Values(Case{"cuda", "test_sync", true}, Case{"cuda", "test_async", true},
                                         Case{"cuda", "test_layers", true}));

TEST_F(KVConnectorTest, EveryRankMovesItsPart) {
  EngineConfig two = config();
  two.tensor_parallel_size = 2;
  two.num_threads = 1;
  expect_loaded(two);
}

TEST_F(KVConnectorTest, ASaltKeepsPrefixesApart) {
  Engine first(config());
  EngineRequest salted = request(70);
  salted.cache_salt = "one";
  run(first, salted);
  wait_for_blocks(5);
  Engine second(config());
  EXPECT_EQ(run(second, request(70)).num_cached_tokens, 0);
  salted.cache_salt = "two";
  EXPECT_EQ(run(second, salted).num_cached_tokens, 0);
  salted.cache_salt = "one";
  EXPECT_EQ(run(second, salted).num_cached_tokens, 64);
}

TEST_P(KVConnectorCasesTest, WhatCannotBeLoadedIsComputed) {
  if (GetParam().connector == "test_layers") GTEST_SKIP() << "it finds everything";
  const EngineConfig with = config(GetParam());
  Engine first(with);
  const auto expected = run(first, request(70)).outputs.at(0).token_ids;
  wait_for_blocks(5);
  for (const int failing : {0, 2}) {
    shared().num_loads = 0;
    shared().failing_load = failing;
    EngineConfig in_chunks = with;
    in_chunks.max_num_batched_tokens = 32;
    for (const EngineConfig& each : {with, in_chunks}) {
      Engine second(each);
      EXPECT_EQ(run(second, request(70)).outputs.at(0).token_ids, expected);
    }
    EXPECT_GT(shared().num_loads, failing);
  }
}

// The connector's part in the schedule is in the recording: it is replayed without the connector.
TEST_F(KVConnectorTest, ARecordingHoldsTheConnectorsAnswers) {
  for (const char* connector : {"test_sync", "test_async"}) {
    for (const bool async : {false, true}) {
      SetUp();
      EngineConfig with = config({"cpu", connector, async});
      // Small enough that the ring loses its beginning, and the recording begins with requests that load.
      with.flight_recorder_bytes = 1 << 16;
      with.num_gpu_blocks_override = 40;
      with.kv_cache_memory_bytes = 0;
      for (int round = 0; round < kNumRounds; ++round) {
        Engine engine(with);
        shared().failing_load = shared().num_loads + 3;
        std::vector<EngineRequest> requests;
        for (int32_t i = 0; i < 20; ++i) requests.push_back(request(20 + 3 * i, i % 3, 16 * (1 + i % 4)));
        for (int again = 0; again < 3; ++again) engine.generate(requests);
        const std::string path = testing::TempDir() + "kv_connector_test.rec";
        engine.dump_flight_recorder(path);
        const int num_questions = shared().num_questions;
        const ReplayReport report = replay_recording(path);
        EXPECT_EQ(report.divergence, "") << connector << " " << async;
        EXPECT_EQ(report.num_identical, report.num_steps);
        EXPECT_GT(report.num_steps, 20U);
        EXPECT_EQ(shared().num_questions, num_questions);
        std::filesystem::remove(path);
      }
      EXPECT_GT(shared().num_loads, 5 * kNumRounds);
    }
  }
}

TEST_F(KVConnectorTest, AnUnknownNameIsRefusedWithThoseThatAreKnown) {
  EngineConfig unknown = config({"cpu", "nowhere", false});
  const std::string error = error_of([&] { const Engine engine(unknown); });
  EXPECT_NE(error.find("kv_connector 'nowhere' is not registered; there are "), std::string::npos) << error;
  EXPECT_NE(error.find("test_async, test_layers, test_sync"), std::string::npos) << error;
}

TEST_F(KVConnectorTest, ANameIsRegisteredOnce) {
  EXPECT_THROW(register_kv_connector("test_sync", factory<CountingWorker>(false)), InvalidArgument);
  EXPECT_THROW(register_kv_connector("", factory<CountingWorker>(false)), InvalidArgument);
  EXPECT_THROW(register_kv_connector("half", {factory<CountingWorker>(false).make_scheduler, nullptr}),
               InvalidArgument);
}

}  // namespace
}  // namespace quire
