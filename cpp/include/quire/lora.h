// Low-rank adapters (Hu et al., "LoRA", 2021), which requests name.
#pragma once

#include <cstdint>
#include <string>

namespace quire {

// An adapter and where it is: a directory as PEFT saves them, with adapter_config.json and
// adapter_model.safetensors.
struct LoraRequest {
  std::string lora_name;    // what requests call it
  int32_t lora_int_id = 0;  // of the caller's, if it has any: no two adapters have the same; 0: none
  std::string lora_path;
  bool load_inplace = false;  // where there is one of this name already, it takes its place
};

// What an engine knows of an adapter.
struct LoraInfo {
  std::string lora_name;
  int32_t lora_int_id = 0;
  std::string lora_path;
  int32_t rank = 0;          // the highest of its modules
  bool is_loaded = false;    // in the host's memory; else it is read again when a request wants it
  bool is_pinned = false;    // it stays there
  int64_t num_requests = 0;  // unfinished ones that have it
};

}  // namespace quire
