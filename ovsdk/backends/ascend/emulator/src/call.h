// What every ACL function goes through: it is counted, may fail on purpose, holds the state's lock, and leaves its error behind.
//
// An ACL function is one line: `return call(__func__, [&](Lock& lock) { ... });` with what it does, which gives an ACL code.
// `on_device` is for what a lost device refuses.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>

#include "codes.h"
#include "device.h"
#include "state.h"
#include "stream.h"

namespace emu {

struct Api {
  const char* name;
  std::atomic<int64_t> calls{0};
};

Api& api(const char* name);        // made at its first call
int64_t calls_of(const std::string& name);
int struck(const char* name);      // under the lock: the code of a fault, or 0
int tell(const char* name, int code);  // notes it as this thread's last error
const std::string& last_message();
int& last_error();                 // of this thread

template <class Body>
int call(const char* name, Body&& body) {
  static Api& me = api(name);      // one of each function: `Body` is a type of its own
  me.calls.fetch_add(1, std::memory_order_relaxed);
  Lock lock = locked();
  int code = struck(name);
  if (!code) code = body(lock);
  return code ? tell(name, code) : code::ok;
}

template <class Body>
int on_device(const char* name, Body&& body) {
  return call(name, [&](Lock& lock) {
    Device* device = current_device();
    if (!device) return code::no_context;
    return device->error ? device->error : body(*device, lock);
  });
}

template <class Body>
int on_stream(const char* name, void* handle, Body&& body) {
  return call(name, [&](Lock& lock) {
    auto stream = Stream::find(handle);
    if (!stream) return current_device() ? code::foreign_stream : code::no_context;
    if (int failed = stream->device.error ? stream->device.error : stream->error) return failed;
    return body(*stream, lock);
  });
}

}  // namespace emu
