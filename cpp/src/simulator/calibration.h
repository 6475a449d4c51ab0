// From measured steps to a cost model.
#pragma once

#include <string>
#include <vector>

#include "executor/simulated_executor.h"

namespace quire {

struct MeasuredStep {
  StepLoad load;
  double seconds = 0.0;
};

struct Calibration {
  StepCostModel cost_model;
  double mean_relative_error = 0.0;  // of the model on the steps it was fitted to
  std::string source;                // where the steps were measured, as the table says
};

// Reads JSON lines {"num_tokens", "num_reqs", "context_tokens", "seconds"}; a line with a "machine" describes
// where they were measured. Throws InvalidArgument with the line's number and the field.
Calibration load_calibration(const std::string& path);

// Measured, and part of the library: see default_calibration.cpp for the machine and the model.
const std::string& default_calibration_table();

// Reads a text as load_calibration does a file; `name` is what complaints begin with.
Calibration parse_calibration(const std::string& text, const std::string& name);

// Non-negative least squares of the relative error, so that a short step counts as much as a long one. Throws
// InvalidArgument without steps.
Calibration fit_cost_model(const std::vector<MeasuredStep>& steps);

}  // namespace quire
