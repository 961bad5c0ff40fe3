#include "cores.h"

#include <algorithm>
#include <cmath>

#include "state.h"

namespace emu {

int64_t Server::serve(int64_t ready, int64_t duration) {
  auto worker = std::min_element(free_at_.begin(), free_at_.end());
  *worker = std::max(ready, *worker) + duration;
  return *worker;
}

void Cores::enter(Run& run) {
  finish_until(run.since);
  advance(run.since);
  running_.push_back(&run);
  reprice();
}

void Cores::leave(Run& run) {
  finish_until(now_ns());
  if (!run.over) advance(now_ns());
  running_.erase(std::remove(running_.begin(), running_.end(), &run), running_.end());
  reprice();
}

// Ends, in order, the kernels whose end has passed though their threads have not woken yet.
void Cores::finish_until(int64_t now) {
  for (;;) {
    Run* first = nullptr;
    for (Run* run : running_) {
      if (!run->over && run->end <= now && (!first || run->end < first->end)) first = run;
    }
    if (!first) return;
    advance(first->end);
    first->over = true;
    reprice();
  }
}

// Work done up to `now` at the present rates. One that began later than `now` has done none.
void Cores::advance(int64_t now) {
  for (Run* run : running_) {
    if (run->over || now <= run->since) continue;
    run->left = std::max(0.0, run->left - static_cast<double>(now - run->since) * run->rate);
    run->since = now;
  }
}

void Cores::reprice() {
  double all = 0;
  for (Run* run : running_) all += run->over ? 0 : run->part;
  for (Run* run : running_) {
    if (run->over) continue;
    run->rate = run->part / (shared ? std::max(1.0, all) : 1.0);
    int64_t end = std::isinf(run->left) ? never : run->since + std::llround(run->left / run->rate);
    if (end != run->end) run->alarm->notify_all();
    run->end = end;
  }
}

}  // namespace emu
