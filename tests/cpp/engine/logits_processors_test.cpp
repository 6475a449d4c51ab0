// Logits processors of an engine: from plugin libraries, with what requests bring for them.
#include <gtest/gtest.h>

#include "quire/engine.h"
#include "quire/logits_processor.h"
#include "util/error_of.h"

namespace quire {
namespace {

EngineConfig config_with(std::vector<std::string> processors) {
  EngineConfig config;
  config.model = QUIRE_DEMO_MODEL;
  config.device = "cpu";
  config.max_model_len = 64;
  config.num_threads = 1;
  config.logits_processors = std::move(processors);
  return config;
}
EngineRequest request_with(const std::string& extra_args) {
  EngineRequest request;
  request.prompt = "Once upon a time";
  request.sampling_params.temperature = 0;
  request.sampling_params.max_tokens = 6;
  request.sampling_params.ignore_eos = true;
  request.sampling_params.extra_args.text = extra_args;
  return request;
}

TEST(EngineLogitsProcessorsTest, APluginDoesWhatARequestAsksItFor) {
  Engine engine(config_with({QUIRE_TEST_PLUGIN}));
  const auto plain = engine.generate({request_with("{}")})[0].outputs[0].token_ids;
  const std::string forbid =
      "{\"forbid\":[" + std::to_string(plain[0]) + "," + std::to_string(plain[3]) + "]}";
  const auto outputs = engine.generate({request_with(forbid), request_with("{}")});
  for (const int32_t id : outputs[0].outputs[0].token_ids) EXPECT_TRUE(id != plain[0] && id != plain[3]);
  EXPECT_EQ(outputs[1].outputs[0].token_ids, plain);
  EXPECT_EQ(error_of([&] { engine.generate({request_with("{\"forbid\":[-3]}")}); }),
            "logits processor 'forbidding': forbid has a negative id");
  EXPECT_EQ(error_of([&] { engine.generate({request_with("[1]")}); }), "extra_args must be a JSON object");
  EngineRequest thinking = request_with("{}");
  thinking.sampling_params.max_thinking_tokens = 3;
  EXPECT_EQ(error_of([&] { engine.generate({thinking}); }),
            "max_thinking_tokens is 3, but the engine has no think_end_token_ids; leave it out");
  // Another engine has it by its name, too.
  Engine other(config_with({"forbidding"}));
  EXPECT_EQ(other.generate({request_with(forbid)})[0].outputs[0].token_ids, outputs[0].outputs[0].token_ids);
}

class Nothing final : public LogitsProcessor {
 public:
  void update_state(const BatchUpdate&) override {}
  void apply(std::span<const LogitsRow>) override {}
};

TEST(EngineLogitsProcessorsTest, AnEngineHasProcessorsOfItsOwnWhichLookAtTheRequestsThatUseThem) {
  const auto own = std::make_shared<NamedLogitsProcessor>();
  own->name = "a/b";  // no path
  own->factory = {[](const LogitsProcessorConfig&) { return std::make_unique<Nothing>(); },
                  [](const SamplingParams& params) { return has_extra_arg(params, "a"); },
                  [](const SamplingParams&) { throw std::runtime_error("not today"); }};
  EngineConfig config = config_with({"a/b"});
  config.own_logits_processors = {own};
  Engine engine(config);
  EXPECT_EQ(engine.generate({request_with(R"({"b":{"a":1}})")})[0].outputs[0].token_ids.size(), 6U);
  EXPECT_EQ(error_of([&] { engine.generate({request_with(R"({"b":2,"a":null})")}); }),
            "logits processor 'a/b': not today");
  own->factory.make = [](const LogitsProcessorConfig&) -> std::unique_ptr<LogitsProcessor> {
    throw std::runtime_error("no room");
  };
  EXPECT_EQ(error_of([&] { Engine other(config); }), "logits processor 'a/b' cannot be made: no room");
}

TEST(EngineLogitsProcessorsTest, WhatCannotBeLoadedIsRefusedByNameAndReason) {
  const auto refused = [](const std::string& entry) {
    return error_of([&] { Engine engine(config_with({entry})); });
  };
  EXPECT_NE(refused("none").find("logits_processors has 'none', which is not registered; there are "),
            std::string::npos);
  EXPECT_NE(refused("none").find("thinking_budget"), std::string::npos);
  EXPECT_NE(refused("./none.so").find("logits_processors: cannot load './none.so': "), std::string::npos);
  EXPECT_NE(refused(QUIRE_TEST_OTHER_PLUGIN).find("compiled against another version"), std::string::npos);
  EngineConfig half = config_with({});
  half.think_end_token_ids = {5};
  EXPECT_NE(error_of([&] { Engine engine(half); }).find("give both, or neither"), std::string::npos);
}

}  // namespace
}  // namespace quire
