// Changes of logits that requests ask for by parameters of their own, before their tokens are drawn.
//
// A processor is registered by a name, here or from a plugin library, and EngineConfig::logits_processors
// lists those that an engine has. A request reaches it through SamplingParams, most often its `extra_args`;
// its factory says which requests use it, and refuses at the door what it cannot do with.
//
// What it costs: a processor is host code. On the host it changes the logits in place. On a device the rows
// of the requests that use it, and no others, are brought to the host and back, 4 bytes for each token of the
// vocabulary; the step waits for its forward pass to end, so no other is enqueued meanwhile. Steps in which
// no request uses one cost nothing.
//
// This header needs nothing of the library but its three functions: a plugin that calls none of them compiles
// against it and need not link to anything.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/export.h"
#include "quire/sampling_params.h"

namespace quire {

// A request that has come to a processor's batch. What is pointed at stays until update_state says that the
// request is removed, and is gone by then.
struct AddedRequest {
  int32_t row = 0;
  const SamplingParams* params = nullptr;
  std::span<const int32_t> prompt_token_ids;
};
struct MovedRequest {
  int32_t from = 0, to = 0;  // rows; `from` is empty afterwards
};
// What has changed since the last one, to be applied in this order. An added request may have a removed one's
// row.
struct BatchUpdate {
  int32_t batch_size = 0;  // afterwards: rows [0, batch_size) are in use
  std::span<const int32_t> removed;
  std::span<const AddedRequest> added;
  std::span<const MovedRequest> moved;
};

// A row of logits that a token is drawn from in this step. With drafts a request has several in one step, and
// those behind the first may be taken back.
struct LogitsRow {
  int32_t row = 0;                            // of the batch
  std::span<const int32_t> output_token_ids;  // all before the token that is drawn
  // [V] of the model itself, to be changed; -infinity forbids. Bias, bans, grammars and penalties come after.
  std::span<float> logits;
  // What owns the memory that they lie in, on a device too; null: they are gone after `apply`. Whoever copies
  // it keeps that memory: the engine goes on in other memory then, with the logits as `apply` has left them.
  const std::shared_ptr<void>* memory = nullptr;
};

// One for each rank of an engine, called on its thread; ranks must all do the same, so what it does is to be
// a function of what it is given. The batch holds the requests that use it, from their first step until they
// end, preempted or not.
class LogitsProcessor {
 public:
  virtual ~LogitsProcessor() = default;

  // Before `apply`, when the batch has changed.
  virtual void update_state(const BatchUpdate& update) = 0;
  // Changes the rows of a step, those of requests that are drawn from in it. An exception ends the requests
  // of these rows, and no others.
  virtual void apply(std::span<const LogitsRow> rows) = 0;
  // True when it never changes which token is the likeliest: it is then left out where that one is taken, and
  // a request of which all processors are left out costs nothing. The same whenever it is asked.
  virtual bool is_argmax_invariant() const { return false; }
};

// What a processor is made for.
struct LogitsProcessorConfig {
  int32_t vocab_size = 0;
  std::vector<int32_t> think_start_token_ids, think_end_token_ids;  // EngineConfig's
  int32_t rank = 0;
  int32_t world_size = 1;
};

struct LogitsProcessorFactory {
  std::function<std::unique_ptr<LogitsProcessor>(const LogitsProcessorConfig&)> make;
  // Whether a request uses it. What it throws refuses the request. On any thread, also after that.
  std::function<bool(const SamplingParams& params)> validate_params;
  // Besides, of a request that uses it, before anything is made of that: what it throws refuses the request.
  // On the thread that brings the request, and no other. May be empty.
  std::function<void(const SamplingParams& params)> check_params = {};
};

// Makes `name` known to EngineConfig::logits_processors, for the rest of the process. Throws InvalidArgument
// when it is known already, or a function is missing. Thread-safe.
QUIRE_API void register_logits_processor(const std::string& name, LogitsProcessorFactory factory);

struct NamedLogitsProcessor {
  std::string name;
  LogitsProcessorFactory factory;
};
// Of names, and of paths of plugin libraries (whatever holds a '/'), which stay loaded; a library stands for
// all that it registers. `own` are known besides, and before others. Throws InvalidArgument for a name that
// is not known, with those that are, and for a library that cannot be loaded or was compiled against another
// version. Thread-safe.
QUIRE_API std::vector<NamedLogitsProcessor> find_logits_processors(
    const std::vector<std::string>& entries,
    const std::vector<std::shared_ptr<const NamedLogitsProcessor>>& own = {});

// Whether a request's extra_args have a member of that name. False as well where they are no object, which is
// refused elsewhere. Thread-safe.
QUIRE_API bool has_extra_arg(const SamplingParams& params, std::string_view name);

// ---- plugin libraries -----------------------------------------------------------------------------
// A library exports one C function:
//
//   extern "C" const char* quire_register_logits_processors(uint64_t version,
//   quire::LogitsProcessorRegistrar& all) {
//     if (version != quire::kLogitsProcessorVersion) return "compiled against another version of Quire";
//     all.add("my_processor", {make_my_processor, uses_my_processor});
//     return nullptr;
//   }
//
// It returns null, or why it has registered nothing. It must be compiled by a compiler of the engine's ABI.

// Rises with every change of this header; the size tells versions of SamplingParams apart.
inline constexpr uint64_t kLogitsProcessorVersion = uint64_t{2} << 32 | sizeof(SamplingParams);

class LogitsProcessorRegistrar {
 public:
  virtual void add(const std::string& name, LogitsProcessorFactory factory) = 0;

 protected:
  ~LogitsProcessorRegistrar() = default;
};
using RegisterLogitsProcessors = const char* (*)(uint64_t version, LogitsProcessorRegistrar& all);

}  // namespace quire
