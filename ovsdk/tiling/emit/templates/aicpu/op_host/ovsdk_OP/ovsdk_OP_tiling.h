#pragma once

#include "register/op_def_registry.h"

namespace optiling {

// Attributes of the operator, in their order.
enum Attribute : size_t { ARGUMENTS, LENGTH, CORES_OF_ANY, WORKSPACE_OF_ANY, OUTPUTS_OF_ANY };
// Inputs of the operator: the data, and the values that decide its tiling.
enum Input : size_t { DATA, VALUES };

ge::graphStatus ${type}Tiling(gert::TilingContext *context);

}  // namespace optiling
