// The grammar room on the cases of compare_libraries.py, which starts it:
//
//   grammar_bench DIR_OF_TOKENIZER CASES_JSON EOS_TOKEN_ID
//
// For each line on standard input it goes through all cases once and writes a line of JSON: nanoseconds for
// each schema ("compile", "known") and for each token of their documents ("mask", "accept").
#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "formats/json_tree.h"
#include "grammar/grammar.h"
#include "grammar/grammar_cache.h"
#include "grammar/grammar_door.h"
#include "quire/error.h"

namespace {

using namespace quire;

constexpr int64_t kRefused = -1;

struct Case {
  std::string schema;
  std::vector<std::vector<int32_t>> documents;
};

std::vector<Case> read_cases(const std::string& path) {
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const JsonTree tree = parse_json_tree(text, path);
  std::vector<Case> cases;
  for (const JsonTree& entry : *tree.array()) {
    Case& one = cases.emplace_back();
    one.schema = *entry.find("schema")->string();
    for (const JsonTree& document : *entry.find("documents")->array()) {
      auto& ids = one.documents.emplace_back();
      for (const JsonTree& id : *document.array())
        ids.push_back(static_cast<int32_t>(std::get<int64_t>(id.value)));
    }
  }
  return cases;
}

// Of the thread's processor time: work of milliseconds is interrupted by whatever else is on the machine.
template <typename Work>
int64_t busy_nanoseconds(const Work& work) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  };
  const int64_t begin = now();
  work();
  return now() - begin;
}

template <typename Work>
int64_t nanoseconds(const Work& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin)
      .count();
}

void print(const char* name, const std::vector<int64_t>& values, bool last = false) {
  std::printf("\"%s\": [", name);
  for (size_t i = 0; i < values.size(); ++i) {
    std::printf(i > 0 ? ", " : "");
    values[i] == kRefused ? std::printf("null") : std::printf("%lld", static_cast<long long>(values[i]));
  }
  std::printf(last ? "]" : "], ");
}

// What a request goes through at the door.
GrammarKey enter(GrammarDoor& door, const std::string& schema) {
  StructuredOutputsParams params;
  params.json = JsonText{schema};
  door.enter(params);
  return grammar_key(params);
}

void run_round(const std::shared_ptr<const Tokenizer>& tokenizer, int32_t eos,
               const std::vector<Case>& cases) {
  const std::shared_ptr<GrammarCompiler> compiler =
      make_grammar_compiler(tokenizer, tokenizer->vocab_size(), {eos});
  GrammarDoor door(compiler);
  GrammarCache cache(compiler, /*num_threads=*/1, /*max_bytes=*/int64_t{1} << 40);
  compiler->compile(enter(door, R"({"type": "boolean"})"));  // the vocabulary is read
  std::vector<int64_t> compile, known, mask_times, accept_times;
  std::vector<int32_t> mask(static_cast<size_t>(tokenizer->vocab_size() + 31) / 32);
  for (const Case& one : cases) {
    std::shared_ptr<const CompiledGrammar> grammar;
    try {
      compile.push_back(busy_nanoseconds([&] { grammar = compiler->compile(enter(door, one.schema)); }));
    } catch (const InvalidArgument& error) {
      std::fprintf(stderr, "%s: %s\n", one.schema.c_str(), error.what());
      for (auto* times : {&compile, &known}) times->push_back(kRefused);
      for (const auto& document : one.documents) {
        for (auto* times : {&mask_times, &accept_times})
          times->insert(times->end(), document.size(), kRefused);
      }
      continue;
    }
    const auto entry = cache.find_or_compile(enter(door, one.schema));
    while (entry->state == GrammarEntry::State::kCompiling)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    known.push_back(nanoseconds([&] { cache.find_or_compile(enter(door, one.schema)); }));
    for (const auto& document : one.documents) {
      const auto matcher = grammar->make_matcher();
      for (const int32_t id : document) {
        mask_times.push_back(nanoseconds([&] { matcher->fill_bitmask(mask); }));
        bool accepted = false;
        accept_times.push_back(nanoseconds([&] { accepted = matcher->accept_token(id); }));
        if (!accepted) throw InternalError("a token of a document was refused under " + one.schema);
      }
    }
  }
  std::printf("{");
  print("compile", compile);
  print("known", known);
  print("mask", mask_times);
  print("accept", accept_times, /*last=*/true);
  std::printf("}\n");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return std::fprintf(stderr, "grammar_bench DIR_OF_TOKENIZER CASES_JSON EOS_TOKEN_ID\n"), 2;
  try {
    const auto tokenizer = Tokenizer::load(argv[1]);
    const std::vector<Case> cases = read_cases(argv[2]);
    std::string line;
    while (std::getline(std::cin, line)) run_round(tokenizer, std::stoi(argv[3]), cases);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
