// Devices, and which one a thread works with. All state under the one lock.
//
// A device that is lost keeps its error: every call on it returns the code, tasks are dropped, who waits is woken; until it
// is reset. Its primary context is the only one.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "cores.h"
#include "state.h"

namespace emu {

struct Stream;

// Kinds of cores that a kernel may be limited to, as ACL numbers them.
enum Core { cube_core, vector_core };
using Limit = std::array<uint32_t, 2>;

// Set before the first call of ACL, by `emu_configure`.
struct Machine {
  int devices = 1;
  int64_t memory_bytes = int64_t{2} << 30;  // of each device
  Limit cores = {20, 40};
  std::string soc = "Ascend910B3";
  std::string cann = "8.5.0";
};
Machine& machine();

struct Device {
  explicit Device(int number);
  int index;
  int error = 0;
  Limit limit = machine().cores;
  Cores cores;
  Server to_device{1}, to_host{1}, aicpu{4};
  int64_t launch_latency_ns = 0;
  std::map<const void*, std::shared_ptr<Stream>> streams;  // by handle, which is the address
  std::shared_ptr<Stream> default_stream;
};

Device* device(int index);          // null: there is none of that number
Device* current_device();           // of this thread; null: none is set
void use_device(Device* device);    // for this thread
void lose(Device& device, int code);
void abort_tasks(Device& device, Lock& lock);
void revive(Device& device, Lock& lock);  // what was enqueued is dropped

}  // namespace emu
