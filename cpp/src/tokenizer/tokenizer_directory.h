// The other files that a model directory may hold its tokenizer in, read as if they were a tokenizer.json.
#pragma once

#include <memory>
#include <string>

#include "tokenizer/hf_tokenizer.h"

namespace quire::text {

// The tokenizer of a directory: tokenizer.json, else tekken.json, else tokenizer.model (SentencePiece, or
// tiktoken's ranks), else *.tiktoken or tiktoken.model, else vocab.json and merges.txt. Throws
// InvalidArgument, naming the file and the key or line.
std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& directory);

// Each from the bytes of its file, `file` being its name in messages. `config` is the content of
// tokenizer_config.json, or null: it has the special tokens that the first two formats lack.
std::shared_ptr<const Tokenizer> read_sentencepiece(std::string_view bytes, const std::string& file,
                                                    const Json& config);
std::shared_ptr<const Tokenizer> read_tiktoken(std::string_view text, const std::string& file,
                                               const Json& config);
std::shared_ptr<const Tokenizer> read_tekken(std::string_view text, const std::string& file);

}  // namespace quire::text
