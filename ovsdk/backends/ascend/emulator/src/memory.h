// Memory of the devices, and which host memory is pinned. It has a lock of its own, the last that anybody takes.
//
// One shared mapping holds the memory of all devices and is mapped twice: where torch_npu sees it nothing may be touched, so
// that a host access is a SIGSEGV; at the other place streams' threads work with it. Pages take real memory when written.
#pragma once
#include <cstddef>

namespace emu {

enum class Place { pinned = 0, device = 1, pageable = 2 };  // as aclrtPointerGetAttributes numbers them

int allocate(int device, size_t bytes, void** out);
int release(void* pointer);
size_t used_bytes(int device);
bool on_device(const void* pointer);
int device_of(const void* pointer);

void pin(const void* pointer, size_t bytes);
bool unpin(const void* pointer);
Place place_of(const void* pointer);

}  // namespace emu
