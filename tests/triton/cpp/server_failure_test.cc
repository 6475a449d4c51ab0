// Each function of the server's fails in turn: the backend reports it, and leaks nothing.
#include "triton_test.h"

namespace quire::triton::host {
namespace {

class ServerFailureTest : public HostTest {};

const std::vector<const char*> kLoadFunctions = {"TRITONSERVER_MessageNewFromSerializedJson",
                                                 "TRITONSERVER_MessageSerializeToJson",
                                                 "TRITONSERVER_MetricArgsNew",
                                                 "TRITONSERVER_MetricArgsSetHistogram",
                                                 "TRITONSERVER_MetricNewWithArgs",
                                                 "TRITONBACKEND_BackendState",
                                                 "TRITONBACKEND_ModelName",
                                                 "TRITONBACKEND_ModelVersion",
                                                 "TRITONBACKEND_ModelRepository",
                                                 "TRITONBACKEND_ModelConfig",
                                                 "TRITONBACKEND_ModelAutoCompleteConfig",
                                                 "TRITONBACKEND_ModelSetConfig",
                                                 "TRITONBACKEND_ModelServer",
                                                 "TRITONBACKEND_ModelBackend",
                                                 "TRITONBACKEND_ModelSetState",
                                                 "TRITONBACKEND_ModelInstanceModel",
                                                 "TRITONBACKEND_ModelInstanceKind",
                                                 "TRITONBACKEND_ModelInstanceDeviceId",
                                                 "TRITONBACKEND_ModelInstanceSetState",
                                                 "TRITONBACKEND_ModelState"};

TEST_F(ServerFailureTest, ALoadDuringWhichTheServerFailsFailsAndLeavesNothing) {
  host();
  load_demo()->unload();
  const size_t num_objects = Ledger::instance().num_alive();
  for (const char* function : kLoadFunctions) {
    // There are many metrics.
    const bool is_metric = std::string(function).starts_with("TRITONSERVER_Metric");
    for (const int nth : is_metric ? std::vector{0, 7} : std::vector{0}) {
      Faults::instance().arm(function, nth);
      bool failed = false;
      std::shared_ptr<Model> model;
      try {
        model = load_demo();
      } catch (const HostError& error) {
        failed = true;
        EXPECT_NE(std::string(error.what()).find("injected"), std::string::npos) << error.what();
      }
      EXPECT_EQ(Faults::instance().disarm(), failed) << function;
      EXPECT_TRUE(failed) << function;
      if (model) model->unload();
      EXPECT_EQ(Ledger::instance().num_alive(), num_objects) << function;
    }
  }
}

TEST_F(ServerFailureTest, AServerWithoutMetricsServesAllTheSame) {
  for (const int nth : {0, 5}) {
    Faults::instance().arm("TRITONSERVER_MetricFamilyNew", nth, TRITONSERVER_ERROR_UNSUPPORTED);
    const auto model = load_demo();
    EXPECT_TRUE(Faults::instance().disarm());
    EXPECT_EQ(Ledger::instance().num_alive(), 0U) << "no family without the others";
    const auto call = model->infer(text_request(kStory, R"({"max_tokens": 2})"));
    call->wait();
    EXPECT_EQ(call->error(), "");
    stop_host();
  }
}

TEST_F(ServerFailureTest, MetricsThatCannotBeWrittenDoNotDisturbRequests) {
  const auto model = load_demo();
  for (const char* function :
       {"TRITONSERVER_MetricIncrement", "TRITONSERVER_MetricSet", "TRITONSERVER_MetricObserve"}) {
    Faults::instance().arm(function, 0);
    // A gauge is not set while all that happens falls into one report.
    for (int attempt = 0; attempt < 20 && Faults::instance().num_calls() == 0; ++attempt) {
      const auto call = model->infer(stream_request(kStory, R"({"max_tokens": 20, "ignore_eos": true})"));
      call->wait();
      EXPECT_EQ(call->error(), "");
    }
    EXPECT_TRUE(Faults::instance().disarm()) << function;
  }
}

TEST_F(ServerFailureTest, ARequestThatCannotBeReadGetsThatError) {
  const auto model = load_demo();
  ClientRequest request = text_request(kStory, R"({"max_tokens": 2})");
  request.parameters = {{"priority", int64_t{1}}};
  for (const char* function :
       {"TRITONBACKEND_RequestId", "TRITONBACKEND_RequestParameterCount", "TRITONBACKEND_RequestParameter",
        "TRITONBACKEND_RequestInputCount", "TRITONBACKEND_RequestInputByIndex",
        "TRITONBACKEND_RequestOutputCount", "TRITONBACKEND_RequestOutputName",
        "TRITONBACKEND_InferenceRequestTimeoutMicroseconds", "TRITONBACKEND_InputProperties",
        "TRITONBACKEND_InputBuffer"}) {
    Faults::instance().arm(function, 0, TRITONSERVER_ERROR_NOT_FOUND);
    const auto call = model->infer(request);
    call->wait();
    EXPECT_TRUE(Faults::instance().disarm()) << function;
    EXPECT_EQ(call->error_code(), TRITONSERVER_ERROR_NOT_FOUND) << function;
    EXPECT_NE(call->error().find("injected"), std::string::npos);
  }
}

TEST_F(ServerFailureTest, AResponseThatCannotBeMadeBecomesAnError) {
  for (const bool stream : {true, false}) {
    const auto model = load_demo();
    for (const char* function : {"TRITONBACKEND_ResponseNewFromFactory", "TRITONBACKEND_ResponseOutput",
                                 "TRITONBACKEND_OutputBuffer"}) {
      for (const int nth : {0, 3}) {
        Faults::instance().arm(function, nth);
        const char* sampling = R"({"max_tokens": 40, "ignore_eos": true})";
        const auto call =
            model->infer(stream ? stream_request(kStory, sampling) : text_request(kStory, sampling));
        call->wait();
        const bool fired = Faults::instance().disarm();
        EXPECT_EQ(call->error_code() == TRITONSERVER_ERROR_INTERNAL, fired) << function;
      }
    }
    model->unload();
  }
}

TEST_F(ServerFailureTest, EvenARequestWithoutAnyResponseEnds) {
  const auto model = load_demo();
  // Neither the output nor the error can be sent as a response.
  const auto call = model->infer(text_request(kStory, R"({"temperature": -1})"));
  call->wait();
  Faults::instance().arm("TRITONBACKEND_ResponseNewFromFactory", 0);
  const auto mute = model->infer(text_request(kStory, R"({"temperature": -1})"));
  EXPECT_TRUE(mute->wait().empty());
  EXPECT_TRUE(Faults::instance().disarm());
}

TEST_F(ServerFailureTest, ARequestWithoutAFactoryIsReleased) {
  const auto model = load_demo();
  Faults::instance().arm("TRITONBACKEND_ResponseFactoryNew", 1);
  const auto request = text_request(kStory, R"({"max_tokens": 2})");
  const auto calls = model->infer_batch({request, request, request});
  calls[0]->wait();
  calls[2]->wait();
  EXPECT_TRUE(Faults::instance().disarm());
  EXPECT_EQ(calls[0]->error(), "");
  EXPECT_EQ(calls[2]->error(), "");
  EXPECT_EQ(Ledger::instance().num_alive("request"), 0U);
}

TEST_F(ServerFailureTest, WhatCannotBeMendedIsLoggedAndLeftAtThat) {
  const auto model = load_demo();
  for (const char* function :
       {"TRITONBACKEND_ResponseSend", "TRITONBACKEND_ResponseFactoryIsCancelled",
        "TRITONBACKEND_ModelInstanceReportStatistics", "TRITONBACKEND_ModelInstanceReportBatchStatistics"}) {
    Faults::instance().arm(function, 0);
    const auto call = model->infer(stream_request(kStory, R"({"max_tokens": 60, "ignore_eos": true})"));
    call->wait();
    EXPECT_TRUE(Faults::instance().disarm()) << function;
    EXPECT_EQ(call->error(), "") << function;
  }
}

TEST_F(ServerFailureTest, AnInstanceWithoutItsStateHandsTheBatchBack) {
  const auto model = load_demo();
  Faults::instance().arm("TRITONBACKEND_ModelInstanceState", 0);
  EXPECT_THROW(model->infer(text_request(kStory)), HostError);
  EXPECT_TRUE(Faults::instance().disarm());
}

}  // namespace
}  // namespace quire::triton::host
