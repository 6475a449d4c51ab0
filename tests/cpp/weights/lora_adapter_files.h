// Adapters that tests write, and what is said when they are opened.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "quire/error.h"
#include "util/error_of.h"
#include "util/half_float.h"
#include "util/str.h"
#include "weights/lora_adapter.h"
#include "weights/model_directory.h"

namespace quire {

inline std::vector<NamedTensor> operator+(std::vector<NamedTensor> a, const std::vector<NamedTensor>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class LoraFilesTest : public testing::Test {
 protected:
  static constexpr const char* kConfig = "adapter_config.json";
  static constexpr const char* kTensors = "adapter_model.safetensors";
  static constexpr const char* kQ = "model.layers.0.self_attn.q_proj";
  static constexpr const char* kMerge =
      "merge the adapter into its model with peft's merge_and_unload, and give that model";

  // The values 1, 2, 3, ... as floats of a dtype.
  static std::string counted(const char* dtype, int64_t count) {
    std::string bytes;
    for (int64_t i = 0; i < count; ++i) {
      const auto value = static_cast<float>(i + 1);
      if (dtype == std::string_view("F32")) {
        bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
      } else {
        const uint16_t bits = dtype == std::string_view("F16") ? float_to_fp16(value) : float_to_bf16(value);
        bytes.append(reinterpret_cast<const char*>(&bits), sizeof bits);
      }
    }
    return bytes;
  }

  static NamedTensor matrix(const std::string& name, int64_t rows, int64_t columns,
                            const char* dtype = "F32") {
    return {name, dtype, {rows, columns}, counted(dtype, rows * columns)};
  }

  // The two of a module with three inputs and two outputs.
  static std::vector<NamedTensor> pair(const std::string& module, int64_t rank, const char* dtype = "F32") {
    return {matrix("base_model.model." + module + ".lora_A.weight", rank, 3, dtype),
            matrix("base_model.model." + module + ".lora_B.weight", 2, rank, dtype)};
  }

  // With rank 4 and alpha 8, and `more` members.
  static std::string config_with(const std::string& more = "") {
    return R"({"peft_type": "LORA", "r": 4, "lora_alpha": 8)" + (more.empty() ? "" : ", " + more) + "}";
  }

  static void write_adapter(const ModelDirectory& directory, const std::string& config,
                            const std::vector<NamedTensor>& tensors) {
    directory.write(kConfig, config);
    write_safetensors(directory, tensors, kTensors);
  }

  static std::vector<LoraAdapterModule> modules_of(const std::string& config,
                                                   const std::vector<NamedTensor>& tensors) {
    const ModelDirectory directory;
    write_adapter(directory, config, tensors);
    return LoraAdapter::open(directory.path()).modules();
  }

  // What opening says, with the directory's path as "D".
  static std::string open_error(const ModelDirectory& directory) {
    std::string error = error_of([&] { LoraAdapter::open(directory.path()); });
    for (size_t at = 0; (at = error.find(directory.path(), at)) != error.npos;)
      error.replace(at, directory.path().size(), "D");
    return error;
  }
  static std::string open_error(const std::string& config, const std::vector<NamedTensor>& tensors) {
    const ModelDirectory directory;
    write_adapter(directory, config, tensors);
    return open_error(directory);
  }
  static std::string config_error(const std::string& more) {
    return open_error(config_with(more), pair(kQ, 4));
  }
  static std::string tensors_error(const std::vector<NamedTensor>& tensors) {
    return open_error(config_with(), tensors);
  }

  static std::vector<float> read(const LoraAdapter& adapter, const TensorView& view) {
    std::vector<std::byte> bytes(static_cast<size_t>(view.numel()) * dtype_bytes(view.dtype));
    adapter.checkpoint().read(view.as<std::byte>(), view.dtype, view.numel(), bytes.data());
    std::vector<float> values;
    for (size_t at = 0; at < bytes.size(); at += dtype_bytes(view.dtype)) {
      float value = 0;
      uint16_t half = 0;
      std::memcpy(&half, &bytes[at], sizeof half);
      if (view.dtype == DType::kFloat32) {
        std::memcpy(&value, &bytes[at], sizeof value);
      } else {
        value = view.dtype == DType::kFloat16 ? fp16_to_float(half) : bf16_to_float(half);
      }
      values.push_back(value);
    }
    return values;
  }
};

}  // namespace quire
