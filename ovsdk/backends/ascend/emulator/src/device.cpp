#include "device.h"

#include <vector>

#include "event.h"
#include "stream.h"

namespace emu {

Machine& machine() {
  static Machine& one = *new Machine;
  return one;
}

Device::Device(int number) : index(number), default_stream(Stream::create(*this)) {}

static std::vector<Device*>& all() {
  static std::vector<Device*>& devices = *[] {
    auto* made = new std::vector<Device*>;
    for (int i = 0; i < machine().devices; i++) made->push_back(new Device(i));
    return made;
  }();
  return devices;
}

Device* device(int index) {
  return index < 0 || index >= static_cast<int>(all().size()) ? nullptr : all()[index];
}

static thread_local Device* current = nullptr;

Device* current_device() { return current; }
void use_device(Device* device) { current = device; }

void lose(Device& device, int code) {
  device.error = code;
  for (auto& [handle, stream] : device.streams) stream->ring();
  Event::ring_all();
}

void abort_tasks(Device& device, Lock& lock) {
  auto streams = device.streams;  // they come and go meanwhile
  for (auto& [handle, stream] : streams) stream->abort(lock);
}

void revive(Device& device, Lock& lock) {
  abort_tasks(device, lock);
  device.error = 0;
  for (auto& [handle, stream] : device.streams) {
    stream->error = 0;
    stream->capture.reset();
    stream->group.reset();
    stream->update.reset();
  }
}

}  // namespace emu
