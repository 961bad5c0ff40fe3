// How Python drives the emulator, by ctypes. Times are ns, sizes bytes; a name that is not known gives -1.
#include <algorithm>
#include <map>

#include "call.h"
#include "faults.h"
#include "memory.h"
#include "prices.h"
#include "trace.h"

using namespace emu;

namespace {

template <class Act>
void each_device(Act act) {
  for (int i = 0; Device* one = device(i); i++) act(*one);
}

// What `emu_set` can set on every device and stream.
const std::map<std::string, void (*)(int64_t)>& settings() {
  static const std::map<std::string, void (*)(int64_t)> table = {
      {"queue_capacity", [](int64_t tasks) { stream_limits().capacity = static_cast<size_t>(tasks); }},
      {"lead_ns", [](int64_t ns) { stream_limits().lead_ns = ns; }},
      {"timed", [](int64_t on) { prices().timed = on != 0; }},
      {"trace", [](int64_t on) { trace().on = on != 0; }},
      {"launch_latency_ns", [](int64_t ns) { each_device([=](Device& one) { one.launch_latency_ns = ns; }); }},
      {"aicpu_workers", [](int64_t n) { each_device([=](Device& one) { one.aicpu.resize(static_cast<size_t>(n)); }); }},
      {"shared_cores", [](int64_t on) { each_device([=](Device& one) { one.cores.shared = on != 0; }); }},
  };
  return table;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// Before the first call of ACL.
void emu_configure(int devices, int64_t memory_bytes, int cube_cores, int vector_cores, const char* soc, const char* cann) {
  machine() = {devices, memory_bytes, {static_cast<uint32_t>(cube_cores), static_cast<uint32_t>(vector_cores)}, soc, cann};
}

int emu_set(const char* name, int64_t value) {
  Lock lock = locked();
  auto found = settings().find(name);
  if (found == settings().end()) return -1;
  found->second(value);
  return 0;
}

// `points` > 0: a table of (sizes[i], ns[i]); else fixed + each * size. Infinite: it never ends.
void emu_price(int where, const char* name, double fixed, double each, int points, const int64_t* sizes, const double* ns) {
  Price price{fixed, each, {}};
  for (int i = 0; i < points; i++) price.at.emplace_back(sizes[i], ns[i]);
  Lock lock = locked();
  prices().set(where ? Where::aicpu : Where::device, name, price);
}

void emu_clear_prices() {
  Lock lock = locked();
  prices().clear();
}

void emu_fault(const char* name, int code, int64_t after, int sticky, int on_device) {
  Lock lock = locked();
  (on_device ? device_faults() : call_faults()).set(name, {code, after, sticky != 0});
}

void emu_clear_faults() {
  Lock lock = locked();
  call_faults().clear();
  device_faults().clear();
}

int emu_lose(int index, int code) {
  Lock lock = locked();
  if (!device(index)) return -1;
  lose(*device(index), code);
  return 0;
}

int emu_reset(int index) {
  Lock lock = locked();
  if (!device(index)) return -1;
  revive(*device(index), lock);
  return 0;
}

// The law of cores.h without threads: when `n` kernels end that begin, in this order, at `begins`.
void emu_play_cores(int n, const int64_t* begins, const double* works, const double* parts, int64_t* ends) {
  std::condition_variable nobody;
  std::vector<Cores::Run> runs;
  for (int i = 0; i < n; i++) runs.push_back({begins[i], works[i], parts[i], &nobody});
  Cores cores;
  for (auto& run : runs) cores.enter(run);
  cores.finish_until(never);
  for (int i = 0; i < n; i++) ends[i] = runs[i].end;
}

int64_t emu_calls(const char* name) { return calls_of(name); }

int64_t emu_trace_size() {
  Lock lock = locked();
  return static_cast<int64_t>(trace().records.size());
}

int64_t emu_trace_read(Record* out, int64_t most) {
  Lock lock = locked();
  auto n = std::min<int64_t>(most, static_cast<int64_t>(trace().records.size()));
  std::copy_n(trace().records.begin(), n, out);
  return n;
}

void emu_trace_clear() {
  Lock lock = locked();
  trace().records.clear();
}

int64_t emu_now_ns() { return now_ns(); }

int64_t emu_used_bytes(int index) {
  Lock lock = locked();
  return device(index) ? static_cast<int64_t>(used_bytes(index)) : -1;
}

int emu_streams(int index) {
  Lock lock = locked();
  return device(index) ? static_cast<int>(device(index)->streams.size()) : -1;
}

}  // extern "C"
#pragma GCC visibility pop
