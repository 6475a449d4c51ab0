// config.pbtxt: what a model's author may leave out, and what the engine is told.
#pragma once

#include <string>
#include <vector>

#include "abi.h"
#include "quire/engine_config.h"
#include "quire/lora.h"

namespace quire::triton {

struct ModelSettings {
  EngineConfig engine;
  bool decoupled = true;
  bool batched = false;          // max_batch_size is 1: shapes have a batch dimension
  bool shares_kv_arena = false;  // parameter kv_arena: "shared"
  // dynamic_batching.default_queue_policy, which the server's own queue, always empty, cannot keep. Its
  // max_queue_size is engine.max_waiting_requests.
  uint64_t queue_timeout_us = 0;  // how long a request may wait for its first step; 0: as long as it takes
  bool allow_timeout_override = true;

  // What is left of the time that a request asks for; 0: none.
  uint64_t timeout_us(uint64_t requested_us) const {
    return queue_timeout_us == 0 || allow_timeout_override ? requested_us : 0;
  }
  size_t num_outputs = 0;                       // of the model's configuration
  std::vector<std::string> ignored_parameters;  // parameter ignored_parameters: names, separated by commas
  bool names_device = false;                    // parameter device is there
  // Parameters of these names: how the model writes them, by ChatFormat's names; perhaps empty.
  std::string reasoning_parser, tool_parser;

  // Adapters that are loaded with the model, and the file that lists them; perhaps none.
  std::vector<LoraRequest> loras;
  std::string multi_lora;
  bool lora_control = false;  // parameter enable_lora_control: requests may load and unload adapters
  // Where relative paths of those start: parameter lora_root, which they cannot leave, else the version
  // directory.
  std::string lora_base;
  bool has_lora_root = false;

  // The engine's device for an instance: of KIND_GPU "cuda:" and its device's number, of KIND_CPU "cpu", else
  // what the parameter says. Throws InvalidArgument when the parameter says another.
  std::string device_for(TRITONSERVER_InstanceGroupKind kind, int32_t device_id) const;
};

// The configuration (JSON, as the server gives it) with the inputs, outputs and transaction policy that were
// left out. Throws InvalidArgument when it says something that this backend cannot do.
std::string complete_config(const std::string& config_json);

// For a configuration that the server does not want completed: the server refuses requests with tensors that
// it does not list. Throws ServerError, with what to write, unless it has a prompt and an answer.
void require_complete_config(const std::string& config_json);

// Reads `parameters`: every field of EngineConfig by its name, kv_arena, the parsers and those of
// `tokenizer` are taken relative to version_directory, or, as names of the hub, from its local cache; without
// a model, version_directory is the model's. Paths of `plugins`, `multi_lora` and `lora_root` are taken
// relative to it too. Reads the file of adapters: the parameter multi_lora, else version_directory's, if it
// has one. Throws InvalidArgument naming the parameter or the file, the value and what would do.
ModelSettings read_settings(const std::string& config_json, const std::string& version_directory);

// The command line's --backend-config=quire,NAME=VALUE.
struct BackendSettings {
  int64_t kv_arena_bytes = 0;  // kv-arena-bytes: memory of the models whose kv_arena is "shared"; 0: none
  // exit-grace-secs: how long requests may go on once the server is told to end.
  int64_t exit_grace_secs = 25;
  int64_t response_burst = 384;  // response-burst: see ResponsePacer
};

// Throws InvalidArgument naming the setting and the value, or those there are. Settings of the server's own
// are passed over.
BackendSettings read_backend_settings(const std::string& backend_config_json);

}  // namespace quire::triton
