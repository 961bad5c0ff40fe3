// ACL: what the machine says about itself, and its log.
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "call.h"
#include "runtime.h"

using namespace emu;

namespace {

enum Capability { cube_cores, vector_cores, l2_bytes };  // as aclGetDeviceCapability numbers them

struct Version {  // as torch_npu reads it
  char version[128];
  char parts[4][64];
  char reserved[128];
};
constexpr int driver_package = 7;

}  // namespace

namespace emu {

int not_emulated(const char* what) {
  std::fprintf(stderr, "emulated NPU: %s is not emulated\n", what);
  return tell(what, code::not_emulated);
}

}  // namespace emu

#pragma GCC visibility push(default)
extern "C" {

const char* aclrtGetSocName() { return machine().soc.c_str(); }

int aclsysGetCANNVersion(int package, Version* version) {
  *version = {};
  std::snprintf(version->version, sizeof version->version, "%s", package == driver_package ? "25.5.0" : machine().cann.c_str());
  return code::ok;
}

int aclGetDeviceCapability(uint32_t, uint32_t what, int64_t* value) {
  switch (what) {
    case cube_cores: *value = machine().cores[cube_core]; return code::ok;
    case vector_cores: *value = machine().cores[vector_core]; return code::ok;
    case l2_bytes: *value = int64_t{192} << 20; return code::ok;
    default: return code::bad_argument;
  }
}

int aclrtGetDeviceInfo(uint32_t, int what, int64_t* value) {
  switch (what) {
    case 101: case 102: *value = machine().cores[cube_core]; return code::ok;
    case 201: *value = machine().cores[vector_core]; return code::ok;
    default: return code::bad_argument;
  }
}

int aclGetCannAttribute(int, int32_t* value) {  // asked for one: infinities and NaNs as IEEE 754 has them
  *value = 1;
  return code::ok;
}

const char* aclGetRecentErrMsg() { return last_message().c_str(); }
int aclrtPeekAtLastError(int) { return last_error(); }
int aclrtGetLastError(int) { return std::exchange(last_error(), 0); }

void aclAppLog(int level, const char* function, const char* file, uint32_t line, const char* format, ...) {
  static const char* wanted = std::getenv("OVSDK_EMULATE_LOG");  // the least level: 0 debug, 1 info, 2 warning, 3 error
  if (!wanted || level < std::atoi(wanted)) return;
  std::fprintf(stderr, "[emulated NPU, level %d, %s:%u %s] ", level, file, line, function);
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fputc('\n', stderr);
}

}  // extern "C"
#pragma GCC visibility pop
