#include "ovsdk_$op.h"

#include "ovsdk_${op}_derive.h"

extern "C" void ovsdk_${op}_tiling(const int64_t *a, const int64_t *v, int64_t *record)
{
    ovsdk_$op::$derive(a, v, record);
}
