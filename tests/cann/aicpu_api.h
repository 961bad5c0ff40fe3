#pragma once

#define __global__
#define __aicpu__

namespace AscendC {
inline void DataStoreBarrier() {}
}  // namespace AscendC
