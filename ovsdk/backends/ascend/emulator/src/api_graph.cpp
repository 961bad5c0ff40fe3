// ACL: capture, replay and update of graphs.
#include "call.h"
#include "graph.h"

using namespace emu;

#pragma GCC visibility push(default)
extern "C" {

int aclmdlRICaptureBegin(void* stream, int) {
  return on_stream(__func__, stream, [](Stream& one, Lock&) {
    if (one.capture) return code::captured;
    Graph::begin(one);
    return code::ok;
  });
}

int aclmdlRICaptureGetInfo(void* stream, int* status, void** graph) {
  return call(__func__, [&](Lock&) {
    auto one = Stream::find(stream);
    if (!one) return code::foreign_stream;
    if (status) *status = one->capture ? 1 : 0;
    if (graph) *graph = one->capture.get();
    return code::ok;
  });
}

int aclmdlRICaptureEnd(void* stream, void** graph) {
  std::shared_ptr<Graph> gone;  // what it holds is let go of outside of the lock
  return on_stream(__func__, stream, [&](Stream& one, Lock&) {
    auto captured = one.capture;
    if (!captured || one.branch) return code::bad_argument;
    int failed = captured->end();
    *graph = failed ? nullptr : captured.get();
    if (failed) gone = Graph::forget(captured.get());
    return failed;
  });
}

int aclmdlRIGetId(void* graph, uint32_t* id) {
  return call(__func__, [&](Lock&) {
    auto one = Graph::find(graph);
    if (one) *id = one->id;
    return one ? code::ok : code::bad_handle;
  });
}

int aclmdlRIExecuteAsync(void* graph, void* stream) {
  return on_stream(__func__, stream, [&](Stream& one, Lock& lock) {
    auto known = Graph::find(graph);
    return known ? known->replay(one, lock) : code::bad_handle;
  });
}

int aclmdlRIDestroy(void* graph) {
  std::shared_ptr<Graph> gone;
  return call(__func__, [&](Lock&) {
    gone = Graph::forget(graph);
    return gone ? code::ok : code::bad_handle;
  });
}

int aclmdlRICaptureTaskGrpBegin(void* stream) {
  return on_stream(__func__, stream, [](Stream& one, Lock&) {
    if (!one.capture || one.group) return code::bad_argument;
    one.group = std::make_shared<Group>();
    return code::ok;
  });
}

int aclmdlRICaptureTaskGrpEnd(void* stream, void** group) {
  return on_stream(__func__, stream, [&](Stream& one, Lock&) {
    if (!one.capture || !one.group) return code::bad_argument;
    *group = one.group.get();
    one.capture->groups.push_back(std::exchange(one.group, nullptr));
    return code::ok;
  });
}

int aclmdlRICaptureTaskUpdateBegin(void* stream, void* group) {
  return on_stream(__func__, stream, [&](Stream& one, Lock&) {
    return one.update || one.capture ? code::bad_argument : begin_update(one, static_cast<Group*>(group));
  });
}

int aclmdlRICaptureTaskUpdateEnd(void* stream) {
  return on_stream(__func__, stream, [](Stream& one, Lock& lock) { return end_update(one, lock); });
}

// Which calls of other threads a capture forbids is not emulated: they are allowed, as in the relaxed mode.
int aclmdlRICaptureThreadExchangeMode(int* mode) {
  static thread_local int in_force = 0;
  std::swap(*mode, in_force);
  return code::ok;
}

}  // extern "C"
#pragma GCC visibility pop
