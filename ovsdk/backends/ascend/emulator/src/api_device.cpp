// ACL: initialisation, devices, contexts, core limits. A context is its device's address.
#include <cstdio>

#include "call.h"

using namespace emu;

namespace {

uint32_t* limit_of(Limit& limit, int kind) { return kind == cube_core || kind == vector_core ? &limit[kind] : nullptr; }

int set_limit(Limit& limit, int kind, uint32_t cores) {
  uint32_t* known = limit_of(limit, kind);
  if (!known || cores == 0 || cores > machine().cores[kind]) return code::bad_argument;
  *known = cores;
  return code::ok;
}

int limit_in_force(Stream& stream, int kind, uint32_t* cores) {
  uint32_t* own = limit_of(stream.limit, kind);
  if (!own) return code::bad_argument;
  *cores = *own ? *own : stream.device.limit[kind];
  return code::ok;
}

thread_local std::shared_ptr<Stream> borrowed;  // whose limits this thread's kernels have

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int aclInit(const char*) {
  return call(__func__, [](Lock&) {
    static bool done = false;
    return std::exchange(done, true) ? code::repeated_init : code::ok;
  });
}

int aclFinalize() { return code::ok; }

int aclrtGetDeviceCount(uint32_t* count) {
  return call(__func__, [&](Lock&) {
    *count = machine().devices;
    return code::ok;
  });
}

int aclrtSetDevice(int32_t index) {
  return call(__func__, [&](Lock&) {
    if (!device(index)) return code::bad_device;
    use_device(device(index));
    return code::ok;
  });
}

int aclrtGetDevice(int32_t* index) {
  if (!current_device()) return code::no_context;
  *index = current_device()->index;
  return code::ok;
}

int aclrtResetDevice(int32_t index) {
  return call(__func__, [&](Lock& lock) {
    if (!device(index)) return code::bad_device;
    revive(*device(index), lock);
    return code::ok;
  });
}

int aclrtDeviceTaskAbort(int32_t index, uint32_t) {
  return call(__func__, [&](Lock& lock) {
    if (!device(index)) return code::bad_device;
    abort_tasks(*device(index), lock);
    return code::ok;
  });
}

int aclrtGetCurrentContext(void** context) {
  *context = current_device();
  return current_device() ? code::ok : code::no_context;
}

int aclrtSetCurrentContext(void* context) {
  return call(__func__, [&](Lock&) {
    for (int i = 0; Device* one = device(i); i++) {
      if (one != context) continue;
      use_device(one);
      return code::ok;
    }
    return code::no_context;
  });
}

int aclrtGetPrimaryCtxState(int32_t index, uint32_t* flags, int32_t* active) {
  if (flags) *flags = 0;
  if (active) *active = current_device() && current_device()->index == index;
  return code::ok;
}

int aclrtDeviceCanAccessPeer(int32_t* can, int32_t, int32_t) {
  *can = 0;  // torch_npu then copies through the host
  return code::ok;
}

int aclrtGetDeviceResLimit(int32_t index, int kind, uint32_t* cores) {
  return call(__func__, [&](Lock&) {
    if (!device(index)) return code::bad_device;
    uint32_t* known = limit_of(device(index)->limit, kind);
    if (known) *cores = *known;
    return known ? code::ok : code::bad_argument;
  });
}

int aclrtSetDeviceResLimit(int32_t index, int kind, uint32_t cores) {
  return call(__func__, [&](Lock&) { return device(index) ? set_limit(device(index)->limit, kind, cores) : code::bad_device; });
}

int aclrtResetDeviceResLimit(int32_t index) {
  return call(__func__, [&](Lock&) {
    if (!device(index)) return code::bad_device;
    device(index)->limit = machine().cores;
    return code::ok;
  });
}

int aclrtSetStreamResLimit(void* stream, int kind, uint32_t cores) {
  return on_stream(__func__, stream, [&](Stream& one, Lock&) { return set_limit(one.limit, kind, cores); });
}

int aclrtGetStreamResLimit(void* stream, int kind, uint32_t* cores) {
  return on_stream(__func__, stream, [&](Stream& one, Lock&) { return limit_in_force(one, kind, cores); });
}

int aclrtResetStreamResLimit(void* stream) {
  return on_stream(__func__, stream, [](Stream& one, Lock&) {
    one.limit = {0, 0};
    return code::ok;
  });
}

int aclrtUseStreamResInCurrentThread(void* stream) {
  return on_stream(__func__, stream, [](Stream& one, Lock&) {
    borrowed = one.shared_from_this();
    return code::ok;
  });
}

int aclrtUnuseStreamResInCurrentThread(void*) {
  borrowed = nullptr;
  return code::ok;
}

int aclrtGetResInCurrentThread(int kind, uint32_t* cores) {
  return on_device(__func__, [&](Device& one, Lock&) {
    return limit_in_force(borrowed ? *borrowed : *one.default_stream, kind, cores);
  });
}

// Accepted and without effect here: rounding of overflows, and limits that the host's own deadlines make unnecessary.
int aclrtSetDeviceSatMode(int) { return code::ok; }
int aclrtSetOpExecuteTimeOut(uint32_t) { return code::ok; }
int aclrtSetOpWaitTimeout(uint32_t) { return code::ok; }

int aclrtSetOpExecuteTimeOutV2(uint64_t asked, uint64_t* given) {
  *given = asked;
  return code::ok;
}

}  // extern "C"
#pragma GCC visibility pop
