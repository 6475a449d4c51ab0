// Requests that name adapters, and those that change them.
#include "request_adapter_fixture.h"

namespace quire::triton::host {
namespace {

class RequestLoraTest : public RequestAdapterFixture {
 protected:
  static AdaptedRequest adapt_control(std::vector<RequestParameter> parameters,
                                      std::vector<Input> inputs = {}) {
    IncomingRequest incoming;
    for (const Input& input : inputs)
      incoming.inputs.push_back({input.name, input.datatype, input.shape, input.buffers.at(0)});
    incoming.parameters = std::move(parameters);
    ModelSettings model;
    model.lora_control = true;
    return adapt_request(incoming, model);
  }
  static std::string control_error(std::vector<RequestParameter> parameters, std::vector<Input> inputs = {}) {
    try {
      adapt_control(std::move(parameters), std::move(inputs));
      return "";
    } catch (const InvalidArgument& complaint) {
      return complaint.what();
    }
  }
};

// What lora_name stands beside keeps its depth and its order.
TEST_F(RequestLoraTest, AnAdaptersNameMayStandBesideAnything) {
  const AdaptedRequest adapted = adapt(
      text_request("Once", R"({"lora_name": "", "structured_outputs": {"json": {"z": {"a": []}, "b": 1}}})"));
  EXPECT_EQ(adapted.request.sampling_params.structured_outputs.value().json.value().text,
            R"({"z": {"a": []}, "b": 1})");
}

TEST_F(RequestLoraTest, AnAdapterIsNamedInOnePlaceOrAlikeInSeveral) {
  const char* json = R"({"lora_name": "mine", "max_tokens": 5})";
  const RequestParameter parameter{"lora_name", std::string("mine")};
  const Input input = string_input("lora_name", "mine");
  for (const ClientRequest& request :
       {text_request("Once", json), with(text_request("Once"), parameter), with(text_request("Once"), input),
        with(with(text_request("Once", json), parameter), input),
        with(text_request("Once", json), string_input("lora_name", "")),
        with(text_request("Once", R"({"lora_name": null})"), input)}) {
    EXPECT_EQ(adapt(request).request.lora_name, "mine");
  }
  EXPECT_EQ(adapt(text_request("Once", R"({"lora_name": null})")).request.lora_name, "");
  EXPECT_EQ(adapt(text_request("Once", R"({"lora_name": ""})")).request.lora_name, "");
  EXPECT_EQ(error(with(with(text_request("Once", R"({"lora_name": "b"})"), parameter),
                       string_input("lora_name", "b"))),
            "lora_name is 'b' in the input, but 'mine' in the parameter; give it once");
  EXPECT_EQ(error(with(text_request("Once", json), string_input("lora_name", "Mine"))),
            "lora_name is 'Mine' in the input, but 'mine' in sampling_parameters; give it once");
  EXPECT_TRUE(mentions(error(with(text_request("Once"), string_input("lora_name", "\xFF"))), "UTF-8"));
  EXPECT_TRUE(mentions(error(with(text_request("Once"), RequestParameter{"lora_name", true})), "lora_name"));
}

TEST_F(RequestLoraTest, AdaptersAreLoadedUnloadedAndListedWithoutAPrompt) {
  using Action = LoraControl::Action;
  const RequestParameter name{"lora_name", std::string("mine")};
  const RequestParameter path{"lora_path", std::string("a/b")};
  const AdaptedRequest load = adapt_control({{"load_lora", true}, name, path, {"unload_lora", false}});
  EXPECT_EQ(load.lora_control.action, Action::kLoad);
  EXPECT_EQ(load.lora_control.lora_name, "mine");
  EXPECT_EQ(load.lora_control.lora_path, "a/b");
  EXPECT_FALSE(load.lora_control.load_inplace);
  EXPECT_TRUE(
      adapt_control({{"load_lora", true}, name, path, {"load_inplace", true}}).lora_control.load_inplace);
  const AdaptedRequest unload = adapt_control({{"unload_lora", true}}, {string_input("lora_name", "mine")});
  EXPECT_EQ(unload.lora_control.action, Action::kUnload);
  EXPECT_EQ(unload.lora_control.lora_name, "mine");
  EXPECT_EQ(adapt_control({{"list_loras", true}, {"x-header", std::string("y")}}).lora_control.action,
            Action::kList);
  const AdaptedRequest plain = adapt_control({{"load_lora", false}}, {string_input("text_input", "Once")});
  EXPECT_EQ(plain.lora_control.action, Action::kNone);
  EXPECT_EQ(plain.request.prompt, "Once");
}

TEST_F(RequestLoraTest, ABadControlRequestIsRefused) {
  const RequestParameter name{"lora_name", std::string("mine")};
  const RequestParameter path{"lora_path", std::string("a/b")};
  EXPECT_TRUE(mentions(control_error({{"load_lora", true}, path}), "needs lora_name"));
  EXPECT_TRUE(mentions(control_error({{"load_lora", true}, name}), "needs lora_path"));
  EXPECT_TRUE(mentions(control_error({{"unload_lora", true}}), "needs lora_name"));
  EXPECT_TRUE(mentions(control_error({{"unload_lora", true}, name, path}), "'lora_path'"));
  EXPECT_TRUE(mentions(control_error({{"unload_lora", true}, name, {"list_loras", true}}), "not both"));
  EXPECT_TRUE(
      mentions(control_error({{"list_loras", true}}, {string_input("text_input", "x")}), "'text_input'"));
  EXPECT_TRUE(mentions(control_error({{"list_loras", true}, {"max_tokens", int64_t{1}}}), "'max_tokens'"));
  EXPECT_TRUE(mentions(control_error({{"list_loras", std::string("true")}}), "true or false"));
  EXPECT_TRUE(
      mentions(control_error({path}, {string_input("text_input", "x")}), "lora_path goes with load_lora"));
  EXPECT_TRUE(
      mentions(control_error({{"load_lora", true}, path, {"lora_name", std::string("\xFF")}}), "UTF-8"));
  EXPECT_TRUE(
      mentions(control_error({{"load_lora", true}, name, {"lora_path", std::string("\xFF")}}), "UTF-8"));
  ClientRequest request;
  request.parameters = {{"list_loras", true}};
  EXPECT_TRUE(mentions(error(request), "enable_lora_control")) << "not of any model";
}

}  // namespace
}  // namespace quire::triton::host
