// ACL: memory and copies. An asynchronous copy reads its source when it is its turn; one with pageable host memory blocks.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "call.h"
#include "memory.h"
#include "runtime.h"
#include "trace.h"

using namespace emu;

namespace {

struct Copy {
  void* to;
  const void* from;
  size_t bytes;
  const char* name() const {
    static const char* const names[2][2] = {{"memcpy_h2h", "memcpy_d2h"}, {"memcpy_h2d", "memcpy_d2d"}};
    return names[on_device(to)][on_device(from)];
  }
  void operator()() const { std::memcpy(host_view(to), host_view(from), bytes); }
};

struct Fill {
  void* to;
  int value;
  size_t bytes;
  const char* name() const { return "memset"; }
  void operator()() const { std::memset(host_view(to), value, bytes); }
};

template <class Work>
int submit(const Work& work, Stream& stream, Lock& lock) {
  Task task;
  task.name = work.name();
  task.size = static_cast<int64_t>(work.bytes);
  task.seen = true;
  task.body = work;
  return stream.submit(std::move(task), lock);
}

// Without a stream: done when the call returns, at the price of the same work on one.
template <class Work>
int now(const Work& work, Device& device, Lock& lock) {
  Record record{{}, device.index, -1, 0, 0, static_cast<int64_t>(work.bytes), now_ns(), now_ns(), 0, 0};
  record.end_ns = record.begin_ns + std::llround(prices().cost(work.name(), record.size).device);
  std::condition_variable nothing;
  while (now_ns() < record.end_ns) wait_until(nothing, lock, record.end_ns);
  lock.unlock();
  work();
  lock.lock();
  record.real_ns = now_ns();
  name_record(record, work.name());
  trace().add(record);
  return code::ok;
}

int allocate_host(void** pointer, size_t bytes) {
  if (posix_memalign(pointer, 4096, std::max<size_t>(bytes, 1))) return code::no_memory;
  pin(*pointer, bytes);
  return code::ok;
}

struct Attributes {  // as torch_npu reads them
  uint32_t location_id;
  int location_type;
  uint32_t page_size;
  uint32_t reserved[4];
};

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int aclrtMalloc(void** pointer, size_t bytes, int) {
  return on_device(__func__, [&](Device& device, Lock&) { return allocate(device.index, bytes, pointer); });
}

int aclrtMallocAlign32(void** pointer, size_t bytes, int) {
  return on_device(__func__, [&](Device& device, Lock&) { return allocate(device.index, bytes, pointer); });
}

int aclrtFree(void* pointer) {
  return call(__func__, [&](Lock&) { return release(pointer); });
}

int aclrtMallocHost(void** pointer, size_t bytes) {
  return call(__func__, [&](Lock&) { return allocate_host(pointer, bytes); });
}

int aclrtMallocHostWithCfg(void** pointer, uint64_t bytes, void*) {
  return call(__func__, [&](Lock&) { return allocate_host(pointer, bytes); });
}

int aclrtFreeHost(void* pointer) {
  return call(__func__, [&](Lock&) {
    if (!unpin(pointer)) return code::bad_argument;
    std::free(pointer);
    return code::ok;
  });
}

int aclrtHostRegister(void* pointer, uint64_t bytes, int, void** device_pointer) {
  return call(__func__, [&](Lock&) {
    pin(pointer, bytes);
    if (device_pointer) *device_pointer = pointer;
    return code::ok;
  });
}

int aclrtHostRegisterV2(void* pointer, uint64_t bytes, uint32_t) {
  return call(__func__, [&](Lock&) {
    pin(pointer, bytes);
    return code::ok;
  });
}

int aclrtHostUnregister(void* pointer) {
  return call(__func__, [&](Lock&) { return unpin(pointer) ? code::ok : code::bad_argument; });
}

int aclrtPointerGetAttributes(const void* pointer, Attributes* attributes) {
  return call(__func__, [&](Lock&) {
    *attributes = {};
    Place place = place_of(pointer);
    attributes->location_type = static_cast<int>(place);
    if (place == Place::device) attributes->location_id = device_of(pointer);
    return code::ok;
  });
}

int aclrtGetMemInfo(int, size_t* free, size_t* total) {
  return on_device(__func__, [&](Device& device, Lock&) {
    *total = machine().memory_bytes;
    *free = *total - used_bytes(device.index);
    return code::ok;
  });
}

int aclrtMemcpy(void* to, size_t room, const void* from, size_t bytes, int) {
  return on_device(__func__, [&](Device& device, Lock& lock) {
    return bytes > room ? code::bad_argument : now(Copy{to, from, bytes}, device, lock);
  });
}

int aclrtMemcpyAsync(void* to, size_t room, const void* from, size_t bytes, int, void* stream) {
  return on_stream(__func__, stream, [&](Stream& one, Lock& lock) {
    return bytes > room ? code::bad_argument : submit(Copy{to, from, bytes}, one, lock);
  });
}

int aclrtMemcpyAsyncWithCondition(void* to, size_t room, const void* from, size_t bytes, int, void* stream) {
  return on_stream(__func__, stream, [&](Stream& one, Lock& lock) {
    if (bytes > room) return code::bad_argument;
    if (int failed = submit(Copy{to, from, bytes}, one, lock)) return failed;
    bool pageable = place_of(to) == Place::pageable || place_of(from) == Place::pageable;
    return pageable && !one.capture ? one.synchronize(never, lock) : code::ok;
  });
}

int aclrtMemset(void* to, size_t room, int32_t value, size_t bytes) {
  return on_device(__func__, [&](Device& device, Lock& lock) {
    return bytes > room ? code::bad_argument : now(Fill{to, value, bytes}, device, lock);
  });
}

int aclrtMemsetAsync(void* to, size_t room, int32_t value, size_t bytes, void* stream) {
  return on_stream(__func__, stream, [&](Stream& one, Lock& lock) {
    return bytes > room ? code::bad_argument : submit(Fill{to, value, bytes}, one, lock);
  });
}

}  // extern "C"
#pragma GCC visibility pop
