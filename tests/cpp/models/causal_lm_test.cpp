// Models as the worker sees them: what they take of the arena, and what they read.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>
#include <optional>

#include "formats/hf_config.h"
#include "layers/gated_mlp.h"
#include "layers/norm.h"
#include "layers/rotary_embedding.h"
#include "models/causal_lm.h"
#include "models/dry_run.h"
#include "models/model_registry.h"
#include "models/sliding_window.h"
#include "quire/error.h"
#include "quire/kernels/backend_registry.h"
#include "weights/model_directory.h"

namespace quire {
namespace {

constexpr int32_t kTokens = 20, kBlockSize = 16, kVocabSize = 70, kHiddenSize = 64;

std::string config_text(const std::string& architecture) {
  const std::string groups = architecture == "GPTNeoXForCausalLM" ? "" : R"("num_key_value_heads": 2,)";
  return R"({"architectures": [")" + architecture +
         R"("], "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
            "head_dim": 16, "vocab_size": 70, "max_position_embeddings": 64, "num_local_experts": 4,
            "num_experts_per_tok": 2, "sliding_window": 8, )" +
         groups + R"("tie_word_embeddings": )" + (architecture == "Qwen3ForCausalLM" ? "false}" : "true}");
}

// Llama's, written without a thought of rows that nobody wants, as a plugin's may be.
class WholeLayer final : public DecoderLayer {
 public:
  WholeLayer(BuildContext& build, const NormConfig& norm, const SelfAttentionConfig& attention,
             const GatedMLPConfig& mlp)
      : input_norm_(build, layer_name(attention.layer) + ".input_layernorm", attention.hidden_size, norm),
        post_norm_(build, layer_name(attention.layer) + ".post_attention_layernorm", attention.hidden_size,
                   norm),
        attention_(build, layer_name(attention.layer) + ".self_attn", attention),
        mlp_(build, layer_name(attention.layer) + ".mlp", mlp) {}

  const KVCacheSpec& kv_cache_spec() const override { return attention_.kv_cache_spec(); }
  void forward(const ForwardContext& ctx, ResidualStream& stream, const ModelInput& input) const override {
    attention_.forward(ctx, stream.addend(), stream.normalized(ctx, input_norm_), input.positions);
    stream.add();
    mlp_.forward(ctx, stream.addend(), stream.normalized(ctx, post_norm_));
    stream.add();
  }

 private:
  Norm input_norm_, post_norm_;
  SelfAttention attention_;
  GatedMLP mlp_;
};

std::unique_ptr<Model> make_model_of_whole_layers(BuildContext& build, const HfConfig& hf_config) {
  const auto config = TransformerConfig::read(hf_config);
  const auto rotary = make_rotary_embedding(build, hf_config, config.head_size);
  return std::make_unique<CausalLM>(build, config, [&](int32_t layer) {
    return std::make_unique<WholeLayer>(build, config.norm, config.attention(layer, rotary), config.mlp());
  });
}

// A model of random weights with all that a forward pass of one sequence needs.
class Rig {
 public:
  // `make`: the model, where it is not the architecture's; its layers leave out no rows.
  explicit Rig(const std::string& architecture,
               std::unique_ptr<Model> (*make)(BuildContext&, const HfConfig&) = nullptr,
               const KernelTable& ops = *find_kernel_table("cpu"))
      : leaves_out_rows_(make == nullptr), ops_(ops) {
    directory_.write("config.json", config_text(architecture));
    const HfConfig config = HfConfig::load(directory_.path() + "/config.json");
    Checkpoint checkpoint = Checkpoint::dummy(directory_.path());
    const auto loader = make_host_loader();
    BuildContext build{ops_, launch_, checkpoint, *arena_, *loader, DType::kFloat32};
    build.max_model_len = 64;
    build.max_num_tokens = build.max_num_seqs = kTokens;
    build.block_size = kBlockSize;
    model_ = make != nullptr ? make(build, config) : build_model(build, config);
    loader->finish();
    launch_.workspace = arena_->allocate(build.workspace_bytes);
    launch_.workspace_bytes = build.workspace_bytes;
    for (const KVCacheSpec& spec : model_->kv_cache_specs()) {
      std::byte* pages = arena_->allocate(static_cast<size_t>(spec.page_bytes) * 3);
      kv_caches_.push_back(
          {pages, spec.page_bytes, 3, kBlockSize, spec.num_kv_heads, spec.head_size, DType::kFloat32});
    }
    std::iota(ids_.begin(), ids_.end(), 3);
    std::iota(positions_.begin(), positions_.end(), 0);
    std::iota(slots_.begin(), slots_.end(), int64_t{kBlockSize});
  }

  size_t dry_run(int64_t num_logits = kTokens) {
    return dry_run_bytes(*model_, ops_, *communicator_, kTokens, num_logits);
  }

