// Operators of the graph engine (aclop): torch_npu falls back to them where it finds no aclnn operator. None is emulated. What
// describes one is accepted and says nothing; it is the execution that is refused, for that knows the operator's name.
//
// A refusal takes the device with it: torch_npu raises it once and drops what its task queue is given from then on, so what a program
// reads back later is whatever was in memory. On a lost device that is an error, too.
#include <cstddef>
#include <cstdint>
#include <string>

#include "codes.h"
#include "device.h"
#include "runtime.h"
#include "state.h"

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
  {
    emu::Lock lock = emu::locked();
    if (emu::Device* device = emu::current_device()) emu::lose(*device, emu::code::not_emulated);
  }
  return emu::not_emulated((std::string(operator_name) + " (an operator of the graph engine, for want of an aclnn one)").c_str());
}

}  // extern "C"
#pragma GCC visibility pop
