#pragma once

#include "op_def_registry.h"

namespace optiling {

struct DeviceOpImplRegister {
    explicit DeviceOpImplRegister(const char *) {}
    DeviceOpImplRegister &Tiling(ge::graphStatus (*)(gert::TilingContext *)) { return *this; }
};

}  // namespace optiling

#define DEVICE_IMPL_OP_OPTILING(type) static optiling::DeviceOpImplRegister registered_##type = optiling::DeviceOpImplRegister(#type)
