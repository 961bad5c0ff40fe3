#include "graph.h"

#include <algorithm>
#include <unordered_map>

#include "codes.h"

namespace emu {

static std::unordered_map<const void*, std::shared_ptr<Graph>>& known() {
  static auto& table = *new std::unordered_map<const void*, std::shared_ptr<Graph>>;
  return table;
}

std::shared_ptr<Graph> Graph::find(const void* handle) {
  auto found = known().find(handle);
  return found == known().end() ? nullptr : found->second;
}

std::shared_ptr<Graph> Graph::forget(const void* handle) {
  auto graph = find(handle);
  if (!graph) return nullptr;
  for (auto& lane : graph->lanes) {
    if (lane) lane->destroy();
  }
  known().erase(handle);
  return graph;
}

// ---- capture ----

std::shared_ptr<Graph> Graph::begin(Stream& origin) {
  static int next_id = 1;
  auto graph = std::make_shared<Graph>();
  graph->id = next_id++;
  graph->members = {origin.shared_from_this()};
  graph->clocks = {{0}};
  origin.capture = graph;
  origin.branch = 0;
  known()[graph.get()] = graph;
  return graph;
}

Graph::Node& Graph::append(Stream& stream, Task task) {
  clocks[stream.branch][stream.branch]++;
  nodes.push_back({stream.branch, std::move(task), nullptr});
  return nodes.back();
}

int Graph::add(Stream& stream, Task task) {
  Node& node = append(stream, std::move(task));
  if (!stream.group) return code::ok;
  node.slot = std::make_shared<Slot>(Slot{node.task.name, node.task.size, std::move(node.task.body)});
  node.task.body = [slot = node.slot] {
    Lock lock = locked();
    auto body = slot->body;
    lock.unlock();
    body();
  };
  stream.group->slots.push_back(node.slot);
  return code::ok;
}

int Graph::record(Stream& stream, Event& event) {
  Node& node = append(stream, {});
  node.records = static_cast<int>(markers.size());
  markers.push_back(clocks[stream.branch]);
  event.graph = weak_from_this();
  event.marker = node.records;
  return code::ok;
}

int Graph::wait(Stream& stream, const Event& event) {
  if (!capturing || (stream.capture && stream.capture.get() != this)) return code::captured;
  if (!stream.capture) {
    stream.capture = shared_from_this();
    stream.branch = static_cast<int>(members.size());
    members.push_back(stream.shared_from_this());
    clocks.emplace_back();
    for (Clock& clock : clocks) clock.resize(members.size());
  }
  append(stream, {}).waits = event.marker;
  merge(clocks[stream.branch], markers[event.marker]);
  return code::ok;
}

void Graph::merge(Clock& into, const Clock& from) const {
  for (size_t branch = 0; branch < from.size(); branch++) into[branch] = std::max(into[branch], from[branch]);
}

// A branch may go on after its last join with records only: nothing that they mark is missed.
int Graph::end() {
  capturing = false;
  std::vector<size_t> tasks(members.size());
  Clock count(members.size());
  for (const Node& node : nodes) {
    count[node.branch]++;
    if (node.records < 0) tasks[node.branch] = count[node.branch];
  }
  bool joined = std::equal(tasks.begin(), tasks.end(), clocks[0].begin(), std::less_equal<>());
  for (auto& member : members) {
    member->capture.reset();
    member->group.reset();
  }
  return joined ? code::ok : code::captured;
}

// ---- replay ----

Task Graph::instance(const Node& node, std::vector<std::shared_ptr<Event>>& fresh) const {
  Task task = node.records >= 0 ? fresh[node.records]->record() : node.waits >= 0 ? fresh[node.waits]->wait() : node.task;
  if (node.records >= 0) task.seen = false;  // no host thread can look at it
  if (node.slot) task.size = node.slot->size;
  task.graph = id;
  return task;
}

int Graph::replay(Stream& target, Lock& lock) {
  int64_t at = now_ns();
  lanes.resize(std::max(lanes.size(), members.size()));
  std::vector<std::shared_ptr<Event>> fresh(markers.size());
  for (auto& event : fresh) event = std::make_shared<Event>();
  for (const Node& node : nodes) {
    if (node.branch && !lanes[node.branch]) lanes[node.branch] = Stream::create(target.device);
    Stream& stream = node.branch ? *lanes[node.branch] : target;
    Task task = instance(node, fresh);
    task.enqueued_ns = at;  // all of it at once
    if (int failed = stream.push(std::move(task), lock)) return failed;
  }
  return code::ok;
}

// ---- task update ----

int begin_update(Stream& stream, Group* group) {
  for (auto& [handle, graph] : known()) {
    for (auto& one : graph->groups) {
      if (one.get() == group) {
        stream.update = one;
        return code::ok;
      }
    }
  }
  return code::bad_handle;
}

int end_update(Stream& stream, Lock& lock) {
  auto group = std::exchange(stream.update, nullptr);
  auto updates = std::exchange(stream.updates, {});
  if (!group) return code::bad_argument;
  auto fits = [](const std::shared_ptr<Slot>& slot, const Task& task) { return slot->name == task.name; };
  if (!std::equal(group->slots.begin(), group->slots.end(), updates.begin(), updates.end(), fits)) return code::bad_argument;
  Task task;
  task.name = "task_update";
  task.seen = true;
  task.body = [group, updates] {
    Lock lock = locked();
    for (size_t i = 0; i < updates.size(); i++) {
      group->slots[i]->body = updates[i].body;
      group->slots[i]->size = updates[i].size;
    }
  };
  return stream.push(std::move(task), lock);
}

}  // namespace emu
