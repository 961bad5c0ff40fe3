// The kernel of $op, for tiling sink. What it does with its share is yours to write.

#include "kernel_operator.h"

#include "ovsdk_${op}_record.h"

extern "C" __global__ __aicore__ void ovsdk_$op(GM_ADDR x, GM_ADDR values, GM_ADDR y, GM_ADDR workspace, GM_ADDR tiling)
{
    REGISTER_TILING_DEFAULT(${type}Record);
    GET_TILING_DATA_PTR_WITH_STRUCT(${type}Record, record, tiling);
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);  // tiling is sunk for kernels on cube and vector cores alone
    if (record->words[$fault_word] != 0 || static_cast<int64_t>(AscendC::GetBlockIdx()) >= record->words[$block_dim_word]) {
        return;
    }
    // Your kernel: this core's share stands in `record->words`.
    (void)x, (void)values, (void)y, (void)workspace;
}
