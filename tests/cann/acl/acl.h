#pragma once

#include <cstdint>

using aclError = int;
using aclrtEvent = void *;
using aclrtStream = void *;
constexpr aclError ACL_SUCCESS = 0;
constexpr uint32_t ACL_EVENT_SYNC = 1;

aclError aclrtCreateEventExWithFlag(aclrtEvent *event, uint32_t flag);
aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream);
aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event);
aclError aclrtDestroyEvent(aclrtEvent event);
