#include "models/text_part.h"

namespace quire {

HfConfig text_part_config(const HfConfig& config) {
  if (!config.has("text_config"))
    config.fail("'text_config' is missing, which describes the language model of one that reads images");
  return config.with_members_of("text_config");
}

void take_text_part(BuildContext& build) {
  // Releases of transformers before and after 5 have these prefixes.
  build.checkpoint.rename("language_model.", "");
  build.checkpoint.rename("model.language_model.", "model.");
  for (const char* part : {"vision_tower.", "multi_modal_projector."}) {
    build.ignored_parts.emplace_back(part);
    build.ignored_parts.push_back(std::string("model.") + part);
  }
}

}  // namespace quire
