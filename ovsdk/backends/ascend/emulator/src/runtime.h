// The seam between the emulated runtime (libascendcl.so) and the emulated operators (libopapi.so).
//
// An operator checks its arguments when it is called, on the host, and then enqueues what it does. The body runs later, on
// the stream's thread, and must not call the runtime. It reads and writes device memory through `host_view`: the address that
// torch_npu knows cannot be touched, so that host code which does fails at once.
#pragma once
#include <cstdint>
#include <functional>

namespace emu __attribute__((visibility("default"))) {

// The address at which a stream's thread finds what lies at `device_pointer`; other pointers come back as they are.
void* host_view(const void* device_pointer);

// Puts an operator on a stream (null: the default stream of the current device) and returns an ACL code, 0 for success.
// `elements` of the output price it, where the price is a table. Blocks while the stream's queue is full.
int enqueue(void* stream, const char* operator_name, std::function<void()> body, int64_t elements);

// Says on stderr what is not emulated, and returns the code for "not supported". An operator that meets a case which it has
// not been written for (a dtype, a mode) returns what this returns.
int not_emulated(const char* what);

}  // namespace emu
