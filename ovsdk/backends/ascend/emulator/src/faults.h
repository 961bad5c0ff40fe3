// Errors on purpose, and what is counted of every call.
//
// A fault names an API function (the call returns the code and does nothing), or a task as the trace names it: its enqueue
// fails, or, `on_device`, its execution. It strikes after `after` calls that pass, once; a sticky one takes the whole device
// with it, which then answers every call with the code until it is reset.
#pragma once
#include <cstdint>
#include <string>
#include <unordered_map>

namespace emu {

struct Fault {
  int code;
  int64_t after;
  bool sticky;
};

struct Strike {
  int code = 0;
  bool sticky = false;
};

// One table of faults. Under the state's lock.
class Faults {
 public:
  void set(const std::string& name, Fault fault) { table_[name] = fault; }
  void clear() { table_.clear(); }
  Strike strike(const std::string& name);

 private:
  std::unordered_map<std::string, Fault> table_;
};

Faults& call_faults();
Faults& device_faults();

}  // namespace emu
