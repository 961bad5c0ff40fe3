#include "trace.h"

#include <algorithm>
#include <cstring>

namespace emu {

Trace& trace() {
  static Trace& one = *new Trace;
  return one;
}

void name_record(Record& record, const std::string& name) {
  size_t length = std::min(name.size(), sizeof record.name - 1);
  std::memcpy(record.name, name.data(), length);
  record.name[length] = 0;
}

}  // namespace emu
