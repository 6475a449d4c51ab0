#include "messages/recording.h"

#include <cstring>

namespace quire {
namespace {

// Four independent lanes, so that a step of a thousand requests is hashed at memory speed.
class SchedulerOutputHasher {
 public:
  void add(const void* data, size_t num_bytes) {
    const auto* bytes = static_cast<const unsigned char*>(data);
    for (; num_bytes >= 32; num_bytes -= 32, bytes += 32) {
      for (size_t lane = 0; lane < 4; ++lane) {
        uint64_t word = 0;
        std::memcpy(&word, bytes + lane * 8, 8);
        lanes_[lane] = mix(lanes_[lane] ^ word, kFactor);
      }
    }
    unsigned char rest[32] = {};
    if (num_bytes > 0) std::memcpy(rest, bytes, num_bytes);
    for (size_t lane = 0; lane < 4; ++lane) {
      uint64_t word = 0;
      std::memcpy(&word, rest + lane * 8, 8);
      lanes_[lane] = mix(lanes_[lane] ^ word ^ num_bytes, kFactor + 2 * lane);
    }
  }
  template <typename T>
  void add(const std::vector<T>& values) {
    add(values.data(), values.size() * sizeof(T));
  }
  uint64_t result() const {
    uint64_t hash = 0;
    for (uint64_t lane : lanes_) hash = mix(hash ^ lane, kFactor);
    return hash == 0 ? 1 : hash;
  }

 private:
  static constexpr uint64_t kFactor = 0x9E3779B97F4A7C15;
  static uint64_t mix(uint64_t a, uint64_t b) {
    const auto product = static_cast<unsigned __int128>(a) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }
  uint64_t lanes_[4] = {0x243F6A8885A308D3, 0x13198A2E03707345, 0xA4093822299F31D1, 0x082EFA98EC4E6C89};
};

}  // namespace

uint64_t hash_scheduler_output(const SchedulerOutput& scheduler_output) {
  static_assert(sizeof(ScheduledRequest) == 24, "no padding: its bytes are hashed");
  SchedulerOutputHasher hasher;
  hasher.add(&scheduler_output.step_id, sizeof scheduler_output.step_id);
  hasher.add(scheduler_output.scheduled_reqs);
  hasher.add(scheduler_output.new_block_ids.raw_ends());
  hasher.add(scheduler_output.new_block_ids.raw_ids());
  hasher.add(scheduler_output.preempted_req_ids);
  hasher.add(scheduler_output.finished_req_ids);
  for (const ScheduledEncoderInput& input : scheduler_output.scheduled_encoder_inputs) {
    hasher.add(&input.request_id, sizeof input.request_id);
    hasher.add(&input.input_index, sizeof input.input_index);
  }
  for (const KVExtent& extent : scheduler_output.kv_extents) {
    const int32_t words[] = {extent.group, extent.first_block, extent.num_blocks, extent.map};
    hasher.add(words, sizeof words);
  }
  for (const KVBlockCopy& copy : scheduler_output.kv_copies) {
    const int32_t words[] = {copy.group, copy.from, copy.to};
    hasher.add(words, sizeof words);
  }
  return hasher.result();
}

}  // namespace quire
