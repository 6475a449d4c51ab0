// The tokenizer of a GGUF file's metadata.
#pragma once

#include <memory>
#include <string>

#include "formats/gguf.h"
#include "tokenizer/hf_tokenizer.h"

namespace quire::text {

// tokenizer.ggml.model "gpt2" (byte-level BPE) and "llama" (SentencePiece's BPE). Throws InvalidArgument,
// naming the file and the key.
std::shared_ptr<const Tokenizer> read_gguf_tokenizer(const GgufHeader& header);

}  // namespace quire::text
