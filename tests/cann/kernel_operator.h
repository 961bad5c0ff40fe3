// Declarations of what our emitted kernels use of Ascend C, for tests alone: a compiler for a host reads them as C++.
#pragma once

#include <cstdint>

#define __global__
#define __aicore__
#define __aicpu__
#define __gm__
#define GM_ADDR uint8_t *
#define KERNEL_TYPE_MIX_AIC_1_2 0
#define KERNEL_TASK_TYPE_DEFAULT(type) static_assert((type) == 0, "")
#define REGISTER_TILING_DEFAULT(type) static_assert(sizeof(type) > 0, "")
#define GET_TILING_DATA_PTR_WITH_STRUCT(type, name, address) const type *name = reinterpret_cast<const type *>(address)

namespace AscendC {
inline int64_t GetBlockIdx() { return 0; }
}  // namespace AscendC