  // Logits of every token, or of the rows that are wanted, with exactly so much memory. With `embeds`, from
  // those instead of the ids.
  std::vector<float> logits(size_t activation_bytes, float* embeds = nullptr,
                            std::optional<std::vector<int32_t>> wanted = {}) {
    const int64_t num_wanted = wanted ? std::ssize(*wanted) : kTokens;
    const int64_t rows = leaves_out_rows_ ? num_wanted : kTokens;
    std::vector<float> out(static_cast<size_t>(rows * kVocabSize));
    ActivationArena arena(activation_bytes);
    AttentionMetadata batch;
    batch.block_table = {table_.data(), DType::kInt32, 1, 2};
    batch.slot_mapping = {slots_.data(), DType::kInt64, kTokens};
    batch.query_start_loc = {query_start_loc_.data(), DType::kInt32, 2};
    batch.seq_lens = {&seq_len_, DType::kInt32, 1};
    batch.max_query_len = batch.max_seq_len = kTokens;
    batch.state_indices = {&state_index_, DType::kInt32, 1};
    const std::vector<int32_t> groups(kv_caches_.size()), planning_layers(1);
    const ForwardContext ctx{ops_,       launch_, *communicator_,       arena,
                             kv_caches_, groups,  std::span(&batch, 1), planning_layers};
    ModelInput input{{ids_.data(), DType::kInt32, kTokens}, {positions_.data(), DType::kInt32, kTokens}};
    if (embeds != nullptr) input.inputs_embeds = {embeds, DType::kFloat32, kTokens, kHiddenSize};
    if (wanted) input.wanted_rows = TensorView(wanted->data(), DType::kInt32, num_wanted);
    const TensorView hidden = model_->forward(ctx, input);
    EXPECT_EQ(hidden.shape[0], rows);
    if (!wanted) arena.take(hidden.dtype, kTokens, kHiddenSize);
    if (rows > 0) model_->compute_logits(ctx, {out.data(), DType::kFloat32, rows, kVocabSize}, hidden);
    peak_ = arena.peak();
    return out;
  }
  size_t peak() const { return peak_; }

  // All layers' keys and values; they are as if never written afterwards.
  std::vector<std::byte> take_kv_caches() {
    std::vector<std::byte> out;
    for (const KVCacheView& cache : kv_caches_) {
      auto* data = static_cast<std::byte*>(cache.data);
      const int64_t bytes = cache.page_stride_bytes * cache.num_blocks;
      out.insert(out.end(), data, data + bytes);
      std::memset(data, 0, static_cast<size_t>(bytes));
    }
    return out;
  }

  std::vector<int32_t> ids_ = std::vector<int32_t>(kTokens);

 private:
  bool leaves_out_rows_;
  const KernelTable& ops_;
  LaunchContext launch_;
  ModelDirectory directory_;
  std::unique_ptr<Communicator> communicator_ = make_single_communicator();
  std::unique_ptr<DeviceArena> arena_ = make_host_arena();
  std::unique_ptr<Model> model_;
  std::vector<KVCacheView> kv_caches_;
  std::vector<int32_t> positions_ = std::vector<int32_t>(kTokens), table_ = {1, 2},
                       query_start_loc_ = {0, kTokens};
  std::vector<int64_t> slots_ = std::vector<int64_t>(kTokens);
  int32_t seq_len_ = kTokens, state_index_ = 0;
  size_t peak_ = 0;
};

class CausalLMTest : public testing::TestWithParam<const char*> {};

TEST_P(CausalLMTest, ADryRunFindsWhatARealOneTakes) {
  Rig rig(GetParam());
  const size_t bytes = rig.dry_run();
  EXPECT_GE(bytes, size_t{2 * kTokens * kHiddenSize} * sizeof(float));
  EXPECT_LE(rig.dry_run(/*num_logits=*/3), bytes);
  // Of all rows, or of the most that others may be left out for.
  std::vector<int32_t> half(kTokens / 2);
  std::iota(half.begin(), half.end(), 0);
  rig.logits(bytes);
  const size_t of_all = rig.peak();
  rig.logits(bytes, nullptr, half);
  EXPECT_EQ(std::max(of_all, rig.peak()), bytes);
  const size_t less = bytes - DeviceArena::kAlignment;
  EXPECT_THROW(of_all == bytes ? rig.logits(less) : rig.logits(less, nullptr, half), InternalError);
}

TEST_P(CausalLMTest, EmbeddingsTakeThePlaceOfIds) {
  Rig rig(GetParam());
  const std::vector<float> expected = rig.logits(rig.dry_run());
  std::vector<float> zeros(kTokens * kHiddenSize), other = zeros;
  for (size_t i = 0; i < other.size(); ++i) other[i] = static_cast<float>(i % 13) - 6;
  const std::vector<float> from_other = rig.logits(rig.dry_run(), std::vector<float>(other).data());
  EXPECT_NE(from_other, expected);
  // The ids are not looked at.
  rig.ids_.assign(kTokens, -1);
  EXPECT_EQ(rig.logits(rig.dry_run(), other.data()), from_other);
  EXPECT_NE(rig.logits(rig.dry_run(), zeros.data()), from_other);
}

