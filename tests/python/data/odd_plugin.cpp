// A plugin that does what the environment's ODD_PLUGIN says.
#include <cstdlib>
#include <stdexcept>

#include "models/model_plugin.h"

namespace {

std::unique_ptr<quire::Model> make_none(quire::BuildContext&, const quire::HfConfig&) { return nullptr; }

}  // namespace

QUIRE_MODEL_PLUGIN(models) {
  const char* given = std::getenv("ODD_PLUGIN");
  const std::string what = given != nullptr ? given : "";
  if (what == "throws") throw std::runtime_error("the licence has expired");
  if (what == "throws an int") throw 7;
  if (what == "has no name") models.add("", make_none);
  if (what == "has no factory") models.add("OddForCausalLM", nullptr);
  if (what == "twice") {
    models.add("OddForCausalLM", make_none);
    models.add("OddForCausalLM", make_none);
  }
  if (what == "llama") {
    models.add("OddForCausalLM", make_none);
    models.add("LlamaForCausalLM", make_none);
  }
  if (what == "good") models.add("OddForCausalLM", make_none);
}
