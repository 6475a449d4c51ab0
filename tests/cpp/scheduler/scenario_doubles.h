// What a scenario has in place of a KV connector and of grammars: they answer what its lines say.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/scenario_runner.h"

namespace quire {

// Remote keys and values: what a request can load is said when it is added.
struct ScenarioRunner::Connector : KVConnectorScheduler {
  struct Offer {
    int32_t num_tokens = 0;
    bool load_async = false, holds = false, known = true;
  };
  std::optional<KVConnectorMatch> get_num_new_matched_tokens(const KVConnectorRequest& request,
                                                             int32_t num_computed_tokens) override {
    const Offer& offer = offers[request.request_id];
    if (!offer.known) return std::nullopt;
    return KVConnectorMatch{std::max(offer.num_tokens - num_computed_tokens, 0), offer.load_async};
  }
  void update_state_after_alloc(const KVConnectorRequest& request, KVConnectorBlocks held,
                                int32_t num_external_tokens) override {
    blocks[request.request_id].assign(held[0].begin(), held[0].end());
    loads[request.request_id] = num_external_tokens;
  }
  std::string build_connector_meta(uint64_t, std::span<const KVConnectorScheduled>) override { return meta; }
  bool request_finished(const KVConnectorRequest& request, KVConnectorBlocks) override {
    return offers[request.request_id].holds;
  }
  std::map<RequestId, Offer> offers;
  std::map<RequestId, std::vector<BlockId>> blocks;
  std::map<RequestId, int32_t> loads;
  std::string meta;
};

struct ScenarioRunner::Grammars : StructuredOutputManager {
  struct Grammar : StructuredOutputGrammar {
    Grammar(std::map<RequestId, State>& states, RequestId id) : states(states), id(id) {}
    State state() const override { return states.at(id); }
    std::string error() const override {
      return state() == State::kFailed                ? "the schema is not valid"
             : num_accepted > refuses && refuses >= 0 ? "the grammar does not permit a sampled token"
                                                      : "";
    }
    bool accept_tokens(std::span<const int32_t>) override { return num_accepted++ != refuses; }
    // Drafts are permitted up to the first: enough to see that they are asked about.
    int32_t num_valid_drafts(std::span<const int32_t>) override { return 1; }
    std::map<RequestId, State>& states;
    RequestId id;
    int32_t refuses = -1, num_accepted = 0;
  };
  std::unique_ptr<StructuredOutputGrammar> make_grammar(const EngineCoreRequest& request) override {
    if (!states.contains(request.request_id)) return nullptr;
    auto grammar = std::make_unique<Grammar>(states, request.request_id);
    grammar->refuses = std::exchange(refuses, -1);
    return grammar;
  }
  size_t num_mask_words() const override { return 1; }
  void fill_bitmasks(std::span<const GrammarMasks>) override {}
  std::map<RequestId, StructuredOutputGrammar::State> states;
  int32_t refuses = -1;  // the next grammar refuses the tokens of this output
};

}  // namespace quire
