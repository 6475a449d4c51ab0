// What becomes of the matches of a pre-tokenizer's pattern, and of the text between them.
#pragma once

#include <algorithm>
#include <vector>

#include "tokenizer/pipeline.h"

namespace quire::text {

enum class Behavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

// Throws InvalidArgument for a name that is none.
Behavior read_behavior(const JsonNode& node);

// Collects the stretches of one piece, in order, as pieces.
class Splitter {
 public:
  Splitter(Behavior behavior, std::vector<PreTokenized::Piece>& out)
      : behavior_(behavior), out_(out), first_(out.size()) {}

  void add(size_t begin, size_t end, bool is_match) {
    // A first stretch has nothing before it to be joined to.
    const bool has_previous = out_.size() > first_;
    bool joins = false;
    switch (behavior_) {
      case Behavior::kIsolated: break;
      case Behavior::kRemoved:
        if (is_match) return;
        break;
      case Behavior::kContiguous: joins = is_match == previous_match_; break;
      case Behavior::kMergedWithPrevious: joins = is_match && !previous_match_; break;
      // A match takes what follows it, unless that is a match too.
      case Behavior::kMergedWithNext: joins = previous_match_ && !is_match; break;
    }
    if (has_previous && joins) {
      out_.back().end = end;
    } else {
      out_.push_back({begin, end});
    }
    previous_match_ = is_match;
  }

 private:
  Behavior behavior_;
  std::vector<PreTokenized::Piece>& out_;
  size_t first_;
  bool previous_match_ = false;
};

// Cuts every piece anew: `cut(text, add)` gives the stretches of a piece's text, in order, to
// add(begin, end, is_match). The pattern sees this piece only: what ends here ends the text.
template <typename Cut>
void split_pieces(PreTokenized& pre_tokenized, Behavior behavior, const Cut& cut) {
  std::vector<PreTokenized::Piece>& out = pre_tokenized.new_pieces;
  out.clear();
  for (const PreTokenized::Piece& piece : pre_tokenized.pieces) {
    Splitter splitter(behavior, out);
    cut(pre_tokenized.text.substr(piece.begin, piece.end - piece.begin),
        [&](size_t begin, size_t end, bool is_match) {
          splitter.add(piece.begin + begin, piece.begin + end, is_match);
        });
  }
  std::erase_if(out, [](const PreTokenized::Piece& piece) { return piece.begin == piece.end; });
  pre_tokenized.pieces.swap(out);
}

// Writes the text of every piece anew: `write(text, piece, out)` appends what becomes of it to the Rewriter.
template <typename Write>
void rewrite_pieces(PreTokenized& pre_tokenized, const Write& write) {
  const std::string_view source = pre_tokenized.text;
  Rewriter out(source, pre_tokenized.alignment, source.size() + source.size() / 2 + 8);
  for (PreTokenized::Piece& piece : pre_tokenized.pieces) {
    const size_t begin = out.written().size();
    write(source.substr(piece.begin, piece.end - piece.begin), piece, out);
    piece = {begin, out.written().size()};
  }
  pre_tokenized.own_text = out.finish();
  pre_tokenized.text = pre_tokenized.own_text;
}

}  // namespace quire::text
