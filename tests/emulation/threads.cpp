#include "threads.h"

#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <random>
#include <utility>
#include <vector>

// Not const, as device_launch_parameters.h would have it: so this file does not include it.
uint3 threadIdx, blockIdx;
dim3 gridDim;

namespace emulation {
namespace {

constexpr int kWarp = 32, kStackBytes = 256 << 10;

struct Thread {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(kStackBytes);
  bool ended = false;
};

/// Counts those that wait; the last one lets all go on.
struct Barrier {
  int waiting = 0;
  long round = 0;
};

// One threadblock runs at a time, and its code finds it without being handed anything, as on a GPU.
std::vector<Thread> threads;
std::vector<Barrier> warps;
std::vector<char> slots;
Barrier block_barrier;
std::function<void()> work;
ucontext_t scheduler;
int current, width;
std::optional<std::mt19937> lateness;
int late_warp, late_turns;

void yield() { swapcontext(&threads[current].context, &scheduler); }

void wait(Barrier& barrier, int parties) {
  long const round = barrier.round;
  if (++barrier.waiting == parties) {
    barrier.waiting = 0;
    ++barrier.round;
  }
  while (barrier.round == round) yield();
}

void run_current() {
  work();
  threads[current].ended = true;
  yield();
}

/// Gives every thread its turn; false where all have ended.
bool step() {
  bool running = false;
  for (current = 0; current < static_cast<int>(threads.size()); ++current) {
    if (threads[current].ended) continue;
    running = true;
    if (late_turns > 0 && current / kWarp == late_warp) continue;
    threadIdx = {static_cast<unsigned>(current % width), static_cast<unsigned>(current / width), 0};
    swapcontext(&scheduler, &threads[current].context);
  }
  if (late_turns > 0) --late_turns;
  return running;
}

}  // namespace

int lane() { return current % kWarp; }
char* slot(int lane) { return &slots[(current / kWarp * kWarp + lane) * kSlotBytes]; }
void wait_for_warp() { wait(warps[current / kWarp], kWarp); }
void wait_for_block() {
  long const round = block_barrier.round;
  wait(block_barrier, static_cast<int>(threads.size()));
  // Whoever finds the next round begun and nobody late draws, until somebody is.
  if (!lateness || block_barrier.round != round + 1 || block_barrier.waiting || late_turns > 0) return;
  late_warp = (*lateness)() % warps.size();
  late_turns = (*lateness)() % 2 ? (*lateness)() % 200 : 0;
}
void be_late(unsigned seed) { lateness.emplace(seed); }

void run_block(uint3 block, int count, std::function<void()> body, int side_by_side, unsigned const* grid) {
  blockIdx = block;
  gridDim = grid ? dim3(grid[0], grid[1], grid[2]) : dim3(1, 1, 1);
  width = side_by_side ? side_by_side : count;
  work = std::move(body);
  threads = std::vector<Thread>(count);
  warps.assign(count / kWarp, {});
  slots.assign(count * kSlotBytes, 0);
  block_barrier = {};
  late_turns = 0;
  for (Thread& thread : threads) {
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.data();
    thread.context.uc_stack.ss_size = thread.stack.size();
    makecontext(&thread.context, run_current, 0);
  }
  for (long turns = 0; step(); ++turns) {
    if (turns > 10'000'000) {
      std::puts("threads wait for others that have ended");
      std::exit(2);
    }
  }
}

}  // namespace emulation
