// A plan, as people read it.
#include <iomanip>
#include <sstream>

#include "quire/memory_plan.h"
#include "util/gib_text.h"
#include "util/str.h"

namespace quire {
namespace {

std::string rounded(double value) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << value;
  return text.str();
}

// "max_model_len 4096", "device_memory 96 GiB"
std::string suggestion_text(const PlanSuggestion& suggestion) {
  const bool is_memory = suggestion.field == "device_memory";
  return str(suggestion.field, ' ',
             is_memory ? gib_text(suggestion.value) : std::to_string(suggestion.value));
}

}  // namespace

std::string plan_text(const MemoryPlan& plan) {
  std::ostringstream text;
  text << plan.architecture << " in " << plan.dtype << " on " << plan.device.name << " ("
       << gib_text(plan.device.memory_bytes) << (plan.device.is_cuda() ? "" : " free")
       << "), tensor_parallel_size " << plan.tensor_parallel_size << "\nmax_model_len " << plan.max_model_len
       << ", max_num_seqs " << plan.max_num_seqs << ", max_num_batched_tokens " << plan.max_num_batched_tokens
       << "\n"
       << (plan.tensor_parallel_size > 1 ? "each rank:\n" : "") << memory_table(plan.memory)
       << "\nKV cache: " << plan.kv_bytes_per_token << " bytes a token, " << plan.kv_bytes_per_block
       << " a block of " << plan.block_size << "; one sequence of " << plan.max_model_len << " tokens takes "
       << gib_text(plan.kv_bytes_of_one) << "\n";
  if (plan.fits()) {
    text << plan.num_blocks << " blocks: " << rounded(plan.max_concurrency)
         << " sequences of full length at once\npeak " << gib_text(plan.peak_bytes()) << ": fits\n";
    return text.str();
  }
  text << "does not fit: " << plan.problem << "\n";
  if (plan.suggestions.empty()) text << "no single change of what is tried here would help\n";
  for (size_t i = 0; i < plan.suggestions.size(); ++i)
    text << (i == 0 ? "would fit with one of: " : "                       ")
         << suggestion_text(plan.suggestions[i]) << "\n";
  return text.str();
}

}  // namespace quire
