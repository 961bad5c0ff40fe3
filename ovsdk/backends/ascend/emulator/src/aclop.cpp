// Operators of the graph engine (aclop): torch_npu falls back to them where it finds no aclnn operator. None is emulated. What
// describes one is accepted and says nothing; it is the execution that is refused, for that knows the operator's name.
#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime.h"

static int description;  // what every description points to

#pragma GCC visibility push(default)
extern "C" {

void* aclCreateTensorDesc(int, int, const int64_t*, int) { return &description; }
void* aclCreateDataBuffer(void*, size_t) { return &description; }
void* aclopCreateAttr() { return &description; }

#define ACCEPT(NAME) \
  int NAME() { return 0; }

ACCEPT(aclGetTensorDescType)
ACCEPT(aclGetTensorDescFormat)
ACCEPT(aclGetTensorDescNumDims)
ACCEPT(aclDestroyTensorDesc)
ACCEPT(aclDestroyDataBuffer)
ACCEPT(aclopDestroyAttr)
ACCEPT(aclSetTensorDescName)
ACCEPT(aclSetTensorFormat)
ACCEPT(aclSetTensorPlaceMent)
ACCEPT(aclSetTensorShape)
ACCEPT(aclopSetAttrBool)
ACCEPT(aclopSetAttrDataType)
ACCEPT(aclopSetAttrFloat)
ACCEPT(aclopSetAttrInt)
ACCEPT(aclopSetAttrListBool)
ACCEPT(aclopSetAttrListFloat)
ACCEPT(aclopSetAttrListInt)
ACCEPT(aclopSetAttrListListInt)
ACCEPT(aclopSetAttrString)

int aclopCompileAndExecute(const char* operator_name) {
  return emu::not_emulated((std::string(operator_name) + " (an operator of the graph engine, for want of an aclnn one)").c_str());
}

}  // extern "C"
#pragma GCC visibility pop
