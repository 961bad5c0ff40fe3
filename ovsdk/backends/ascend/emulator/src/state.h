// One mutex guards all state of the runtime, but for the memory's: no lock order, no torn state. What tasks do (bodies) runs
// outside of it.
//
// Nothing here is ever destroyed: torch_npu's threads and ours may outlive main().
#pragma once
#include <cstdint>
#include <condition_variable>
#include <mutex>

namespace emu {

using Lock = std::unique_lock<std::mutex>;

std::mutex& state();
inline Lock locked() { return Lock(state()); }

// CLOCK_MONOTONIC, which is what Python's time.monotonic_ns and perf_counter_ns read on Linux.
int64_t now_ns();
constexpr int64_t never = INT64_MAX;

// Waits on `bell` until it rings or the time has come; for `never` until it rings. Callers loop.
void wait_until(std::condition_variable& bell, Lock& lock, int64_t deadline_ns);

}  // namespace emu
