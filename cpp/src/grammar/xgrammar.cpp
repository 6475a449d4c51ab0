// Grammars by xgrammar (https://github.com/mlc-ai/xgrammar): Dong et al., "XGrammar: Flexible and Efficient
// Structured Generation Engine for Large Language Models", MLSys 2025.
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <ctime>
#include <fstream>
#include <limits>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <variant>

#include <unistd.h>

#include "grammar/grammar.h"
#include "grammar/xgrammar_compiler.h"
#include "quire/error.h"
#include "util/log.h"
#include "util/str.h"

// xgrammar_checks.h declares these, for sources that are compiled apart from ours.
__thread int64_t quire_grammar_checks_left = std::numeric_limits<int64_t>::max();
void quire_grammar_check();

namespace quire {
namespace {

// What the thread's work in the library may take, while one of these lives.
class WorkLimit {
 public:
  WorkLimit(const char* what, double seconds, int64_t max_bytes = 0,
            const std::atomic<bool>* is_cancelled = nullptr)
      : what_(what), seconds_(seconds), max_bytes_(max_bytes), is_cancelled_(is_cancelled), outer_(current_) {
    if (max_bytes > 0) bytes_at_start_ = resident_bytes();
    current_ = this;
    quire_grammar_checks_left = kChecks;
  }
  ~WorkLimit() {
    current_ = outer_;
    quire_grammar_checks_left = outer_ != nullptr ? kChecks : std::numeric_limits<int64_t>::max();
  }
  WorkLimit(const WorkLimit&) = delete;
  WorkLimit& operator=(const WorkLimit&) = delete;

  static void check() {
    quire_grammar_checks_left = current_ != nullptr ? kChecks : std::numeric_limits<int64_t>::max();
    if (current_ != nullptr) current_->check_this();
  }

  // Messages below an error: parts of a grammar that would not be kept to.
  static void warn(const std::string& message) {
    if (current_ == nullptr) return;
    if (!current_->warning_.empty()) return;
    current_->warning_ = message;
  }
  const std::string& warning() const { return warning_; }

 private:
  static constexpr int64_t kChecks = 20'000;  // some hundred microseconds

  static double thread_seconds() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
  }
  static int64_t resident_bytes() {
    std::ifstream file("/proc/self/statm");
    int64_t total = 0, resident = 0;
    file >> total >> resident;
    return resident * sysconf(_SC_PAGESIZE);
  }
  void check_this() {
    if (is_cancelled_ != nullptr && *is_cancelled_) throw InvalidArgument("the engine has ended");
    const double now = thread_seconds();
    // From the first look at the clock on, which takes as long as most calls do.
    if (deadline_ == 0) deadline_ = now + seconds_;
    if (now > deadline_)
      throw InvalidArgument(str(what_, " takes longer than ", seconds_, " s; make the grammar simpler"));
    if (max_bytes_ == 0 || now < next_look_) return;
    next_look_ = now + 0.02;
    if (resident_bytes() - bytes_at_start_ > max_bytes_)
      throw InvalidArgument(str(what_, " takes more than ", max_bytes_, " bytes; make the grammar simpler"));
  }

  static thread_local WorkLimit* current_;
  const char* what_;
  double seconds_, deadline_ = 0, next_look_ = 0;
  int64_t max_bytes_, bytes_at_start_ = 0;
  const std::atomic<bool>* is_cancelled_;
  std::string warning_;
  WorkLimit* outer_;
};
thread_local WorkLimit* WorkLimit::current_ = nullptr;

class XgrammarMatcher final : public GrammarMatcher {
 public:
  XgrammarMatcher(const xgrammar::CompiledGrammar& grammar, const GrammarLimits& limits)
      : matcher_(grammar), limits_(limits) {}

  bool accept_token(int32_t token_id) override {
    const WorkLimit limit("going on by a token", limits_.max_mask_seconds);
    return !matcher_.IsTerminated() && matcher_.AcceptToken(token_id);
  }
  void roll_back(int32_t num_tokens) override { matcher_.Rollback(num_tokens); }
  bool fill_bitmask(std::span<int32_t> mask) override {
    const WorkLimit limit("finding the tokens that may follow", limits_.max_mask_seconds);
    auto num_words = static_cast<int64_t>(mask.size());
    DLTensor tensor{};
    tensor.data = mask.data();
    tensor.device = {kDLCPU, 0};
    tensor.ndim = 1;
    tensor.dtype = {kDLInt, 32, 1};
    tensor.shape = &num_words;
    const bool restricts = matcher_.FillNextTokenBitmask(&tensor);
    if (!restricts) std::fill(mask.begin(), mask.end(), -1);
    return restricts;
  }
  std::string find_jump_forward_string() override {
    const WorkLimit limit("finding the text that must follow", limits_.max_mask_seconds);
    return matcher_.IsTerminated() ? "" : matcher_.FindJumpForwardString();
  }
  bool is_terminated() const override { return matcher_.IsTerminated(); }

