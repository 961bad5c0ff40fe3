#include "call.h"

#include <map>
#include <mutex>

#include "faults.h"

namespace emu {

static std::map<std::string, Api*>& all_apis() {
  static auto& table = *new std::map<std::string, Api*>;
  return table;
}

static std::mutex& naming() {
  static auto& mutex = *new std::mutex;
  return mutex;
}

Api& api(const char* name) {
  std::lock_guard<std::mutex> guard(naming());
  Api*& entry = all_apis()[name];
  if (!entry) entry = new Api{name};
  return *entry;
}

int64_t calls_of(const std::string& name) {
  std::lock_guard<std::mutex> guard(naming());
  auto found = all_apis().find(name);
  return found == all_apis().end() ? 0 : found->second->calls.load();
}

int struck(const char* name) {
  Strike strike = call_faults().strike(name);
  if (strike.sticky && current_device()) lose(*current_device(), strike.code);
  return strike.code;
}

static std::string& message() {
  static thread_local std::string text;
  return text;
}

const std::string& last_message() { return message(); }

int& last_error() {
  static thread_local int code = 0;
  return code;
}

int tell(const char* name, int code) {
  last_error() = code;
  message() = std::string("EMULATED NPU: ") + name + " returned " + std::to_string(code);
  return code;
}

}  // namespace emu
