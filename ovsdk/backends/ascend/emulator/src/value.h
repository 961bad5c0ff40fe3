// Values in device memory that one stream writes and another waits for. Under the state's lock.
#pragma once
#include "stream.h"

namespace emu {

Task write_value(void* address, uint64_t value);
Task wait_for_value(const void* address, uint64_t value);  // until it is there, when it is the task's turn

}  // namespace emu
