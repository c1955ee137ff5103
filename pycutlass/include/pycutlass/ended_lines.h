// The lines of tiles that threads join when they have no more tiles, of kernels whose threadblocks stay
// (function_sm90.h). Whoever joined a line as soon as it ended kept others waiting, was late with the next tile, and so
// the last one again: the same few threadblocks joined all lines.

#pragma once

#include "pycutlass/function_reduction.h"

namespace pycutlass {

/// The lines that a group of `kThreads` threads has ended: a list that goes through the workspace (`Partials::next`).
/// The group shares two `words`: the first line of the list, plus 1 (0 if there is none), and the line that it joins.
template <int kAxes, int kThreads, typename Number>
struct EndedLines {
  /// What a line counts beside its tiles: one group that has no more tiles. It ends the line, unless tiles of it are
  /// still to come. Lines that end early fall to the multiprocessors that are idle in the last wave.
  static constexpr unsigned kOthers = 1;

  CUTLASS_DEVICE static void begin(int* words, int thread) {
    if (thread == 0) words[0] = 0;
  }

  /// Puts the lines on the list that end with a tile, which `done` tells. One thread calls this.
  CUTLASS_DEVICE static void note(Partials<Number> const& partials, int* words, int done, int64_t batch, int tile_m,
                                  int tile_n) {
    CUTLASS_PRAGMA_UNROLL
    for (int axis = 0; axis < 3; ++axis) {
      if (done & kAxes & (1 << axis)) put(partials, words, partials.number({axis, batch, tile_m, tile_n}));
    }
  }

  /// Counts the group, number `own` of `all`, in its share of all lines, and puts those that it ends on the list. The
  /// first lines fall to the last groups, which have the fewest tiles.
  CUTLASS_DEVICE static void count_others(Partials<Number> const& partials, int* words, int64_t own, int64_t all,
                                          int thread) {
    if (function::warp_of(thread) != 0) return;
    int64_t const lines = partials.counters();
    CUTLASS_PRAGMA_NO_UNROLL
    for (int64_t from = all - 1 - own; from < lines; from += 32 * all) {
      int64_t const i = from + thread * all;
      unsigned ended = function::ballot(i < lines && TileCount::template ends<kAxes>(partials, i, kOthers));
      CUTLASS_PRAGMA_NO_UNROLL
      for (int64_t line = from; ended != 0; ended >>= 1, line += all) {
        if ((ended & 1) && thread == 0) put(partials, words, line);
      }
    }
  }

  /// Calls `join` with each line on the list. All threads of the group call this, whose number is 0 or 1.
  template <typename Join>
  CUTLASS_DEVICE static void join_all(Partials<Number> const& partials, int* words, int group, int thread,
                                      Join const& join) {
    auto const wait_for_group = [&] { cutlass::arch::NamedBarrier::sync(kThreads, kFirstBarrier + group); };
    while (true) {
      if (thread == 0) words[1] = taken(partials, words);
      wait_for_group();
      int const number = words[1];
      wait_for_group();
      if (number == 0) return;
      join(partials.line(number - 1));
    }
  }

 private:
  static constexpr int kFirstBarrier = 1;

  CUTLASS_DEVICE static void put(Partials<Number> const& partials, int* words, int64_t line) {
    *partials.next(line) = words[0];
    words[0] = int(line + 1);
  }
  /// Takes a line off the list, and returns its number, plus 1.
  CUTLASS_DEVICE static int taken(Partials<Number> const& partials, int* words) {
    int const line = words[0];
    if (line == 0) return 0;
    words[0] = *partials.next(line - 1);
    *partials.next(line - 1) = 0;
    return line;
  }
};

}  // namespace pycutlass
