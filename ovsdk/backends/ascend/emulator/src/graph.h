// A captured graph: the tasks of one or more streams, and how they depend on each other. All state under the one lock.
//
// The stream on which a capture begins is branch 0. A stream that waits for an event recorded in the capture joins it as a
// branch of its own. A replay puts branch 0 on the stream that it is given, the others on streams that the graph owns, with
// fresh events between them: branches run beside each other, and replays one after the other. At the end of a capture branch 0
// must have waited for everything (vector clocks tell): a fork that was not joined is an error.
//
// A task group holds tasks whose bodies may be replaced. A replacement is itself a task, on the stream that was named for it,
// and a replayed task reads its body when it is its turn: an update that comes too early or too late is wrong here, too.
#pragma once
#include <memory>
#include <vector>

#include "event.h"
#include "stream.h"

namespace emu {

struct Slot {
  std::string name;
  int64_t size;
  std::function<void()> body;
};

struct Group {
  std::vector<std::shared_ptr<Slot>> slots;
};

struct Graph : std::enable_shared_from_this<Graph> {
  static std::shared_ptr<Graph> begin(Stream& origin);
  static std::shared_ptr<Graph> find(const void* handle);
  static std::shared_ptr<Graph> forget(const void* handle);

  int add(Stream& stream, Task task);
  int record(Stream& stream, Event& event);
  int wait(Stream& stream, const Event& event);  // the stream may join by this
  int end();
  int replay(Stream& target, Lock& lock);

  int id;
  bool capturing = true;
  std::vector<std::shared_ptr<Group>> groups;
  std::vector<std::shared_ptr<void>> held;       // what lives as long as it does

 private:
  using Clock = std::vector<size_t>;             // of each branch, how many tasks come before
  struct Node {
    int branch;
    Task task;
    std::shared_ptr<Slot> slot;
    int records = -1, waits = -1;                // a marker's number
  };
  Node& append(Stream& stream, Task task);
  Task instance(const Node& node, std::vector<std::shared_ptr<Event>>& markers) const;
  void merge(Clock& into, const Clock& from) const;

  std::vector<Node> nodes;
  std::vector<std::shared_ptr<Stream>> members;  // by branch
  std::vector<std::shared_ptr<Stream>> lanes;                    // by branch; the first is unused
  std::vector<Clock> clocks;                     // by branch
  std::vector<Clock> markers;                    // by number
};

int begin_update(Stream& stream, Group* group);
int end_update(Stream& stream, Lock& lock);

}  // namespace emu