 private:
  xgrammar::GrammarMatcher matcher_;
  const GrammarLimits limits_;
};

class XgrammarGrammar final : public CompiledGrammar {
 public:
  XgrammarGrammar(xgrammar::CompiledGrammar grammar, const GrammarLimits& limits)
      : grammar_(std::move(grammar)), limits_(limits) {}

  std::unique_ptr<GrammarMatcher> make_matcher() const override {
    const WorkLimit limit("beginning an answer", limits_.max_mask_seconds);
    return std::make_unique<XgrammarMatcher>(grammar_, limits_);
  }
  size_t memory_bytes() const override { return grammar_.MemorySizeBytes(); }

 private:
  const xgrammar::CompiledGrammar grammar_;
  const GrammarLimits limits_;
};

class XgrammarCompiler final : public GrammarCompiler {
 public:
  XgrammarCompiler(std::shared_ptr<const Tokenizer> tokenizer, int32_t vocab_size,
                   std::vector<int32_t> eos_token_ids, const GrammarLimits& limits)
      : tokenizer_(std::move(tokenizer)),
        vocab_size_(vocab_size),
        eos_token_ids_(std::move(eos_token_ids)),
        limits_(limits) {}

  using GrammarCompiler::check;
  void check(const GrammarKey& key, std::span<const JsonSchemaPattern> patterns) override {
    const size_t hash = GrammarKeyHash()(key);
    {
      const std::lock_guard lock(mutex_);
      if (checked_.contains(hash)) return;
    }
    const WorkLimit limit("reading structured_outputs", limits_.max_check_seconds, limits_.max_bytes_of_work,
                          &is_cancelled_);
    std::optional<xgrammar::Grammar> grammar;
    tell_field([&] {
      grammar = read(key);
      if (!limit.warning().empty()) throw InvalidArgument(limit.warning());
      for (const auto& [place, regex] : patterns) {
        if (quire_grammar::is_json_text(regex)) continue;
        throw InvalidArgument(
            str(place, ": pattern '", regex.substr(0, 100),
                "' may match a quote, a backslash or a control character, which JSON writes as several; "
                "leave them out of it"));
      }
      if (const auto point = quire_grammar::find_no_character(*grammar))
        throw InvalidArgument(str("code point ", *point,
                                  " is no character: those of Unicode are 0 to 0xD7FF and 0xE000 to "
                                  "0x10FFFF"));
    });
    const std::lock_guard lock(mutex_);
    if (key.text.size() <= kMaxReadBytes) {
      if (read_.size() >= kMaxRead) read_.clear();
      read_.insert_or_assign(key, *grammar);
    }
    if (checked_.size() >= kMaxChecked) checked_.clear();
    checked_.insert(hash);
  }

  std::shared_ptr<const CompiledGrammar> compile(const GrammarKey& key) override {
    Compiler& compiler = this->compiler(vocabulary_for(key.kind));
    const WorkLimit limit("compiling structured_outputs", limits_.max_compile_seconds,
                          limits_.max_bytes_of_work, &is_cancelled_);
    std::shared_ptr<const CompiledGrammar> compiled;
    tell_field([&] {
      std::optional<xgrammar::Grammar> grammar = take_read(key);
      if (!grammar) grammar = read(key);
      compiled = std::make_shared<XgrammarGrammar>(compiler.compiler.compile(*grammar), limits_);
      if (!limit.warning().empty()) throw InvalidArgument(limit.warning());
    });
    return compiled;
  }

  void cancel() override { is_cancelled_ = true; }

 private:
  // Grammars whose hashes are kept: one that is taken for another fails when it is compiled.
  static constexpr size_t kMaxChecked = 4096;
  // Grammars that check() read and compile() has not taken, and the longest of their texts.
  static constexpr size_t kMaxRead = 8, kMaxReadBytes = 1 << 16;

  struct Compiler {
    Compiler(xgrammar::TokenizerInfo tokenizer, int64_t max_shared_bytes)
        : info(std::move(tokenizer)), compiler(info, max_shared_bytes) {}
    xgrammar::TokenizerInfo info;
    quire_grammar::Compiler compiler;
  };

  // Whatever goes wrong is the grammar's fault, and said so.
  template <typename Work>
  static void tell_field(const Work& work) {
    try {
      work();
    } catch (const std::bad_alloc&) {
      throw InvalidArgument("structured_outputs: it takes more memory than there is");
    } catch (const std::exception& error) {
      throw InvalidArgument(str("structured_outputs: ", error.what()));
    }
  }

