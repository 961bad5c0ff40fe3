// runtime.h for the operators' library: what it gets from the runtime.
#include <stdexcept>
#include <utility>

#include "call.h"
#include "faults.h"
#include "runtime.h"

namespace emu {

int enqueue(void* stream, const char* operator_name, std::function<void()> body, int64_t elements) {
  Lock lock = locked();
  auto one = Stream::find(stream);
  if (!one) return tell(operator_name, code::foreign_stream);
  Task task;
  task.name = operator_name;
  task.size = elements;
  task.body = std::move(body);
  int failed = one->submit(std::move(task), lock);
  return failed ? tell(operator_name, failed) : code::ok;
}

}  // namespace emu
