#include "weights/lora_adapter.h"

#include <filesystem>
#include <limits>
#include <set>

#include "weights/lora_adapter_files.h"

namespace quire {
namespace {

class LoraAdapterTest : public LoraFilesTest {};

TEST_F(LoraAdapterTest, AnAdapterHasItsModulesByNameWithTheirScales) {
  const ModelDirectory directory;
  write_adapter(directory, config_with(R"("base_model_name_or_path": "org/base", "bias": "none")"),
                pair("model.layers.1.mlp.up_proj", 4) + pair(kQ, 4));
  const LoraAdapter adapter = LoraAdapter::open(directory.path());
  EXPECT_EQ(adapter.base_model(), "org/base");
  EXPECT_EQ(adapter.max_rank(), 4);
  ASSERT_EQ(adapter.modules().size(), 2U);
  EXPECT_EQ(adapter.modules()[0].name, kQ);
  EXPECT_EQ(adapter.modules()[1].name, "model.layers.1.mlp.up_proj");
  const LoraAdapterModule& q = adapter.modules()[0];
  EXPECT_EQ(q.rank, 4);
  EXPECT_EQ(q.scale, 2);
  EXPECT_EQ(std::pair(q.a.shape[0], q.a.shape[1]), std::pair(int64_t{4}, int64_t{3}));
  EXPECT_EQ(std::pair(q.b.shape[0], q.b.shape[1]), std::pair(int64_t{2}, int64_t{4}));
}

TEST_F(LoraAdapterTest, ValuesAreReadAsTheyAreStored) {
  for (const auto& [name, dtype] :
       {std::pair{"F32", DType::kFloat32}, {"F16", DType::kFloat16}, {"BF16", DType::kBFloat16}}) {
    const ModelDirectory directory;
    write_adapter(directory, R"({"peft_type": "LORA", "r": 1, "lora_alpha": 0.5})", pair(kQ, 1, name));
    LoraAdapter opened = LoraAdapter::open(directory.path());
    const LoraAdapter adapter = std::move(opened);  // views stay
    const LoraAdapterModule& q = adapter.modules().at(0);
    EXPECT_EQ(q.a.dtype, dtype);
    EXPECT_EQ(q.scale, 0.5F);
    EXPECT_EQ(read(adapter, q.a), (std::vector<float>{1, 2, 3})) << name;
    EXPECT_EQ(read(adapter, q.b), (std::vector<float>{1, 2})) << name;
    EXPECT_EQ(adapter.checkpoint().main_dtype(), name);
  }
}

TEST_F(LoraAdapterTest, AValueThatIsNotFiniteIsRefusedWhenItIsRead) {
  const ModelDirectory directory;
  std::vector<NamedTensor> tensors = pair(kQ, 4);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(tensors[1].bytes.data() + 8, &nan, sizeof nan);
  write_adapter(directory, config_with(), tensors);
  const LoraAdapter adapter = LoraAdapter::open(directory.path());
  const LoraAdapterModule& q = adapter.modules().at(0);
  EXPECT_EQ(read(adapter, q.a).size(), 12U);
  EXPECT_EQ(
      error_of([&] { read(adapter, q.b); }),
      directory.path() + "/adapter_model.safetensors: tensor 'base_model.model." + kQ +
          ".lora_B.weight' holds NaN or an infinite value, at place 2 of 8; the file is damaged, or was "
          "written by a training run that had diverged");
}

TEST_F(LoraAdapterTest, TensorsMayHaveTheAdaptersName) {
  const std::string stem = str("base_model.model.", kQ);
  const std::vector<NamedTensor> tensors = {matrix(stem + ".lora_A.default.weight", 4, 3),
                                            matrix(stem + ".lora_B.default.weight", 2, 4)};
  EXPECT_EQ(modules_of(config_with(), tensors).at(0).name, kQ);
  EXPECT_EQ(
      tensors_error(tensors + std::vector{matrix(stem + ".lora_A.other.weight", 4, 3)}),
      "D/adapter_model.safetensors: holds tensors of two adapters, 'default' and 'other'; save each in a "
      "directory of its own");
  EXPECT_NE(tensors_error(tensors + pair(kQ, 4)), "");
  EXPECT_EQ(modules_of(config_with(), pair("lm_head", 4)).at(0).name, "lm_head");
}

TEST_F(LoraAdapterTest, ARankThatTheConfigDoesNotSayIsRefused) {
  EXPECT_EQ(tensors_error(pair(kQ, 2)), str("D/adapter_model.safetensors: module '", kQ,
                                            "' has rank 2, but 'r' of D/adapter_config.json says 4"));
  EXPECT_EQ(config_error(R"("rank_pattern": {"q_proj": 8})"),
            str("D/adapter_model.safetensors: module '", kQ,
                "' has rank 4, but 'rank_pattern' of D/adapter_config.json says 8"));
}

TEST_F(LoraAdapterTest, BothOfAPairMustBeThere) {
  const std::vector<NamedTensor> both = pair(kQ, 4);
  EXPECT_EQ(tensors_error({both[0]}), str("D/adapter_model.safetensors: module '", kQ,
                                          "' has lora_A, but no lora_B; both must be there"));
  EXPECT_EQ(tensors_error({both[1]}), str("D/adapter_model.safetensors: module '", kQ,
                                          "' has lora_B, but no lora_A; both must be there"));
  EXPECT_EQ(
      tensors_error({}),
      "D/adapter_model.safetensors: holds no tensors; an adapter has at least one pair of lora_A and lora_B");
}

TEST_F(LoraAdapterTest, ShapesThatMakeNoProductAreRefused) {
  const std::string a = str("base_model.model.", kQ, ".lora_A.weight"),
                    b = str("base_model.model.", kQ, ".lora_B.weight");
  EXPECT_EQ(
      tensors_error({matrix(a, 4, 3), matrix(b, 2, 5)}),
      str("D/adapter_model.safetensors: module '", kQ,
          "' has lora_A of shape [4, 3] and lora_B of [2, 5]; the first size of one and the second of the "
          "other are the rank, and must be equal"));
  EXPECT_EQ(tensors_error({{a, "F32", {4, 3, 1}, counted("F32", 12)}, matrix(b, 2, 4)}),
            str("D/adapter_model.safetensors: tensor '", a,
                "' has shape [4, 3, 1]; a linear's adapter has two dimensions"));
  EXPECT_EQ(tensors_error({matrix(a, 4, 3), {b, "F32", {8}, counted("F32", 8)}}),
            str("D/adapter_model.safetensors: tensor '", b,
                "' has shape [8]; a linear's adapter has two dimensions"));
  const std::string empty =
      ", and no values; gather the parameters of a distributed training before it is saved";
  EXPECT_EQ(tensors_error({matrix(a, 4, 0), matrix(b, 2, 4)}),
            str("D/adapter_model.safetensors: tensor '", a, "' has shape [4, 0]", empty));
  EXPECT_EQ(tensors_error({matrix(a, 4, 3), matrix(b, 0, 4)}),
            str("D/adapter_model.safetensors: tensor '", b, "' has shape [0, 4]", empty));
  EXPECT_EQ(tensors_error({matrix(a, 0, 3), matrix(b, 2, 0)}),
            str("D/adapter_model.safetensors: tensor '", a, "' has shape [0, 3]", empty));
  constexpr int64_t kLarge = (int64_t{1} << 32) + 4;  // 4 in 32 bits
  EXPECT_EQ(
      tensors_error({matrix(a, kLarge, 0), matrix(b, 0, kLarge)}),
      str("D/adapter_model.safetensors: module '", kQ, "' has rank 4294967300; it is at most 2147483647"));
  EXPECT_EQ(
      tensors_error({{a, "I8", {4, 3}, std::string(12, '\0')}, matrix(b, 2, 4)}),
      str("D/adapter_model.safetensors: tensor '", a, "' has dtype I8; F32, F16 and BF16 are supported"));
}

TEST_F(LoraAdapterTest, OtherTensorsAreRefusedByName) {
  const std::string stem = str("base_model.model.", kQ);
  const auto error = [](const std::string& name) {
    return tensors_error(pair(kQ, 4) + std::vector{matrix(name, 4, 3)});
  };
  const auto expected = [](const std::string& name, const char* what) {
    return str("D/adapter_model.safetensors: tensor '", name, "' ", what, "; ", kMerge);
  };
  const std::string embedding = "base_model.model.model.embed_tokens.lora_embedding_A";
  EXPECT_EQ(error(embedding), expected(embedding, "is of an embedding's adapter, which is not supported"));
  const std::string magnitude = stem + ".lora_magnitude_vector";
  EXPECT_EQ(error(magnitude), expected(magnitude, "is of DoRA, which is not supported"));
  const std::string bias = stem + ".lora_B.bias";
  EXPECT_EQ(error(bias), expected(bias, "is a bias in the adapter, which is not supported"));
  for (const std::string& name :
       {std::string("base_model.model.lm_head.weight"),
        std::string("base_model.model.model.embed_tokens.weight"), std::string(kQ) + ".lora_A.weight",
        stem + ".lora_A", stem + ".lora_C.weight", stem + ".lora_A.scales", stem + ".lora_A.bias",
        std::string("base_model.model.lora_A.weight"), std::string("base_model.model.weight"),
        std::string("base_model.model..weight"), stem + ".lora_A..weight", stem + ".lora_A.a.b.weight",
        stem + ".xlora_A.weight", std::string("")}) {
    EXPECT_EQ(error(name), expected(name,
                                    "is not a linear's adapter, which is called "
                                    "base_model.model.<module>.lora_A.weight or lora_B.weight"));
  }
  // PEFT saves it beside an adapter of lm_head.
  EXPECT_EQ(
      error("base_model.model.lm_head.base_layer.weight"),
      "D/adapter_model.safetensors: tensor 'base_model.model.lm_head.base_layer.weight' is a copy of the "
      "model's own weights; save the adapter with save_embedding_layers=False of peft's save_pretrained, "
      "or, if it changes that layer, merge it into its model with merge_and_unload");
  const std::string text = error(std::string(1001, '.'));
  EXPECT_NE(text.find("...' has a name of 1001 bytes; names have at most 1000"), text.npos) << text;
}

TEST_F(LoraAdapterTest, MissingFilesAreNamed) {
  const std::string advice =
      "; an adapter is one with adapter_config.json and adapter_model.safetensors, as peft saves it";
  EXPECT_EQ(error_of([] { LoraAdapter::open("/nowhere/adapter"); }),
            "/nowhere/adapter: there is no such directory" + advice);
  const ModelDirectory directory;
  directory.write("file", "");
  EXPECT_EQ(error_of([&] { LoraAdapter::open(directory.path() + "/file"); }),
            directory.path() + "/file: is not a directory" + advice);
  // Whoever may read everything, as root may, can still not follow this.
  const std::string link = directory.path() + "/link";
  std::filesystem::create_symlink(link, link);
  EXPECT_EQ(error_of([&] { LoraAdapter::open(link); }),
            link + ": Too many levels of symbolic links" + advice);
  EXPECT_EQ(open_error(directory),
            "D: has no adapter_config.json, which peft saves beside adapter_model.safetensors");
  directory.write(kConfig, config_with());
  EXPECT_EQ(open_error(directory), "D: has no adapter_model.safetensors");
  directory.write("adapter_model.bin", "pickled");
  EXPECT_EQ(
      open_error(directory),
      "D: has no adapter_model.safetensors; adapter_model.bin is a pickle, which may hold code: load it with "
      "peft, and save it again with safe_serialization=True");
  directory.write(kTensors, "torn");
  EXPECT_EQ(open_error(directory),
            "D/adapter_model.safetensors: has 4 bytes; a safetensors file has at least 8");
  std::filesystem::remove(directory.path() + "/" + kConfig);
  std::filesystem::create_directory(directory.path() + "/" + kConfig);
  EXPECT_EQ(open_error(directory), "D/adapter_config.json: is not a file");
}

TEST_F(LoraAdapterTest, AStampTellsWhetherEitherFileIsAnother) {
  const ModelDirectory directory;
  const auto stamp = [&] { return LoraAdapter::open(directory.path()).stamp(); };
  write_adapter(directory, config_with(), pair(kQ, 4));
  const std::string first = stamp();
  EXPECT_EQ(stamp(), first);
  directory.write(kConfig, config_with(R"("use_rslora": true)"));
  const std::string second = stamp();
  EXPECT_NE(second, first);
  write_safetensors(directory, pair(kQ, 4) + pair("lm_head", 4), kTensors);
  EXPECT_NE(stamp(), second);
}

// As tools that copy files, or make them reproducible, leave them.
TEST_F(LoraAdapterTest, AStampTellsFilesOfOneSizeAndTimeApart) {
  const ModelDirectory directory;
  const auto stamp = [&] { return LoraAdapter::open(directory.path()).stamp(); };
  write_adapter(directory, config_with(), pair(kQ, 4));
  const std::filesystem::path path = directory.path() + "/" + kTensors;
  const auto size = std::filesystem::file_size(path);
  const auto time = std::filesystem::last_write_time(path);
  const std::string first = stamp();
  std::fstream(path, std::ios::in | std::ios::out).seekp(-1, std::ios::end).put('x');
  std::filesystem::last_write_time(path, time);
  ASSERT_EQ(std::filesystem::file_size(path), size);
  ASSERT_EQ(std::filesystem::last_write_time(path), time);
  EXPECT_NE(stamp(), first);
}

TEST_F(LoraAdapterTest, AFingerprintTellsWhatAnAdapterComputesWhereverItLies) {
  const auto fingerprint = [](const std::string& config, const std::vector<NamedTensor>& tensors) {
    const ModelDirectory directory;
    write_adapter(directory, config, tensors);
    const LoraAdapter adapter = LoraAdapter::open(directory.path());
    EXPECT_EQ(adapter.fingerprint(3), adapter.fingerprint(1));
    return adapter.fingerprint(1);
  };
  const std::vector<NamedTensor> tensors = pair(kQ, 4) + pair("lm_head", 4);
  const std::string one = fingerprint(config_with(), tensors);
  EXPECT_EQ(one.size(), 64U);
  EXPECT_EQ(one.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_EQ(fingerprint(config_with(), pair("lm_head", 4) + pair(kQ, 4)), one);
  EXPECT_EQ(fingerprint(config_with(R"("task_type": "CAUSAL_LM")"), tensors), one);
  std::set<std::string> others = {one};
  others.insert(fingerprint(config_with(R"("use_rslora": true)"), tensors));
  others.insert(fingerprint(config_with(), pair(kQ, 4)));
  others.insert(fingerprint(config_with(), pair(kQ, 4, "BF16") + pair("lm_head", 4)));
  others.insert(fingerprint(config_with(), pair(kQ, 4) + pair("model.lm_head", 4)));
  for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
    std::vector<NamedTensor> changed = tensors;
    changed[tensor].bytes[changed[tensor].bytes.size() - 2] ^= 1;
    others.insert(fingerprint(config_with(), changed));
  }
  EXPECT_EQ(others.size(), 9U);
}

// It is read in pieces.
TEST_F(LoraAdapterTest, AFingerprintIsOfAllOfALargeTensor) {
  const ModelDirectory directory;
  std::vector<NamedTensor> tensors = {matrix(str("base_model.model.", kQ, ".lora_A.weight"), 4, 150'000),
                                      matrix(str("base_model.model.", kQ, ".lora_B.weight"), 2, 4)};
  std::set<std::string> fingerprints;
  for (const size_t place : {size_t{0}, size_t{1 << 20}, size_t{4 * 600'000 - 4}}) {
    tensors[0].bytes[place] ^= 1;
    write_adapter(directory, config_with(), tensors);
    fingerprints.insert(LoraAdapter::open(directory.path()).fingerprint(1));
  }
  EXPECT_EQ(fingerprints.size(), 3U);
}

}  // namespace
}  // namespace quire
