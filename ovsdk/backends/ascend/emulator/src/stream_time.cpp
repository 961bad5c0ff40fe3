// How a task of a stream takes its time: the AICPU, then an engine or the cores. See stream.h for the law.
//
// A body runs in its time, not after it, so that what it really takes does not count; what others can see runs at the end.
#include <cmath>

#include "stream.h"

namespace emu {

// Does the task and takes its time; the emulated instant at which it ends.
int64_t Stream::play(Task& task, int64_t begin, Lock& lock) {
  int64_t end = spend(task, begin, lock);
  if (task.seen || end - now_ns() > stream_limits().lead_ns) sleep_until(end, lock);
  if (task.seen && !interrupted()) act(task, lock);
  return end;
}

int64_t Stream::spend(Task& task, int64_t begin, Lock& lock) {
  if (task.cost.aicpu > 0) begin = device.aicpu.serve(begin, std::llround(task.cost.aicpu));
  if (task.cost.device > 0) {
    Server* engine = task.name == "memcpy_h2d" ? &device.to_device : task.name == "memcpy_d2h" ? &device.to_host : nullptr;
    bool ends = !std::isinf(task.cost.device);
    return engine && ends ? engine->serve(begin, std::llround(task.cost.device)) : use_cores(task, begin, lock);
  }
  if (!task.seen) act(task, lock);
  return begin;
}

int64_t Stream::use_cores(Task& task, int64_t begin, Lock& lock) {
  Cores::Run run{begin, task.cost.device, part(), &alarm};
  device.cores.enter(run);
  task.seen ? let_go(lock) : act(task, lock);
  while (!run.over && !interrupted()) {
    int64_t lead = device.cores.alone() ? stream_limits().lead_ns : 0;
    if (run.end != never && run.end - now_ns() <= lead) break;
    wait_until(alarm, lock, run.end);
  }
  device.cores.leave(run);
  return interrupted() ? now_ns() : run.end;
}

void Stream::sleep_until(int64_t time, Lock& lock) {
  let_go(lock);
  while (now_ns() < time && !interrupted()) wait_until(alarm, lock, time);
}

}  // namespace emu
