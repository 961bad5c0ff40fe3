#include "value.h"

#include <set>
#include <unordered_map>

#include "runtime.h"

namespace emu {

namespace {

std::set<std::condition_variable*>& waiting() {  // alarms of streams
  static auto& alarms = *new std::set<std::condition_variable*>;
  return alarms;
}

std::unordered_map<const void*, int64_t>& written_at() {  // emulated time of the latest write
  static auto& table = *new std::unordered_map<const void*, int64_t>;
  return table;
}

uint64_t& value_at(const void* address) { return *static_cast<uint64_t*>(host_view(address)); }

Task named(const char* name) {
  Task task;
  task.name = name;
  task.priced = false;
  return task;
}

}  // namespace

Task write_value(void* address, uint64_t value) {
  Task task = named("value_write");
  task.seen = true;
  task.ended = [=](int64_t end, int error) {
    if (error) return;
    value_at(address) = value;
    written_at()[address] = end;
    for (auto* alarm : waiting()) alarm->notify_all();
  };
  return task;
}

Task wait_for_value(const void* address, uint64_t value) {
  Task task = named("value_wait");
  task.gate = [=](Stream& stream, Lock& lock) {
    waiting().insert(&stream.alarm);
    while (value_at(address) != value && !stream.interrupted()) stream.alarm.wait(lock);
    waiting().erase(&stream.alarm);
    auto at = written_at().find(address);
    return at == written_at().end() ? 0 : at->second;
  };
  return task;
}

}  // namespace emu
