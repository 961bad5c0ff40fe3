#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <map>
#include <mutex>
#include <vector>

#include "codes.h"
#include "device.h"
#include "runtime.h"

namespace emu {

namespace {

using Guard = std::lock_guard<std::mutex>;

std::mutex& memory_lock() {
  static auto& mutex = *new std::mutex;
  return mutex;
}

constexpr size_t unit = 512;  // what torch_npu rounds blocks up to

struct Heap {
  std::map<size_t, size_t> free, used;  // offset -> bytes
  size_t used_bytes = 0;
};

struct Arena {
  size_t each;
  char* seen;   // by torch_npu, PROT_NONE
  char* alias;  // by streams' threads
  std::vector<Heap> heaps;
};

char* map(int file, size_t bytes, int protection) {
  void* at = mmap(nullptr, bytes, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (at != MAP_FAILED) return static_cast<char*>(at);
  std::perror("emulated NPU: cannot map the device memory");
  std::abort();
}

Arena* make_arena() {
  auto* arena = new Arena;
  arena->each = (static_cast<size_t>(machine().memory_bytes) + unit - 1) / unit * unit;
  size_t all = arena->each * machine().devices;
  int file = memfd_create("emulated-npu", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(all))) {
    std::perror("emulated NPU: no memory for the devices");
    std::abort();
  }
  arena->seen = map(file, all, PROT_NONE);
  arena->alias = map(file, all, PROT_READ | PROT_WRITE);
  close(file);
  arena->heaps.resize(machine().devices);
  for (int i = 0; i < machine().devices; i++) arena->heaps[i].free[i * arena->each] = arena->each;
  return arena;
}

Arena& arena() {
  static Arena& one = *make_arena();
  return one;
}

size_t offset(const void* pointer) { return static_cast<const char*>(pointer) - arena().seen; }

std::map<uintptr_t, size_t>& pinned() {
  static auto& table = *new std::map<uintptr_t, size_t>;
  return table;
}

void join_neighbours(std::map<size_t, size_t>& free, std::map<size_t, size_t>::iterator block) {
  auto next = std::next(block);
  if (next != free.end() && block->first + block->second == next->first) {
    block->second += next->second;
    free.erase(next);
  }
  if (block == free.begin()) return;
  auto before = std::prev(block);
  if (before->first + before->second == block->first) {
    before->second += block->second;
    free.erase(block);
  }
}

}  // namespace

bool on_device(const void* pointer) {
  auto* p = static_cast<const char*>(pointer);
  return p >= arena().seen && p < arena().seen + arena().each * arena().heaps.size();
}

int device_of(const void* pointer) { return static_cast<int>(offset(pointer) / arena().each); }

void* host_view(const void* pointer) {
  return on_device(pointer) ? arena().alias + offset(pointer) : const_cast<void*>(pointer);
}

int allocate(int device, size_t bytes, void** out) {
  Guard guard(memory_lock());
  Heap& heap = arena().heaps[device];
  size_t needed = bytes ? (bytes + unit - 1) / unit * unit : unit;
  for (auto block = heap.free.begin(); block != heap.free.end(); ++block) {
    auto [at, size] = *block;
    if (size < needed) continue;
    heap.free.erase(block);
    if (size > needed) heap.free[at + needed] = size - needed;
    heap.used[at] = needed;
    heap.used_bytes += needed;
    *out = arena().seen + at;
    return code::ok;
  }
  return code::no_memory;
}

int release(void* pointer) {
  if (!on_device(pointer)) return code::bad_argument;
  Guard guard(memory_lock());
  Heap& heap = arena().heaps[device_of(pointer)];
  auto block = heap.used.find(offset(pointer));
  if (block == heap.used.end()) return code::bad_argument;
  auto [at, size] = *block;
  heap.used.erase(block);
  heap.used_bytes -= size;
  join_neighbours(heap.free, heap.free.emplace(at, size).first);
  return code::ok;
}

size_t used_bytes(int device) {
  Guard guard(memory_lock());
  return arena().heaps[device].used_bytes;
}

void pin(const void* pointer, size_t bytes) {
  Guard guard(memory_lock());
  pinned()[reinterpret_cast<uintptr_t>(pointer)] = bytes;
}

bool unpin(const void* pointer) {
  Guard guard(memory_lock());
  return pinned().erase(reinterpret_cast<uintptr_t>(pointer)) > 0;
}

Place place_of(const void* pointer) {
  if (on_device(pointer)) return Place::device;
  auto address = reinterpret_cast<uintptr_t>(pointer);
  Guard guard(memory_lock());
  auto after = pinned().upper_bound(address);
  if (after == pinned().begin()) return Place::pageable;
  auto block = std::prev(after);
  return address < block->first + block->second ? Place::pinned : Place::pageable;
}

}  // namespace emu
