// ACL return codes that the emulated runtime gives. The figures and their meanings are public: torch_npu prints them.
#pragma once

namespace emu::code {

constexpr int ok = 0;
constexpr int repeated_init = 100002;
constexpr int bad_argument = 107000;
constexpr int bad_device = 107001;
constexpr int no_context = 107002;
constexpr int foreign_stream = 107003;
constexpr int event_has_no_time = 107006;
constexpr int bad_handle = 107017;
constexpr int captured = 107027;  // not allowed while the stream is being captured, or a capture broke its rules
constexpr int not_emulated = 200001;  // "the interface is not supported"; torch_npu would only warn of its namesake 207000
constexpr int no_memory = 207001;
constexpr int lost = 507010;  // the device's heartbeat is gone
constexpr int kernel_failed = 507015;
constexpr int stream_timeout = 507046;
constexpr int event_timeout = 507047;

}  // namespace emu::code
