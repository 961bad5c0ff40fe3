// libacl_op_compiler.so: options of a compiler that is not there. What torch_npu sets at its start is accepted.
#include <cstddef>
#include <cstdint>
#include <cstring>

#pragma GCC visibility push(default)
extern "C" {

int aclSetCompileopt(int, const char*) { return 0; }
size_t aclGetCompileoptSize(int) { return sizeof "disable"; }

int aclGetCompileopt(int, char* value, size_t size) {
  if (size < sizeof "disable") return 107000;
  std::memcpy(value, "disable", sizeof "disable");
  return 0;
}

int aclrtCtxSetSysParamOpt(int, int64_t) { return 0; }
int aclrtSetSysParamOpt(int, int64_t) { return 0; }

int aclrtGetSysParamOpt(int, int64_t* value) {
  *value = 0;
  return 0;
}

}  // extern "C"
#pragma GCC visibility pop
