// What a device does one after the other, or side by side, in emulated time. All calls under the state's lock.
//
//   Server   workers that take one job each at a time: a copy engine has one, the AICPU pool several.
//            begin = max(ready, when the first worker is free)
//   Cores    kernels of several streams share them. Stream i may use the part c_i of the cores; while kernels run beside
//            each other each advances at the rate c_i / max(1, sum of c): alone and unlimited a kernel takes its price.
//            A kernel that begins or ends changes the rates of the others from that instant on, exactly, however late the
//            threads that play it are.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <vector>

namespace emu {

class Server {
 public:
  explicit Server(size_t workers) : free_at_(workers, 0) {}
  void resize(size_t workers) { free_at_.assign(workers, 0); }
  // When a job ends that is ready at `ready` and takes `duration`.
  int64_t serve(int64_t ready, int64_t duration);

 private:
  std::vector<int64_t> free_at_;
};

class Cores {
 public:
  struct Run {
    int64_t since;                         // `left` is as of then
    double left;                           // ns of work on all cores; infinite: it never ends
    double part;                           // of the cores that its stream may use, in (0, 1]
    std::condition_variable* alarm;        // rings when `end` changes
    int64_t end = 0;                       // as far as is known now
    double rate = 1;
    bool over = false;
  };
  void enter(Run& run);
  void leave(Run& run);  // at run.end, or before it if it was interrupted
  void finish_until(int64_t now);
  bool alone() const { return running_.size() == 1; }
  bool shared = true;    // false: kernels do not slow each other down

 private:
  void advance(int64_t now);
  void reprice();
  std::vector<Run*> running_;
};

}  // namespace emu
