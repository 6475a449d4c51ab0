// Models that read images too, of which the part that reads and writes text is taken.
#pragma once

#include "formats/hf_config.h"
#include "layers/context.h"

namespace quire {

// What text_config holds, before what stands beside it. Throws InvalidArgument when there is none.
HfConfig text_part_config(const HfConfig& config);

// Gives the tensors of the language model the names that a model of text has, and leaves out those of images.
void take_text_part(BuildContext& build);

}  // namespace quire
