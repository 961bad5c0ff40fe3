// Events: markers in streams. All state under the one lock.
//
// Every record makes a new generation. A wait, and a synchronisation, concern the generation that is the latest when they are
// called, and none if there is none: an event that was never recorded is done. A record on a stream that has failed carries
// the stream's error, so that nobody takes its work for done.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <set>

#include "state.h"
#include "stream.h"

namespace emu {

struct Event : std::enable_shared_from_this<Event> {
  static constexpr uint32_t timing = 0x8;

  static std::shared_ptr<Event> make(uint32_t flags);   // known by its address
  static std::shared_ptr<Event> find(const void* handle);
  static bool forget(const void* handle);
  static void ring_all();

  bool is_done() const { return done >= recorded; }
  Task record();                        // a new generation; the task that ends it
  Task wait();                          // the task that waits for the latest one
  int synchronize(const Device& device, Lock& lock, int64_t deadline_ns);

  uint32_t flags = 0;
  uint64_t recorded = 0, done = 0;      // generations
  int error = 0;                        // of the latest done generation
  int64_t at_ns = 0;                    // when that was, in emulated time
  std::condition_variable bell;         // for host threads
  std::set<std::condition_variable*> waiting;  // streams' alarms
  std::weak_ptr<Graph> graph;           // of the capture in which it was recorded last
  int marker = -1;                      // its number there
};

}  // namespace emu
