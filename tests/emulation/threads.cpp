// Threads jump from one stack to another: with its checks, glibc takes that for a mistake and ends the program.
#undef _FORTIFY_SOURCE
#include "threads.h"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
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
  ucontext_t context;                                    // where it begins
  jmp_buf place;                                         // where it goes on
  std::unique_ptr<char[]> stack{new char[kStackBytes]};  // not filled: few pages of it are ever used
  bool begun, ended;
};

/// Counts those that wait; the last one lets all go on.
struct Barrier {
  int waiting = 0, first_warp = 0;
  long round = 0;
};

// One threadblock runs at a time, and its code finds it without being handed anything, as on a GPU.
std::vector<Thread> threads;
std::vector<Barrier> warps;
std::vector<char> slots;
std::array<Barrier, 16> barriers;  // of the block
std::function<void()> work;
jmp_buf scheduler;
int current, width;
std::optional<std::mt19937> lateness;
int late_warp, late_turns;
/// Whether a thread has begun, ended, or found what it waited for, in a turn of all; and whether some were late then.
bool has_moved, was_late;

// swapcontext would ask the system for a mask of signals each time, which takes longer than all else here.
void yield() {
  if (!_setjmp(threads[current].place)) _longjmp(scheduler, 1);
}
void go_on(Thread& thread) {
  if (_setjmp(scheduler)) return;
  if (thread.begun) _longjmp(thread.place, 1);
  thread.begun = true;
  setcontext(&thread.context);
}

void wait(Barrier& barrier, int parties) {
  long const round = barrier.round;
  barrier.first_warp = barrier.waiting ? std::min(barrier.first_warp, current / kWarp) : current / kWarp;
  if (++barrier.waiting == parties) {
    barrier.waiting = 0;
    ++barrier.round;
  }
  while (barrier.round == round) yield();
  has_moved = true;
}

void run_current() {
  has_moved = true;
  work();
  threads[current].ended = has_moved = true;
  yield();
}

/// Gives every thread its turn; false where all have ended.
bool step() {
  bool running = has_moved = false;
  was_late = late_turns > 0;
  for (current = 0; current < static_cast<int>(threads.size()); ++current) {
    if (threads[current].ended) continue;
    running = true;
    if (late_turns > 0 && current / kWarp == late_warp) continue;
    threadIdx = {static_cast<unsigned>(current % width), static_cast<unsigned>(current / width), 0};
    go_on(threads[current]);
  }
  if (late_turns > 0) --late_turns;
  return running;
}

}  // namespace

int lane() { return current % kWarp; }
char* slot(int lane) { return &slots[(current / kWarp * kWarp + lane) * kSlotBytes]; }
void wait_for_warp() { wait(warps[current / kWarp], kWarp); }
void wait_for_block() { wait_for_threads(0, static_cast<int>(threads.size())); }
void wait_until(std::function<bool()> const& holds) {
  while (!holds()) yield();
  has_moved = true;
}
void wait_for_threads(int number, int count) {
  Barrier& barrier = barriers.at(number);
  long const round = barrier.round;
  wait(barrier, count);
  // Whoever finds the next round begun and nobody late draws, until somebody is.
  if (!lateness || barrier.round != round + 1 || barrier.waiting || late_turns > 0) return;
  late_warp = barrier.first_warp + (*lateness)() % (count / kWarp);
  late_turns = (*lateness)() % 2 ? (*lateness)() % 200 : 0;
}
void be_late(unsigned seed) { lateness.emplace(seed); }

void run_block(uint3 block, int count, std::function<void()> body, int side_by_side, unsigned const* grid) {
  blockIdx = block;
  gridDim = grid ? dim3(grid[0], grid[1], grid[2]) : dim3(1, 1, 1);
  width = side_by_side ? side_by_side : count;
  work = std::move(body);
  threads.resize(count);  // with the stacks of the block before
  warps.assign(count / kWarp, {});
  slots.assign(count * kSlotBytes, 0);
  barriers = {};
  late_turns = 0;
  for (Thread& thread : threads) {
    thread.begun = thread.ended = false;
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.get();
    thread.context.uc_stack.ss_size = kStackBytes;
    makecontext(&thread.context, run_current, 0);
  }
  while (step()) {
    if (has_moved || was_late) continue;
    std::puts("threads wait for what never comes");
    std::exit(2);
  }
}

}  // namespace emulation
