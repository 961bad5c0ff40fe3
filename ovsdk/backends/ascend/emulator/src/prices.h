// How long a task takes, by its name. All calls under the state's lock.
//
// A price is `fixed + each * size`, or a table of (size, ns), linear between its points and refused outside them. The size of
// an operator is the number of elements of its output, of a copy its bytes. Names: aclnn operators, memcpy_h2d, memcpy_d2h,
// memcpy_d2d, memset, task_update; "*" is any operator that has no price of its own. What has none takes no time.
// An operator may have a second price, for the AICPU, where it is before its kernel begins.
#pragma once
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace emu {

struct Price {
  double fixed = 0;
  double each = 0;
  std::vector<std::pair<int64_t, double>> at;
  double ns(const std::string& name, int64_t size) const;  // throws std::out_of_range
};

enum class Where { device, aicpu };

struct Cost {
  double device = 0;  // infinite: it never ends
  double aicpu = 0;
};

class Prices {
 public:
  void set(Where where, const std::string& name, const Price& price) { tables_[static_cast<int>(where)][name] = price; }
  void clear();
  Cost cost(const std::string& name, int64_t size) const;
  bool timed = true;  // false: record only, nothing takes time

 private:
  double ns(Where where, const std::string& name, int64_t size) const;
  std::unordered_map<std::string, Price> tables_[2];
};

Prices& prices();

}  // namespace emu