TEST_P(CausalLMTest, RowsThatAreNotWantedAreLeftOut) {
  Rig rig(GetParam());
  const size_t bytes = rig.dry_run();
  rig.take_kv_caches();
  const std::vector<float> all = rig.logits(bytes);
  const std::vector<std::byte> keys_and_values = rig.take_kv_caches();
  for (const std::vector<int32_t>& wanted :
       {std::vector<int32_t>{}, {kTokens - 1}, {0, 1, 7, 18}, {10, 11, 12, 13, 14, 15, 16, 17, 18, 19}}) {
    std::vector<float> expected;
    for (const int32_t row : wanted)
      expected.insert(expected.end(), all.begin() + row * kVocabSize, all.begin() + (row + 1) * kVocabSize);
    EXPECT_EQ(rig.logits(bytes, nullptr, wanted), expected) << wanted.size();
    EXPECT_EQ(rig.take_kv_caches(), keys_and_values) << wanted.size();
  }
}

// As a backend that adds in its products, of more rows than are wanted at the end.
TEST_P(CausalLMTest, ProductsThatAddToTheSumAreTheSame) {
  static int num_additions;
  static const KernelTable adding = [] {
    KernelTable table = *find_kernel_table("cpu");
    table.linear_add = [](const LaunchContext& ctx, TensorView sum, TensorView scratch, TensorView x,
                          const LinearWeight& weight, const float* bias) {
      if (x.shape[0] < 2) return false;
      const KernelTable& cpu = *find_kernel_table("cpu");
      cpu.linear(ctx, scratch, x, weight, bias);
      cpu.add(ctx, sum, scratch);
      std::memset(scratch.data, 0xFF,
                  static_cast<size_t>(scratch.shape[0] * scratch.stride[0]) * sizeof(float));
      ++num_additions;
      return true;
    };
    return table;
  }();
  Rig rig(GetParam()), added(GetParam(), nullptr, adding);
  const size_t bytes = rig.dry_run();
  num_additions = 0;
  EXPECT_EQ(added.dry_run(), bytes);
  EXPECT_EQ(num_additions, 0);
  EXPECT_EQ(added.logits(bytes), rig.logits(bytes));
  const std::string architecture = GetParam();
  const int layers = 3, of_all_rows = architecture == "MixtralForCausalLM" ? layers : 2 * layers;
  const bool has_pre_norm_layers = architecture == "LlamaForCausalLM" || architecture == "Qwen2ForCausalLM" ||
                                   architecture == "Qwen3ForCausalLM" || architecture == "MixtralForCausalLM";
  EXPECT_EQ(num_additions, has_pre_norm_layers ? of_all_rows : 0);
  num_additions = 0;
  const std::vector<int32_t> last = {kTokens - 1};
  EXPECT_EQ(added.logits(bytes, nullptr, last), rig.logits(bytes, nullptr, last));
  EXPECT_EQ(num_additions, has_pre_norm_layers ? of_all_rows / layers * (layers - 1) : 0);
}

TEST(WholeLayerTest, ALayerThatTakesTheWholeAddendKeepsAllRows) {
  Rig whole("LlamaForCausalLM", make_model_of_whole_layers), llama("LlamaForCausalLM");
  const std::vector<float> all = llama.logits(llama.dry_run());
  EXPECT_EQ(whole.logits(whole.dry_run()), all);
  EXPECT_EQ(whole.logits(whole.dry_run(), nullptr, std::vector<int32_t>{}), all);
  EXPECT_EQ(whole.logits(whole.dry_run(), nullptr, std::vector<int32_t>{kTokens - 1}), all);
}

INSTANTIATE_TEST_SUITE_P(Architectures, CausalLMTest,
                         testing::Values("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM",
                                         "Gemma2ForCausalLM", "Olmo2ForCausalLM", "GPTNeoXForCausalLM",
                                         "GraniteForCausalLM", "MixtralForCausalLM"),
                         [](const auto& info) { return std::string(info.param); });

TEST(LayerWindowsTest, ByTypesElseByRule) {
  const auto parse = [](const std::string& text) { return HfConfig::parse(text, "config.json"); };
  const auto even = [](int32_t layer) { return layer % 2 == 0; };
  EXPECT_EQ(read_layer_windows(parse("{}"), 3, 8, even), (std::vector<int32_t>{8, 0, 8}));
  const auto types = parse(R"({"layer_types": ["full_attention", "full_attention", "sliding_attention"]})");
  EXPECT_EQ(read_layer_windows(types, 3, 8, even), (std::vector<int32_t>{0, 0, 8}));
  EXPECT_THROW(read_layer_windows(types, 2, 8, even), InvalidArgument);
  EXPECT_THROW(read_layer_windows(parse(R"({"layer_types": ["chunked"]})"), 1, 8, even), InvalidArgument);
  const auto qwen = parse(R"({"use_sliding_window": true, "sliding_window": 5, "max_window_layers": 1})");
  EXPECT_EQ(read_qwen_windows(qwen, 3), (std::vector<int32_t>{0, 5, 5}));
  EXPECT_EQ(read_qwen_windows(parse(R"({"sliding_window": 5})"), 2), (std::vector<int32_t>{0, 0}));
}

}  // namespace
}  // namespace quire