  std::optional<xgrammar::Grammar> take_read(const GrammarKey& key) {
    const std::lock_guard lock(mutex_);
    auto taken = read_.extract(key);
    if (taken.empty()) return std::nullopt;
    return std::move(taken.mapped());
  }

  xgrammar::Grammar read(const GrammarKey& key) {
    switch (key.kind) {
      case GrammarKind::kJsonSchema: return xgrammar::Grammar::FromJSONSchema(key.text, key.any_whitespace);
      case GrammarKind::kRegex: return xgrammar::Grammar::FromRegex(key.text);
      case GrammarKind::kEbnf: return xgrammar::Grammar::FromEBNF(key.text);
      case GrammarKind::kLark:
        return xgrammar::Grammar::FromLark(key.text, compiler(vocabulary_for(key.kind)).info);
      case GrammarKind::kStructuralTag: {
        auto result = xgrammar::Grammar::FromStructuralTag(key.text, compiler(vocabulary_for(key.kind)).info);
        if (auto* grammar = std::get_if<xgrammar::Grammar>(&result)) return std::move(*grammar);
        throw InvalidArgument(std::visit([](const auto& error) { return std::string(error.what()); },
                                         std::get<xgrammar::StructuralTagError>(result)));
      }
    }
    throw InternalError("a grammar of no kind");
  }

  // Which tokens a grammar may be written in.
  enum class Vocabulary : uint8_t {
    kText,             // special tokens would be text that nobody sees
    kTextWithSpecial,  // tags and Lark can name them
    kJson,             // the library's strings of limited length let control characters through
  };
  static Vocabulary vocabulary_for(GrammarKind kind) {
    switch (kind) {
      case GrammarKind::kJsonSchema: return Vocabulary::kJson;
      case GrammarKind::kStructuralTag:
      case GrammarKind::kLark: return Vocabulary::kTextWithSpecial;
      default: return Vocabulary::kText;
    }
  }
  bool has_token(Vocabulary vocabulary, int32_t id) const {
    if (tokenizer_->is_special(id)) return vocabulary == Vocabulary::kTextWithSpecial;
    const std::string_view bytes = tokenizer_->token_bytes(id);
    // Where one rule's end depends on what follows, the library takes a first byte whose bits say nothing yet
    // (of U+0800 and up, of U+10000 and up) for a small code point, and permits what it then refuses. What
    // such a token says can be written as two.
    if (bytes.size() > 1 && (bytes.back() == '\xe0' || bytes.back() == '\xf0')) return false;
    return vocabulary != Vocabulary::kJson || std::none_of(bytes.begin(), bytes.end(), [](char c) {
             return static_cast<unsigned char>(c) < 0x20 && c != '\n';
           });
  }

  Compiler& compiler(Vocabulary vocabulary) {
    const std::lock_guard lock(compilers_mutex_);
    auto& compiler = compilers_[static_cast<size_t>(vocabulary)];
    if (!compiler) {
      std::vector<std::string> tokens(static_cast<size_t>(vocab_size_));
      for (int32_t id = 0; id < std::min(vocab_size_, tokenizer_->vocab_size()); ++id) {
        if (has_token(vocabulary, id)) tokens[static_cast<size_t>(id)] = tokenizer_->token_bytes(id);
      }
      compiler.emplace(xgrammar::TokenizerInfo(tokens, xgrammar::VocabType::RAW, vocab_size_, eos_token_ids_),
                       limits_.max_shared_bytes / std::ssize(compilers_));
    }
    return *compiler;
  }

  const std::shared_ptr<const Tokenizer> tokenizer_;
  const int32_t vocab_size_;
  const std::vector<int32_t> eos_token_ids_;
  const GrammarLimits limits_;
  std::atomic<bool> is_cancelled_{false};
  std::mutex compilers_mutex_;
  std::array<std::optional<Compiler>, 3>
      compilers_;  // by Vocabulary; made by the first grammar that wants it
  std::mutex mutex_;
  std::unordered_set<size_t> checked_;
  std::unordered_map<GrammarKey, xgrammar::Grammar, GrammarKeyHash> read_;
};

}  // namespace

bool has_grammar_compiler() { return true; }

std::unique_ptr<GrammarCompiler> make_grammar_compiler(std::shared_ptr<const Tokenizer> tokenizer,
                                                       int32_t vocab_size, std::vector<int32_t> eos_token_ids,
                                                       const GrammarLimits& limits) {
  return std::make_unique<XgrammarCompiler>(std::move(tokenizer), vocab_size, std::move(eos_token_ids),
                                            limits);
}

}  // namespace quire

void quire_grammar_check() { quire::WorkLimit::check(); }

// The library's messages (XGRAMMAR_LOG_CUSTOMIZE).
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw quire::InvalidArgument(message);
}
void LogMessageImpl(const std::string&, int, int, const std::string& message) {
  quire::WorkLimit::warn(message);
}

}  // namespace xgrammar
