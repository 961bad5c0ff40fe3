#include "prices.h"

#include <algorithm>
#include <stdexcept>

namespace emu {

Prices& prices() {
  static Prices& one = *new Prices;
  return one;
}

double Price::ns(const std::string& name, int64_t size) const {
  if (at.empty()) return fixed + each * static_cast<double>(size);
  if (size < at.front().first || size > at.back().first) {
    throw std::out_of_range(name + " is priced for sizes from " + std::to_string(at.front().first) + " to " +
                            std::to_string(at.back().first) + ", not for " + std::to_string(size));
  }
  auto next = std::lower_bound(at.begin(), at.end(), size, [](const auto& point, int64_t x) { return point.first < x; });
  if (next->first == size) return next->second;
  auto last = std::prev(next);
  double part = static_cast<double>(size - last->first) / static_cast<double>(next->first - last->first);
  return last->second + part * (next->second - last->second);
}

void Prices::clear() {
  for (auto& table : tables_) table.clear();
}

Cost Prices::cost(const std::string& name, int64_t size) const {
  if (!timed) return {};
  return {ns(Where::device, name, size), ns(Where::aicpu, name, size)};
}

double Prices::ns(Where where, const std::string& name, int64_t size) const {
  const auto& table = tables_[static_cast<int>(where)];
  if (table.empty()) return 0;
  auto found = table.find(name);
  if (found == table.end() && name.rfind("aclnn", 0) == 0) found = table.find("*");
  return found == table.end() ? 0 : found->second.ns(name, size);
}

}  // namespace emu
