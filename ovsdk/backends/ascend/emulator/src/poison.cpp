// An allocator for torch_npu that is as hostile as it may be: a block that nobody may use any more is poisoned at once.
//
// torch's caching allocator hands a freed block out again at once, to work that its stream does later; a program which still
// uses it elsewhere reads what happens to be there, often the right thing. Here there is no cache. A freed block is filled with
// 0xff (NaN as a float, -1 as an integer) and given back when all that was enqueued before on its own stream and on the
// streams recorded for it has run: what a correct program needs, and not an instant longer. A block made in a capture belongs
// to the graph: it lives until both are gone.
//
// torch_npu frees when Python does, which may be before its task queue has handed over the work that uses the block. So the
// note of a freed block goes through the same queue.
#include <dlfcn.h>
#include <pthread.h>

#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <unordered_map>

#include "call.h"
#include "graph.h"
#include "memory.h"
#include "runtime.h"

using namespace emu;

namespace {

struct Block {
  Block(void* pointer, size_t bytes) : pointer(pointer), bytes(bytes) {}
  ~Block() {
    std::memset(host_view(pointer), 0xff, bytes);
    release(pointer);
  }
  Block(const Block&) = delete;
  void* const pointer;
  const size_t bytes;
};

struct Use {
  std::shared_ptr<Block> block;
  std::set<std::shared_ptr<Stream>> streams;
};

std::unordered_map<void*, Use>& uses() {  // of blocks that torch has; under the state's lock
  static auto& table = *new std::unordered_map<void*, Use>;
  return table;
}

bool stay = false;  // blocks are no longer freed

// Every stream that may still use the block lets go of it in its turn; the last one poisons it.
int let_go(Use use) {
  Lock lock = locked();
  for (auto& stream : use.streams) {
    if (!stream || stream->stopping) continue;
    Task task;
    task.name = "block_freed";
    task.priced = false;
    task.body = [block = use.block] {};
    stream->push(std::move(task), lock);
  }
  lock.unlock();
  return code::ok;  // ~Use: without the lock
}

// A thread of torch_npu's own frees what it has handed over already.
bool on_torch_npus_thread() {
  char name[16] = "";
  pthread_getname_np(pthread_self(), name, sizeof name);
  return !std::strcmp(name, "acl_thread") || !std::strcmp(name, "release_thread");
}

// Runs `handler` when torch_npu's task queue has got there, or now if there is no queue. The function is torch_npu's own way of
// doing that: at_npu::native::OpCommand::RunOpApiV2(name, handler, sync).
void in_queue_order(const std::function<int()>& handler) {
  using Run = void (*)(const std::string&, const std::function<int()>&, bool);
  static const char* const symbol =
      "_ZN6at_npu6native9OpCommand10RunOpApiV2ERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEERKSt8functionIFivEEb";
  static void* library = dlopen("libtorch_npu.so", RTLD_LAZY | RTLD_NOLOAD);
  static Run run = library ? reinterpret_cast<Run>(dlsym(library, symbol)) : nullptr;
  if (!run) throw std::runtime_error("EMULATED NPU: this torch_npu has no OpCommand::RunOpApiV2: blocks cannot be poisoned");
  run("block_freed", handler, false);
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// As torch_npu's NPUPluggableAllocator calls them.
void* emu_block_allocate(ssize_t bytes, int index, void* stream) {
  void* pointer = nullptr;
  if (struck("emu_block_allocate") || allocate(index, static_cast<size_t>(bytes), &pointer)) {
    throw std::runtime_error("EMULATED NPU: out of memory, " + std::to_string(bytes) + " bytes asked for, " +
                             std::to_string(used_bytes(index)) + " in use; freed blocks are poisoned and nothing is cached");
  }
  Lock lock = locked();
  auto own = Stream::find(stream);
  Use& use = uses()[pointer] = {std::make_shared<Block>(pointer, bytes), {own}};
  if (own && own->capture) own->capture->held.push_back(use.block);
  return pointer;
}

void emu_block_free(void* pointer, size_t, int, void*) {
  Lock lock = locked();
  auto found = uses().find(pointer);
  if (stay || found == uses().end()) return;
  Use use = std::move(found->second);
  uses().erase(found);
  lock.unlock();
  if (on_torch_npus_thread()) {
    let_go(std::move(use));
  } else {  // torch_npu keeps the handler for a while, but not what it was for
    in_queue_order([held = std::make_shared<Use>(std::move(use))] { return let_go(std::move(*held)); });
  }
}

// The process ends.
void emu_blocks_stay() {
  Lock lock = locked();
  stay = true;
}

// torch's record_stream.
void emu_block_used(void* pointer, void* stream) {
  Lock lock = locked();
  auto found = uses().find(pointer);
  auto other = Stream::find(stream);
  if (found != uses().end() && other) found->second.streams.insert(other);
}

}  // extern "C"
#pragma GCC visibility pop
