#pragma once

#include "../../register/op_def_registry.h"

namespace platform_ascendc {

constexpr uint32_t SYSTEM_WORKSPACE = 4096;

struct PlatformAscendC {
    explicit PlatformAscendC(gert::Platform *) {}
    uint32_t GetLibApiWorkSpaceSize() const { return SYSTEM_WORKSPACE; }
};

}  // namespace platform_ascendc
