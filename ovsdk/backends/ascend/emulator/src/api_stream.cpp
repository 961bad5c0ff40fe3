// ACL: streams, what waits for them, and host functions on them.
#include <algorithm>

#include "call.h"

using namespace emu;

namespace {

int64_t deadline(int32_t timeout_ms) { return timeout_ms < 0 ? never : now_ns() + int64_t{timeout_ms} * 1'000'000; }

int create(void** stream, Device& device) {
  *stream = Stream::create(device).get();
  return code::ok;
}

int synchronize(Device& device, int64_t deadline_ns, Lock& lock) {
  auto streams = device.streams;  // they come and go meanwhile
  for (auto& [handle, stream] : streams) {
    if (stream->capture) continue;
    if (int failed = stream->synchronize(deadline_ns, lock)) return failed;
  }
  return code::ok;
}

int host_function(const char* name, Stream& stream, void (*function)(void*), void* argument, Lock& lock) {
  Task task;
  task.name = name;
  task.seen = true;
  task.body = [=] { function(argument); };
  return stream.submit(std::move(task), lock);
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int aclrtCreateStreamWithConfig(void** stream, uint32_t, uint32_t) {
  return on_device(__func__, [&](Device& device, Lock&) { return create(stream, device); });
}

int aclrtCreateStream(void** stream) {
  return on_device(__func__, [&](Device& device, Lock&) { return create(stream, device); });
}

int aclrtDestroyStream(void* stream) {
  return call(__func__, [&](Lock&) {
    auto one = stream ? Stream::find(stream) : nullptr;
    if (!one) return code::foreign_stream;
    one->destroy();
    return code::ok;
  });
}

int aclrtDestroyStreamForce(void* stream) {
  return call(__func__, [&](Lock& lock) {
    auto one = stream ? Stream::find(stream) : nullptr;
    if (!one) return code::foreign_stream;
    one->abort(lock);
    one->destroy();
    return code::ok;
  });
}

int aclrtStreamGetId(void* stream, int32_t* id) {
  return on_stream(__func__, stream, [&](Stream& one, Lock&) {
    *id = one.id;
    return code::ok;
  });
}

int aclrtStreamQuery(void* stream, int* status) {
  return on_stream(__func__, stream, [&](Stream& one, Lock&) {
    if (one.capture) return code::captured;
    *status = one.drained() ? 0 : 1;
    return code::ok;
  });
}

int aclrtSynchronizeStream(void* stream) {
  return on_stream(__func__, stream, [](Stream& one, Lock& lock) { return one.synchronize(never, lock); });
}

int aclrtSynchronizeStreamWithTimeout(void* stream, int32_t timeout_ms) {
  return on_stream(__func__, stream, [&](Stream& one, Lock& lock) { return one.synchronize(deadline(timeout_ms), lock); });
}

int aclrtSynchronizeDevice() {
  return on_device(__func__, [](Device& device, Lock& lock) { return synchronize(device, never, lock); });
}

int aclrtSynchronizeDeviceWithTimeout(int32_t timeout_ms) {
  return on_device(__func__, [&](Device& device, Lock& lock) { return synchronize(device, deadline(timeout_ms), lock); });
}

int aclrtLaunchHostFunc(void* stream, void (*function)(void*), void* argument) {
  return on_stream(__func__, stream,
                   [&](Stream& one, Lock& lock) { return host_function("host_function", one, function, argument, lock); });
}

int aclrtLaunchCallback(void (*function)(void*), void* argument, int, void* stream) {
  return on_stream(__func__, stream,
                   [&](Stream& one, Lock& lock) { return host_function("callback", one, function, argument, lock); });
}

// A callback runs on the stream's own thread, so that there is nothing to subscribe to, and no report to process.
int aclrtSubscribeReport(uint64_t, void*) { return code::ok; }
int aclrtUnSubscribeReport(uint64_t, void*) { return code::ok; }

int aclrtProcessReport(int32_t timeout_ms) {
  Lock lock = locked();
  std::condition_variable nothing;
  wait_until(nothing, lock, now_ns() + std::clamp(timeout_ms, 1, 50) * int64_t{1'000'000});
  return code::ok;
}

// Streams stop at a failure, the one mode that torch_npu asks for; overflows of numbers are not detected.
int aclrtSetStreamFailureMode(void*, uint64_t) { return code::ok; }
int aclrtSetStreamOverflowSwitch(void*, uint32_t) { return code::ok; }
int aclrtSetStreamAttribute(void*, int, void*) { return code::ok; }

int aclrtGetStreamOverflowSwitch(void*, uint32_t* flag) {
  *flag = 0;
  return code::ok;
}

}  // extern "C"
#pragma GCC visibility pop
