#include "event.h"

#include <unordered_map>

#include "codes.h"

namespace emu {

static std::unordered_map<const void*, std::shared_ptr<Event>>& known() {
  static auto& table = *new std::unordered_map<const void*, std::shared_ptr<Event>>;
  return table;
}

std::shared_ptr<Event> Event::make(uint32_t flags) {
  auto event = std::make_shared<Event>();
  event->flags = flags;
  known()[event.get()] = event;
  return event;
}

std::shared_ptr<Event> Event::find(const void* handle) {
  auto found = known().find(handle);
  return found == known().end() ? nullptr : found->second;
}

bool Event::forget(const void* handle) { return known().erase(handle) > 0; }

void Event::ring_all() {
  for (auto& [handle, event] : known()) event->bell.notify_all();
}

static Task named(const char* name) {
  Task task;
  task.name = name;
  task.priced = false;
  return task;
}

Task Event::record() {
  Task task = named("event_record");
  uint64_t generation = ++recorded;
  task.seen = true;
  task.ended = [self = shared_from_this(), generation](int64_t end, int error) {
    if (generation <= self->done) return;  // a later record on a faster stream came first
    self->done = generation;
    self->error = error;
    self->at_ns = end;
    self->bell.notify_all();
    for (auto* alarm : self->waiting) alarm->notify_all();
  };
  return task;
}

Task Event::wait() {
  Task task = named("event_wait");
  uint64_t generation = recorded;
  task.gate = [self = shared_from_this(), generation](Stream& stream, Lock& lock) {
    self->waiting.insert(&stream.alarm);
    while (self->done < generation && !stream.interrupted()) stream.alarm.wait(lock);
    self->waiting.erase(&stream.alarm);
    return self->at_ns;
  };
  return task;
}

int Event::synchronize(const Device& device, Lock& lock, int64_t deadline_ns) {
  uint64_t generation = recorded;
  while (done < generation) {
    if (device.error) return device.error;
    if (now_ns() >= deadline_ns) return code::event_timeout;
    wait_until(bell, lock, deadline_ns);
  }
  return device.error ? device.error : error;
}

}  // namespace emu
