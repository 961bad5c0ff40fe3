// ACL: events, and values in device memory that streams write and wait for.
#include "call.h"
#include "event.h"
#include "graph.h"
#include "memory.h"
#include "runtime.h"
#include "value.h"

using namespace emu;

namespace {

std::shared_ptr<Graph> capture_of(const Event& event) {
  auto graph = event.graph.lock();
  return graph && graph->capturing ? graph : nullptr;
}

int record(Event& event, Stream& stream, Lock& lock) {
  if (stream.capture) return stream.capture->record(stream, event);
  event.graph.reset();
  return stream.submit(event.record(), lock);
}

int wait(Event& event, Stream& stream, Lock& lock) {
  if (auto graph = capture_of(event)) return graph->wait(stream, event);
  if (stream.capture) return code::captured;  // it was recorded outside of the capture
  return stream.submit(event.wait(), lock);
}

template <class Body>
int on_event(const char* name, void* handle, Body&& body) {
  return call(name, [&](Lock& lock) {
    auto event = Event::find(handle);
    if (!event) return code::bad_handle;
    if (current_device() && current_device()->error) return current_device()->error;
    return body(*event, lock);
  });
}

constexpr uint32_t value_equals = 1;

int create(void** event, uint32_t flags) {
  *event = Event::make(flags).get();
  return code::ok;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int aclrtCreateEventExWithFlag(void** event, uint32_t flags) {
  return call(__func__, [&](Lock&) { return create(event, flags); });
}

int aclrtCreateEventWithFlag(void** event, uint32_t flags) {
  return call(__func__, [&](Lock&) { return create(event, flags); });
}

int aclrtDestroyEvent(void* event) {
  return call(__func__, [&](Lock&) { return Event::forget(event) ? code::ok : code::bad_handle; });
}

int aclrtRecordEvent(void* event, void* stream) {
  return on_event(__func__, event, [&](Event& one, Lock& lock) {
    auto on = Stream::find(stream);
    return on ? record(one, *on, lock) : code::foreign_stream;
  });
}

int aclrtStreamWaitEvent(void* stream, void* event) {
  return on_event(__func__, event, [&](Event& one, Lock& lock) {
    auto on = Stream::find(stream);
    return on ? wait(one, *on, lock) : code::foreign_stream;
  });
}

int aclrtSynchronizeEvent(void* event) {
  return on_event(__func__, event, [](Event& one, Lock& lock) {
    return capture_of(one) ? code::captured : one.synchronize(*current_device(), lock, never);
  });
}

int aclrtQueryEventStatus(void* event, int* status) {
  return on_event(__func__, event, [&](Event& one, Lock&) {
    if (capture_of(one)) return code::captured;
    *status = one.is_done() ? 1 : 0;
    return one.is_done() ? one.error : code::ok;
  });
}

int aclrtQueryEventWaitStatus(void* event, int* status) {
  return on_event(__func__, event, [&](Event& one, Lock&) {
    *status = one.is_done() ? 0 : 1;
    return code::ok;
  });
}

// torch_npu's external events, which a graph may wait for and others record: 1 is written, 1 is waited for and set back to 0.
int aclrtValueWrite(void* address, uint64_t value, uint32_t, void* stream) {
  return on_stream(__func__, stream, [&](Stream& one, Lock& lock) {
    return on_device(address) ? one.submit(write_value(address, value), lock) : code::bad_argument;
  });
}

int aclrtValueWait(void* address, uint64_t value, uint32_t comparison, void* stream) {
  return on_stream(__func__, stream, [&](Stream& one, Lock& lock) {
    if (comparison != value_equals) return not_emulated("aclrtValueWait for anything but equality");
    return on_device(address) ? one.submit(wait_for_value(address, value), lock) : code::bad_argument;
  });
}

int aclrtEventElapsedTime(float* ms, void* from, void* to) {
  return on_event(__func__, to, [&](Event& end, Lock&) {
    auto begin = Event::find(from);
    if (!begin) return code::bad_handle;
    bool timed = begin->flags & end.flags & Event::timing;
    if (!timed || !begin->done || !end.done) return code::event_has_no_time;
    *ms = static_cast<float>(static_cast<double>(end.at_ns - begin->at_ns) / 1e6);
    return code::ok;
  });
}

int aclrtEventGetTimestamp(void* event, uint64_t* us) {
  return on_event(__func__, event, [&](Event& one, Lock&) {
    *us = static_cast<uint64_t>(one.at_ns / 1000);
    return one.done ? code::ok : code::event_has_no_time;
  });
}

}  // extern "C"
#pragma GCC visibility pop
