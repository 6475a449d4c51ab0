#include "worker/logits_processors.h"

#include <algorithm>
#include <exception>

#include "util/check.h"

namespace quire {

LogitsProcessors::LogitsProcessors(const std::vector<NamedLogitsProcessor>& factories,
                                   const LogitsProcessorConfig& config) {
  if (factories.size() > 32)
    throw InvalidArgument(str("logits_processors are ", factories.size(), "; there may be at most 32"));
  for (const auto& [name, factory] : factories) {
    Batch& batch = batches_.emplace_back();
    batch.name = name;
    batch.factory = factory;
    try {
      batch.processor = factory.make(config);
      if (batch.processor && batch.processor->is_argmax_invariant())
        argmax_invariant_ |= 1U << (batches_.size() - 1);
    } catch (const std::exception& error) {
      throw InvalidArgument(str("logits processor '", name, "' cannot be made: ", error.what()));
    }
    if (!batch.processor) throw InvalidArgument(str("logits processor '", name, "' made none"));
  }
}

uint32_t LogitsProcessors::add(RequestId id, const SamplingParams& params,
                               std::span<const int32_t> prompt_token_ids) {
  uint32_t uses = 0;
  for (size_t i = 0; i < batches_.size(); ++i) {
    if (!batches_[i].factory.validate_params(params)) continue;
    uses |= 1U << i;
    batches_[i].added.push_back({id, {-1, &params, prompt_token_ids}});
  }
  return uses;
}

void LogitsProcessors::remove(RequestId id, uint32_t uses) {
  for (size_t i = 0; i < batches_.size(); ++i) {
    if ((uses >> i & 1) == 0) continue;
    Batch& batch = batches_[i];
    const auto found = batch.rows.find(id);
    if (found == batch.rows.end()) {
      std::erase_if(batch.added, [id](const auto& added) { return added.first == id; });
    } else {
      batch.removed.push_back(found->second);
      batch.rows.erase(found);
    }
  }
}

// New requests take the rows of those that went; rows from the end take what is left of those.
void LogitsProcessors::update(Batch& batch) {
  if (batch.removed.empty() && batch.added.empty()) return;
  std::ranges::sort(batch.removed);
  std::vector<int32_t> holes = batch.removed;
  std::vector<AddedRequest> added;
  std::vector<MovedRequest> moved;
  for (auto& [id, request] : batch.added) {
    if (holes.empty()) {
      request.row = static_cast<int32_t>(batch.ids.size());
      batch.ids.push_back(id);
    } else {
      request.row = holes.front();
      holes.erase(holes.begin());
      batch.ids[static_cast<size_t>(request.row)] = id;
    }
    batch.rows[id] = request.row;
    added.push_back(request);
  }
  while (!holes.empty()) {
    const auto last = static_cast<int32_t>(batch.ids.size()) - 1;
    if (holes.back() == last) {
      holes.pop_back();
    } else {
      const RequestId id = batch.ids.back();
      batch.ids[static_cast<size_t>(holes.front())] = id;
      batch.rows[id] = holes.front();
      moved.push_back({last, holes.front()});
      holes.erase(holes.begin());
    }
    batch.ids.pop_back();
  }
  const std::vector<int32_t> removed = std::exchange(batch.removed, {});
  batch.added.clear();
  batch.processor->update_state({static_cast<int32_t>(batch.ids.size()), removed, added, moved});
}

void LogitsProcessors::apply(std::span<const Row> rows,
                             std::vector<std::pair<uint32_t, std::string>>& errors) {
  const size_t num_errors = errors.size();
  for (size_t i = 0; i < batches_.size(); ++i) {
    Batch& batch = batches_[i];
    const auto takes = [&](const Row& row) { return (row.uses >> i & 1) != 0; };
    if (std::ranges::none_of(rows, takes)) continue;
    const auto fail = [&](const char* what) {
      for (const Row& row : rows)
        if (takes(row))
          errors.emplace_back(row.result_index, str("logits processor '", batch.name, "': ", what));
    };
    try {
      update(batch);
      rows_.clear();
      for (const Row& row : rows) {
        if (!takes(row)) continue;
        rows_.push_back(row.row);
        rows_.back().row = batch.rows.at(row.request_id);
      }
      batch.processor->apply(rows_);
    } catch (const std::exception& error) {
      fail(error.what());
    } catch (...) {  // a plugin's
      fail("it threw something that says nothing");
    }
  }
  if (errors.size() > num_errors)
    std::ranges::stable_sort(errors, {}, &std::pair<uint32_t, std::string>::first);
}

}  // namespace quire
