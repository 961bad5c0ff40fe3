// A stream: a FIFO of tasks and the one thread that runs them, started by the first task.
//
// Time. E is the emulated instant at which the stream's last task ended. A task begins at max(E, when it was enqueued + the
// launch latency, what it waits for) and ends `cost` later, by what the device's cores and engines allow. The thread sleeps
// until then, once; being late is not added to what follows. It may run ahead of E by `lead_ns`, but not where anybody could
// see it: copies, records, host functions and an idle stream keep to the time.
//
// A queue holds at most `capacity` tasks: the enqueue of one more blocks.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device.h"
#include "prices.h"

namespace emu {

struct Graph;
struct Group;

struct Task {
  std::string name;
  int64_t size = 0;
  std::function<void()> body;                  // what it does; outside of the lock
  std::function<int64_t(Stream&, Lock&)> gate;  // waits until it may begin, and says since when it may
  std::function<void(int64_t, int)> ended;     // told its end and its error, under the lock; also if it was dropped
  bool seen = false;                           // others can see when it happens: it keeps to the time
  bool priced = true;
  int graph = 0;
  Cost cost = {};
  int64_t enqueued_ns = 0;
};

struct Stream : std::enable_shared_from_this<Stream> {
  Stream(Device& device, int id) : device(device), id(id) {}
  static std::shared_ptr<Stream> create(Device& device);
  // A null handle is the current device's default stream; a null result means that there is no such stream.
  static std::shared_ptr<Stream> find(void* handle);
  void destroy();                           // does what is queued, then its thread ends; nobody waits for that

  int submit(Task task, Lock& lock);        // from the host: to the capture or the task update that is under way, or `push`
  int push(Task task, Lock& lock);          // blocks while the queue is full
  int synchronize(int64_t deadline_ns, Lock& lock);
  void abort(Lock& lock);                   // drops its tasks and ends the one that runs
  bool drained() const { return queue.empty() && !running && ended_ns <= now_ns(); }
  bool interrupted() const { return aborting || device.error || error; }
  double part() const;                      // of the device's cores that its kernels may use
  void ring();                              // wakes whoever waits on this stream

  Device& device;
  const int id;
  int error = 0;                            // of a task that failed: the stream has stopped and drops what it is given
  Limit limit = {0, 0};                     // 0: the device's
  std::shared_ptr<Graph> capture;           // being captured into
  int branch = 0;                           // of the graph
  std::shared_ptr<Group> group;             // tasks of the capture are put there too
  std::shared_ptr<Group> update;            // its new tasks are collected in `updates`
  std::vector<Task> updates;

  std::deque<Task> queue;
  bool running = false, started = false, stopping = false;
  int aborting = 0;                         // threads that do
  int64_t ended_ns = 0;                     // E
  std::condition_variable work, alarm, idle, room;

 private:
  Task last;                                // has run; what its body holds is let go of outside of the lock
  void start();
  void run();
  bool next(Task& task, Lock& lock);
  void perform(Task task, Lock& lock);
  void let_go(Lock& lock);
  void act(Task& task, Lock& lock);
  int64_t play(Task& task, int64_t begin, Lock& lock);
  int64_t spend(Task& task, int64_t begin, Lock& lock);
  int64_t use_cores(Task& task, int64_t begin, Lock& lock);
  void sleep_until(int64_t time, Lock& lock);
};

struct StreamLimits {
  size_t capacity = 1024;
  int64_t lead_ns = 100'000;
};
StreamLimits& stream_limits();

}  // namespace emu
