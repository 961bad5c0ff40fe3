#include "stream.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cstdio>
#include <stdexcept>
#include <thread>

#include "call.h"
#include "codes.h"
#include "faults.h"
#include "graph.h"
#include "trace.h"

namespace emu {

StreamLimits& stream_limits() {
  static StreamLimits limits;
  return limits;
}

std::shared_ptr<Stream> Stream::create(Device& device) {
  static int next_id = 0;
  auto stream = std::make_shared<Stream>(device, next_id++);
  device.streams[stream.get()] = stream;
  return stream;
}

std::shared_ptr<Stream> Stream::find(void* handle) {
  if (!handle) return current_device() ? current_device()->default_stream : nullptr;
  for (int i = 0; Device* one = emu::device(i); i++) {
    auto found = one->streams.find(handle);
    if (found != one->streams.end() && !found->second->stopping) return found->second;
  }
  return nullptr;
}

void Stream::destroy() {
  stopping = true;
  work.notify_one();
  if (!started) device.streams.erase(this);
}

void Stream::abort(Lock& lock) {
  aborting++;
  ring();
  while (running || !queue.empty()) idle.wait(lock);
  ended_ns = std::min(ended_ns, now_ns());
  aborting--;
}

void Stream::ring() {
  for (auto* bell : {&work, &alarm, &idle, &room}) bell->notify_all();
}

double Stream::part() const {
  double part = 1;
  for (Core kind : {cube_core, vector_core}) {
    double cores = limit[kind] ? limit[kind] : device.limit[kind];
    part = std::min(part, cores / machine().cores[kind]);
  }
  return part;
}

// ---- from the host ----

int Stream::submit(Task task, Lock& lock) {
  if (int failed = struck(task.name.c_str())) return tell(task.name.c_str(), failed);
  if (update) {
    updates.push_back(std::move(task));
    return code::ok;
  }
  if (capture) return capture->add(*this, std::move(task));
  return push(std::move(task), lock);
}

// False: its price is a table that does not go so far.
static bool price(Task& task) {
  try {
    task.cost = prices().cost(task.name, task.size);
    return true;
  } catch (const std::out_of_range& what) {
    std::fprintf(stderr, "emulated NPU: %s\n", what.what());
    return false;
  }
}

int Stream::push(Task task, Lock& lock) {
  if (task.priced && !price(task)) return code::bad_argument;
  bool bounded = !task.graph;  // a replay is one task of the queue, however many it stands for
  while (bounded && queue.size() >= stream_limits().capacity && !interrupted()) room.wait(lock);
  if (int failed = device.error ? device.error : error) return failed;
  if (!task.enqueued_ns) task.enqueued_ns = now_ns();
  queue.push_back(std::move(task));
  if (!started) start();
  work.notify_one();
  return code::ok;
}

int Stream::synchronize(int64_t deadline_ns, Lock& lock) {
  if (capture) return code::captured;
  while (!drained() && !interrupted()) {
    if (now_ns() >= deadline_ns) return code::stream_timeout;
    wait_until(idle, lock, deadline_ns);
  }
  return device.error ? device.error : error;
}

// ---- its thread ----

void Stream::start() {
  started = true;
  std::thread([self = shared_from_this()] { self->run(); }).detach();
}

void Stream::run() {
  pthread_setname_np(pthread_self(), ("emu-stream-" + std::to_string(id)).substr(0, 15).c_str());
  prctl(PR_SET_TIMERSLACK, 1000);  // ns; the default lets a sleep last 50 us longer
  Lock lock = locked();
  for (Task task; next(task, lock);) perform(std::move(task), lock);
  device.streams.erase(this);
}

// Waits for the next task; false once the stream was destroyed. Until its last task's end a stream without tasks is not idle.
bool Stream::next(Task& task, Lock& lock) {
  while (queue.empty()) {
    let_go(lock);
    if (!queue.empty()) break;
    running = false;
    bool settled = stopping || ended_ns <= now_ns() || interrupted();
    if (settled) idle.notify_all();
    if (stopping) return false;
    wait_until(work, lock, settled ? never : ended_ns);
  }
  task = std::move(queue.front());
  queue.pop_front();
  running = true;
  room.notify_one();
  return true;
}

void Stream::perform(Task task, Lock& lock) {
  int64_t begin = std::max(ended_ns, task.enqueued_ns + (task.priced ? device.launch_latency_ns : 0));
  if (task.gate) begin = std::max(begin, task.gate(*this, lock));
  Strike strike = device_faults().strike(task.name);
  if (strike.code) (strike.sticky ? lose(device, strike.code) : void(error = strike.code));
  if (!interrupted()) ended_ns = play(task, begin, lock);
  int failed = device.error ? device.error : error;
  if (task.ended) task.ended(ended_ns, failed);
  Record record{{}, device.index, id, task.graph, failed, task.size, task.enqueued_ns, begin, ended_ns, now_ns()};
  name_record(record, task.name);
  trace().add(record);
  last = std::move(task);
}

void Stream::let_go(Lock& lock) {
  if (!last.body) return;
  lock.unlock();
  last = {};
  lock.lock();
}

// A body that throws is a kernel that failed: the stream stops.
void Stream::act(Task& task, Lock& lock) {
  if (!task.body) return let_go(lock);
  lock.unlock();
  last = {};
  int failed = code::ok;
  try {
    task.body();
  } catch (const std::exception& what) {
    std::fprintf(stderr, "emulated NPU: %s failed: %s\n", task.name.c_str(), what.what());
    failed = code::kernel_failed;
  }
  lock.lock();
  if (failed) error = failed;
}

}  // namespace emu
