// Which directory a model's name means: names of the Hugging Face hub are looked up in its local cache.
//
// Nothing is downloaded here and no network is asked; `hf download ORG/NAME` and the Python package (extra
// quire[hub]) fill the cache. The cache is where huggingface_hub has it: HF_HUB_CACHE, HF_HOME/hub,
// XDG_CACHE_HOME/huggingface/hub or ~/.cache/huggingface/hub, the first of these that is set.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "quire/engine_config.h"
#include "quire/export.h"

namespace quire {

// A repository on the hub.
struct HubName {
  std::string name;               // "org/name"
  std::string revision;           // a branch, a tag or a commit; empty: not given
  std::string quantization = {};  // which of its GGUF files: "Q4_K_M"; empty: not given
};

// What "org/name", "org/name@revision" or "org/name:quantization@revision" says; nothing for what can be no
// such name. Whether there is a directory of that name is not looked at. Thread-safe.
QUIRE_API std::optional<HubName> parse_hub_name(const std::string& text);

// What is to be read of a repository.
enum class HubFiles { kModel = 0, kTokenizer = 1, kConfig = 2 };

struct CachedModel {
  std::string directory;  // of the files, or a GGUF file; empty: the cache has none of this revision
  std::string missing;    // why it is not enough: the first file that is not there; empty: it is
};
// Looks a name up; `download_dir` is the cache instead of huggingface_hub's own, unless it is empty. Without
// a revision that is "main". Throws InvalidArgument for a revision that cannot be one, and for a quantization
// that several GGUF files are of. Thread-safe.
QUIRE_API CachedModel find_cached_model(const HubName& name, HubFiles files = HubFiles::kModel,
                                        const std::string& download_dir = "");

// Those of a repository's files that are the GGUF file of a quantization, or its parts: the quantization
// stands in their names between dashes, points or slashes, in any case. Sorted; empty when there is none.
// Throws InvalidArgument, naming `repository`, when several files are of it.
QUIRE_API std::vector<std::string> select_gguf_files(const std::vector<std::string>& names,
                                                     const std::string& quantization,
                                                     const std::string& repository);

// The configuration with directories for `model` and `tokenizer`. What is there is taken as it is, before
// names are thought of; so is what can be no name, of which whoever reads it says what is wrong. Throws
// InvalidArgument, naming the field, for a name that the cache does not have whole, and for two revisions
// that are not the same. Thread-safe.
QUIRE_API EngineConfig locate_model(EngineConfig config);

}  // namespace quire
