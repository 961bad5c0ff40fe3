// What the host gives the AICPU kernel. All pointers are the device's.
#pragma once

#include <cstdint>

struct Launch {
    const int64_t *arguments;  // $argument_count of them; the first is replaced by `count`
    const int64_t *values;
    int64_t count;
    int64_t *record;
    int64_t length;  // int64 of the record
};

// Tile on `aicpu_stream`, then run the kernel on `stream` with `cores` cores. Returns the runtime's code, 0: launched.
extern "C" int ovsdk_${op}_launch(const Launch *launch, void *x, void *y, void *workspace, uint32_t cores, void *aicpu_stream, void *stream);
