#include "state.h"

#include <chrono>

namespace emu {

std::mutex& state() {
  static std::mutex& one = *new std::mutex;
  return one;
}

int64_t now_ns() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void wait_until(std::condition_variable& bell, Lock& lock, int64_t deadline_ns) {
  if (deadline_ns == never) {
    bell.wait(lock);
  } else {
    bell.wait_until(lock, std::chrono::steady_clock::time_point(std::chrono::nanoseconds(deadline_ns)));
  }
}

}  // namespace emu
