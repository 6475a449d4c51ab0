#include "simulator/calibration.h"

#include <gtest/gtest.h>

#include "quire/error.h"
#include "util/error_of.h"

namespace quire {
namespace {

MeasuredStep step(int64_t num_tokens, int64_t num_reqs, int64_t context_tokens, const StepCostModel& model) {
  const StepLoad load{num_tokens, num_reqs, context_tokens};
  return {load, model.seconds(load)};
}

std::vector<MeasuredStep> steps_of(const StepCostModel& model) {
  return {step(1, 1, 10, model),     step(8, 8, 800, model),    step(64, 64, 640, model),
          step(512, 1, 512, model),  step(600, 30, 900, model), step(16, 16, 16000, model),
          step(256, 1, 4096, model), step(1, 1, 5000, model)};
}

TEST(CalibrationTest, AFitFindsTheCoefficientsThatMadeTheTable) {
  const StepCostModel made{2e-3, 3e-5, 1e-4, 5e-8, 0.0};
  const Calibration fitted = fit_cost_model(steps_of(made));
  EXPECT_NEAR(fitted.cost_model.seconds_per_step, 2e-3, 1e-9);
  EXPECT_NEAR(fitted.cost_model.seconds_per_token, 3e-5, 1e-11);
  EXPECT_NEAR(fitted.cost_model.seconds_per_request, 1e-4, 1e-10);
  EXPECT_NEAR(fitted.cost_model.seconds_per_context_token, 5e-8, 1e-14);
  EXPECT_LT(fitted.mean_relative_error, 1e-9);
}

TEST(CalibrationTest, NoCoefficientIsNegative) {
  std::vector<MeasuredStep> steps = steps_of({2e-3, 3e-5, 1e-4, 0.0, 0.0});
  for (MeasuredStep& s : steps)
    s.seconds *= s.load.context_tokens > 2000 ? 0.5 : 1.0;  // as if reading saved time
  const StepCostModel model = fit_cost_model(steps).cost_model;
  EXPECT_GT(model.seconds_per_step, 0);
  EXPECT_GE(model.seconds_per_token, 0);
  EXPECT_GE(model.seconds_per_request, 0);
  EXPECT_EQ(model.seconds_per_context_token, 0);
}

TEST(CalibrationTest, StepsOfOneSizeStillGiveTheirTime) {
  const StepCostModel model = fit_cost_model({{{8, 8, 80}, 0.004}, {{8, 8, 80}, 0.006}}).cost_model;
  EXPECT_NEAR(model.seconds({8, 8, 80}), 0.06 / 13, 1e-9);  // least squares of x/4 - 1 and x/6 - 1
}

TEST(CalibrationTest, ATableSaysWhereItWasMeasured) {
  const Calibration calibration = parse_calibration(
      "{\"machine\": \"a machine\", \"date\": \"2026-01-01\"}\n"
      "{\"num_tokens\": 1, \"num_reqs\": 1, \"context_tokens\": 1, \"seconds\": 0.5}\n",
      "table");
  EXPECT_EQ(calibration.source, "a machine, 2026-01-01");
  EXPECT_NEAR(calibration.cost_model.seconds({1, 1, 1}), 0.5, 1e-12);
}

TEST(CalibrationTest, ABadLineIsNamedByNumberAndField) {
  const char* const table = "\n{\"num_tokens\": 1, \"num_reqs\": 1, \"context_tokens\": 1, \"seconds\": 0}";
  EXPECT_EQ(error_of([&] { parse_calibration(table, "table"); }), "table line 2: seconds must be above 0");
  EXPECT_THROW(parse_calibration("\n", "table"), InvalidArgument);
}

TEST(CalibrationTest, TheBuiltInTableFitsWell) {
  const Calibration calibration = parse_calibration(default_calibration_table(), "built-in");
  EXPECT_GT(calibration.cost_model.seconds({1, 1, 1}), 0);
  EXPECT_LT(calibration.mean_relative_error, 0.25);
}

}  // namespace
}  // namespace quire
