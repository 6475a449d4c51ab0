// How a worker's memory goes and comes back, and what is in it changes, while no step runs.
#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <string_view>

#include "formats/gguf_config.h"
#include "util/check.h"
#include "util/log.h"
#include "util/seconds_since.h"
#include "worker/worker.h"

namespace quire {
namespace {

// What a model computes is in its config, and that is the engine's. A key that only one of them has is as old
// or as new as the library that wrote it; others tell of files, of generation, or of what weights were saved
// in.
void check_same_model(const HfConfig& config, const std::string& directory) {
  const std::string path = is_gguf_path(directory) ? directory : directory + "/config.json";
  if (std::error_code error; !std::filesystem::exists(path, error)) return;
  const HfConfig other = read_model_config(directory);
  constexpr std::array<std::string_view, 10> kOther = {
      "_name_or_path", "transformers_version", "dtype",        "torch_dtype",  "use_cache",
      "bos_token_id",  "eos_token_id",         "pad_token_id", "_commit_hash", "_attn_implementation"};
  for (const std::string& key : config.keys()) {
    if (std::ranges::find(kOther, key) != kOther.end() || !config.has(key) || !other.has(key)) continue;
    if (config.get_json(key) == other.get_json(key)) continue;
    other.fail(
        str("'", key, "' is ", other.get_json(key), ", and ", config.get_json(key),
            " in the engine's model: these are weights of another model, which needs an engine of its own"));
  }
}

}  // namespace

void Worker::wait_for_device() {
  if (const std::string loss = platform_->loss(); !loss.empty())
    throw InternalError(str(platform_->name(), " is lost: ", loss));
}

WeightFiles Worker::open_directory(const std::string& directory) const {
  if (is_dummy_ && directory == source_) return {Checkpoint::dummy(directory), nullptr};
  return open_weight_files(directory, reader_);
}

WeightFiles Worker::open_source(const WeightSource& source) const {
  WeightFiles files = source.is_directory() ? open_weight_files(source.directory, reader_)
                                            : WeightFiles{Checkpoint::of(source.tensors), nullptr};
  if (!source.partial) return files;
  if (files.packed)
    throw InvalidArgument(str(source.directory, ": packed weights are whole; partial must be false"));
  files.checkpoint.allow_missing();
  return files;
}

bool Worker::can_read_again() const {
  if (source_.empty()) return false;
  try {
    return open_directory(source_).stamp() == source_stamp_;
  } catch (const InvalidArgument&) {
    return false;
  }
}

void Worker::sleep(int32_t level) {
  platform_->select();
  wait_for_device();
  if (!kv_cache_is_gone_) platform_->discard_kv_cache(memory_);
  kv_cache_is_gone_ = true;
  if (level >= 2) {
    if (has_weights()) memory_.weights->discard();
    saved_weights_ = {};
    weights_state_ = WeightsState::kGone;
    return;
  }
  if (!has_weights()) return;
  Buffer saved = platform_->copy_to_host(*memory_.weights);
  // On the host there is no other place for them than the files.
  if (saved.size() == 0 && !can_read_again()) return;
  memory_.weights->discard();
  saved_weights_ = std::move(saved);
  weights_state_ = WeightsState::kSaved;
}

void Worker::wake_up(bool weights, bool kv_cache) {
  platform_->select();
  if (weights && !has_weights()) {
    const auto begin = std::chrono::steady_clock::now();
    if (weights_state_ == WeightsState::kSaved && saved_weights_.size() > 0) {
      memory_.weights->restore();
      platform_->copy_from_host(*memory_.weights, saved_weights_);
      saved_weights_ = {};
      weights_state_ = WeightsState::kThere;
    } else {
      if (source_.empty()) {
        throw InvalidArgument(
            "the weights that sleep(level=2) dropped came from no directory: give them to update_weights");
      }
      WeightFiles files = open_directory(source_);
      if (weights_state_ == WeightsState::kSaved && files.stamp() != source_stamp_) {
        throw InvalidArgument(str(source_,
                                  ": the weights have changed since they were loaded, and an engine "
                                  "that slept at level 1 wakes up with the same; update_weights takes "
                                  "those that are there"));
      }
      reload(files);
      source_stamp_ = files.stamp();
    }
    log(LogLevel::kInfo, "weights back on ", platform_->name(), " after ", seconds_since(begin), " s");
  }
  if (!kv_cache || !kv_cache_is_gone_) return;
  platform_->restore_kv_cache(memory_);
  kv_cache_is_gone_ = false;
}

void Worker::check_weights(const WeightSource& source) {
  if (source.partial && weights_state_ == WeightsState::kGone) {
    throw InvalidArgument(
        "partial: there are no weights that the rest could be kept of; give all, or call wake_up first");
  }
  platform_->select();
  if (source.is_directory()) check_same_model(hf_config_, source.directory);
  WeightFiles files = open_source(source);
  Checkpoint& checkpoint = files.checkpoint;
  checkpoint.allow_missing();  // to hear first of names that are written wrong
  const auto arena = make_measuring_arena();
  const auto loader = make_checking_loader(platform_->launch().host);
  loader->set_checkpoint(&checkpoint);
  builder_.build(dtype_, checkpoint, *arena, *loader);
  if (files.packed) check_sections(*files.packed, *arena);
  if (!source.partial) checkpoint.check_none_missing();
}

void Worker::load_weights(const WeightSource& source) {
  const auto begin = std::chrono::steady_clock::now();
  platform_->select();
  wait_for_device();
  if (source.partial) wake_up(/*weights=*/true, /*kv_cache=*/false);
  WeightFiles files = open_source(source);
  reload(files);
  // What is partly from elsewhere cannot be read again.
  const bool can_be_read_again = source.is_directory() && !source.partial;
  source_ = can_be_read_again ? source.directory : std::string();
  source_stamp_ = can_be_read_again ? files.stamp() : std::string();
  is_dummy_ = false;
  log(LogLevel::kInfo, "new weights on ", platform_->name(), " after ", seconds_since(begin), " s");
}

// Built anew by the code that loads a checkpoint, each part of the model lies where it did: graphs and
// whoever holds an address go on as they were, and the second model is not needed.
void Worker::reload(WeightFiles& files) {
  if (has_weights() && is_mapped(files)) memory_.weights->discard();  // what was written over the file
  if (!has_weights() || is_mapped(files)) memory_.weights->restore();
  weights_state_ = WeightsState::kGone;
  saved_weights_ = {};
  try {
    const auto arena = make_replaying_arena(*memory_.weights);
    const std::unique_ptr<WeightLoader> loader = make_loader(files, *arena);
    const BuiltModel built = builder_.build(dtype_, files.checkpoint, *arena, *loader);
    loader->finish();
    files.checkpoint.check_unchanged();
    platform_->check();
    QUIRE_CHECK(built.hash == runner_config_.model_hash && built.workspace_bytes == workspace_bytes_,
                "the model is another one");
  } catch (...) {
    memory_.weights->discard();
    throw;
  }
  weights_state_ = WeightsState::kThere;
}

}  // namespace quire
