#include "faults.h"

namespace emu {

Faults& call_faults() {
  static Faults& one = *new Faults;
  return one;
}

Faults& device_faults() {
  static Faults& one = *new Faults;
  return one;
}

Strike Faults::strike(const std::string& name) {
  if (table_.empty()) return {};
  auto found = table_.find(name);
  if (found == table_.end() || found->second.after-- > 0) return {};
  Strike strike{found->second.code, found->second.sticky};
  table_.erase(found);
  return strike;
}

}  // namespace emu
