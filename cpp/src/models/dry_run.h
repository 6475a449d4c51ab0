#pragma once

#include <cstddef>
#include <cstdint>

#include "models/model.h"

namespace quire {

// The activations that `forward` of `num_tokens` tokens and then `compute_logits` of `num_logits` of their
// rows, gathered, take together: found by running both, with kernels of `ops` that do nothing. The model may
// be one that was only built for its sizes. Thread-safe.
size_t dry_run_bytes(const Model& model, const KernelTable& ops, const Communicator& communicator,
                     int64_t num_tokens, int64_t num_logits);

}  // namespace quire
