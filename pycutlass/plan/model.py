"""How long candidates take, predicted from what is known of the GPU, without measuring.

A kernel begins, works off its tiles in waves, and ends; meanwhile memory delivers the operands, and power limits how
fast tensor cores multiply. What takes longest hides most of the rest:

    start + larger(waves, memory, power) + what adds up slices of K

where `larger` is a norm of a high order, a maximum that does not jump. docs/guide/which-tile.md has the terms in words.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from pycutlass.plan.candidate import Candidate
from pycutlass.plan.features import Features, Floats
from pycutlass.plan.gpus import Constants
from pycutlass.plan.kind import GemmKind

__all__ = ["Model", "Prediction"]

#: Order of the norm. Of two terms that are equal, the sum takes 1.12 times as long as either.
_ORDER = 6.0
#: K of one instruction of wgmma in bytes, its rows, and what shared memory delivers in a cycle, in bytes.
_WGMMA_BYTES, _WGMMA_ROWS, _SHARED_BYTES = 32.0, 64.0, 128.0
_PARTIAL_BYTES = 4.0  # of a partial sum
_L2_SHARE = 0.6  # of the L2 cache that operands may fill and still stay


@dataclass(frozen=True)
class Prediction:
    """What the model says of each candidate: arrays in their order.

    Attributes
    ----------
    microseconds : array
        Of the whole launch, and of the reduction behind it where there is one.
    waves : array
        How many tiles a multiprocessor computes one after the other.
    multiplying, memory, power, adding : array
        Terms of the time, in microseconds: tiles in waves, operands from memory, tensor cores at the clock that power
        allows, and what adds up slices of K.
    """

    microseconds: Floats
    waves: Floats
    multiplying: Floats
    memory: Floats
    power: Floats
    adding: Floats

    def note(self, place: int) -> str:
        """Return what limits a candidate."""
        terms = {
            "multiplying tile by tile": self.multiplying[place],
            "reading and writing memory": self.memory[place],
            "the clock that power allows": self.power[place],
            "adding up slices of K": self.adding[place],
        }
        return f"limited by {max(terms, key=lambda name: float(terms[name]))}"


class Model:
    """Predicts how long the candidates of a kind take on a GPU.

    Parameters
    ----------
    kind : GemmKind
        What is computed.
    candidates : tuple of Candidate
        The kernels, with the options of their launches.
    constants : Constants
        What is known of the GPU.
    """

    def __init__(self, kind: GemmKind, candidates: tuple[Candidate, ...], constants: Constants) -> None:
        self.kind, self.candidates, self.constants = kind, candidates, constants
        self.features = Features.of(candidates, constants.capability)
        self._bytes = tuple(operand.type.bits / 8 for operand in (kind.A, kind.B, kind.D))

    def predict(self, m: int, n: int, k: int, batch: int | None = None) -> Prediction:
        """Return how long each candidate takes for a problem, whether it takes it or not."""
        f, g = self.features, self.constants
        batches = 1 if batch is None else batch
        rows, columns = np.where(f.is_transposed, n, m), np.where(f.is_transposed, m, n)
        along_m = _up(np.ceil(rows / f.rows), f.cluster_rows)
        along_n = _up(np.ceil(columns / f.columns), f.cluster_columns)
        in_slices = np.where(f.is_stream_k & (f.slices == 1), 1.0, f.slices)
        k_tiles = np.maximum(np.ceil(np.ceil(k / in_slices) / f.depth), 1.0)
        tiles = along_m * along_n * (batches * in_slices)
        waves = np.ceil(tiles / self._places)
        multiplying = self._multiplying(tiles, waves, k_tiles)
        computed = tiles * self._macs_of_depth * k_tiles
        power = computed / self._sustained
        memory = self._memory(m, n, k, batches, along_m, along_n, waves)
        adding = self._adding(m, n, batches, tiles, k_tiles)
        work = (multiplying**_ORDER + memory**_ORDER + power**_ORDER) ** (1 / _ORDER)
        total = np.where(f.is_gemv, self._gemv(m, n, k, batches, along_m, along_n), self._start + work + adding)
        return Prediction(total, waves, multiplying, memory, power, adding)

    def _multiplying(self, tiles: Floats, waves: Floats, k_tiles: Floats) -> Floats:
        """Return the microseconds of all waves of tiles."""
        f, wave, depth = self.features, self._wave, self._depth
        # Stream-K gives each place as many k-tiles as any other; what else ends between tiles has a last wave of which
        # each place has fewer tiles at once.
        even = tiles * k_tiles / self._places
        in_full = np.floor(tiles / self._places)
        rest = np.ceil((tiles - in_full * self._places) / self._multiprocessors)
        whole = in_full * (wave + depth * k_tiles) + np.minimum(rest, 1.0) * wave + self._depth_of(rest) * k_tiles
        if self._fitted is not None:
            measured, last_wave, last_depth = self._fitted
            whole = np.where(
                measured, in_full * (wave + depth * k_tiles) + (rest > 0) * (last_wave + last_depth * k_tiles), whole
            )
        divided = f.is_stream_k & (f.slices == 1) & (waves * self._places > tiles)
        result: Floats = np.where(divided, wave + depth * even, whole)
        return result

    def _depth_of(self, tiles: Floats) -> Floats:
        """Return the microseconds of a k-tile of a wave in which a multiprocessor has so many tiles at once."""
        one: Floats = np.maximum(self._latency, self._depth / self.features.occupancy * tiles)
        return np.where(tiles > 0, one, 0.0)

    def _memory(self, m: int, n: int, k: int, batches: int, along_m: Floats, along_n: Floats, waves: Floats) -> Floats:
        """Return the microseconds in which memory delivers the operands and takes D.

        Operands that do not stay in the L2 cache are read again by each wave, as far as its tiles do not share them;
        a swizzle makes a wave's tiles a square rather than a strip.
        """
        f, g = self.features, self.constants
        of_a, of_b, of_d = self._bytes
        once = batches * (m * k * of_a + k * n * of_b + m * n * of_d)
        inputs = m * k * of_a + k * n * of_b
        start = g.native["dram_start_us"]
        if inputs <= _L2_SHARE * g.l2_bytes:
            return np.full(len(self.candidates), once / (g.dram_gb_per_s * 1e3) + start)
        shorter, longer = np.minimum(along_m, along_n), np.maximum(along_m, along_n)
        across = np.minimum(
            np.minimum(shorter, f.swizzle * np.maximum(1.0, np.ceil(self._places / longer))), self._places
        )
        along = np.minimum(longer, np.ceil(self._places / across))
        fewer_rows = along_m <= along_n
        wave_rows, wave_columns = np.where(fewer_rows, across, along), np.where(fewer_rows, along, across)
        read = wave_rows * f.rows * (k * of_a) + wave_columns * f.columns * (k * of_b)
        again = batches * np.minimum(waves * read, (along_n + along_m) * inputs)
        result: Floats = np.maximum(once, again + batches * m * n * of_d) / (g.dram_gb_per_s * 1e3) + start
        return result

    def _adding(self, m: int, n: int, batches: int, tiles: Floats, k_tiles: Floats) -> Floats:
        """Return the microseconds of adding up what slices of K have summed."""
        f, g = self.features, self.constants
        peers = np.where(f.is_serial, f.slices, 1.0)
        split = np.maximum(np.ceil(self._places / np.maximum(tiles, 1.0)), 1.0)
        uneven = (tiles < self._places) | (np.mod(tiles, self._places) > 0)
        divided = f.is_stream_k & (f.slices == 1) & uneven
        peers = np.where(divided, split, peers)
        of_tile = f.rows * f.columns * _PARTIAL_BYTES * 2
        fixup = np.where(peers > 1, peers * of_tile / self._fixup + self._fixed, 0.0)
        partial = f.slices * (m * n * _PARTIAL_BYTES * 2) / (g.dram_gb_per_s * 1e3)
        result: Floats = np.where(f.is_parallel, self._reduction + partial, fixup)
        return result

    def _gemv(self, m: int, n: int, k: int, batches: int, along_m: Floats, along_n: Floats) -> Floats:
        """Return the microseconds of kernels of CUDA cores, which wait for memory or convert and multiply."""
        f, g = self.features, self.constants
        of_a, of_b, of_d = self._bytes
        read = batches * (m * k * of_a + k * n * of_b + m * n * of_d) * along_m
        blocks = along_m * along_n * batches
        at_once = np.minimum(blocks, g.sm_count * f.occupancy)
        in_flight = at_once * f.columns * f.deep_bytes  # a thread loads all of its part of a tile before it multiplies
        bandwidth = np.minimum(g.dram_gb_per_s * g.gemv["efficiency"] * 1e3, in_flight / g.gemv["latency_us"])
        per_cycle = g.gemv["macs_per_cycle"] * np.minimum(at_once, g.sm_count)
        macs = blocks * f.rows * f.columns * (np.ceil(k / f.depth) * f.depth)
        computing = macs / (per_cycle * g.clock_ghz * 1e3)
        result: Floats = g.gemv["start_us"] + np.maximum(read / bandwidth, computing)
        return result

    @cached_property
    def _multiprocessors(self) -> Floats:
        """Multiprocessors that clusters can fill."""
        f = self.features
        size = f.cluster_rows * f.cluster_columns
        result: Floats = np.maximum(self.constants.sm_count // size, 1) * size
        return result

    @cached_property
    def _places(self) -> Floats:
        """Tiles that are computed at once."""
        result: Floats = self._multiprocessors * self.features.occupancy
        return result

    @cached_property
    def _macs_of_depth(self) -> Floats:
        result: Floats = self.features.rows * self.features.columns * self.features.depth
        return result

    @cached_property
    def _macs_per_us(self) -> Floats:
        """Multiply-adds that the whole GPU makes in a microsecond at its full clock."""
        g = self.constants
        rates = np.array([g.macs_per_cycle[name] for name in self.features.classes])
        result: Floats = rates * (g.sm_count * g.clock_ghz * 1e3)
        return result

    @cached_property
    def _sustained(self) -> Floats:
        """Multiply-adds of a microsecond that power allows."""
        g = self.constants
        shares = np.array([g.sustained[name] for name in self.features.classes])
        native = self._macs_per_us * shares
        efficiency = np.array([g.ampere["efficiency"][name] for name in self.features.classes])
        result: Floats = np.where(self.features.is_native, native, self._macs_per_us * np.minimum(shares, efficiency))
        return result

    @cached_property
    def _depth(self) -> Floats:
        """Microseconds of a k-tile in a full wave: multiplying, or loading it from the L2 cache."""
        f, g = self.features, self.constants
        cycle = g.clock_ghz * 1e3
        rates = np.array([g.macs_per_cycle[name] for name in f.classes])
        efficiency = np.array([g.ampere["efficiency"][name] for name in f.classes])
        # wgmma reads A and B from shared memory; with few columns it waits for A.
        steps = f.rows / _WGMMA_ROWS * (f.deep_bytes / _WGMMA_BYTES)
        by_shared = steps * (_WGMMA_ROWS + f.columns) * _WGMMA_BYTES / _SHARED_BYTES
        multiplied = np.where(
            f.is_native,
            np.maximum(self._macs_of_depth / (rates * g.native["efficiency"]), by_shared),
            self._macs_of_depth * f.occupancy / (rates * efficiency),
        )
        multiplied = multiplied * np.where(f.promotes, g.native["promotion"], 1.0)
        loaded = (f.rows / f.cluster_columns + f.columns / f.cluster_rows) * f.deep_bytes * f.occupancy
        cycles = np.maximum(multiplied, loaded / g.l2_bytes_per_cycle)
        depth = np.maximum(cycles / cycle, self._latency)
        return self._measured("depth", depth)

    @cached_property
    def _latency(self) -> Floats:
        """Least microseconds of a k-tile of an Ampere-style kernel: its warps wait for each other and for memory."""
        f, g = self.features, self.constants
        least: Floats = np.where(f.is_native, 0.0, g.ampere["depth_cycles"] / (g.clock_ghz * 1e3))
        return least

    @cached_property
    def _wave(self) -> Floats:
        """Microseconds of a wave beside its k-tiles: the epilogue, which pingpong kernels hide behind the next tile."""
        f, g = self.features, self.constants
        cycle = g.clock_ghz * 1e3
        written = f.rows * f.columns * (self._bytes[2] / cycle)
        cooperative = g.native["cooperative_wave_us"] + written / g.native["epilogue_bytes_per_cycle"]
        native = np.where(f.is_pingpong, g.native["pingpong_wave_us"], cooperative)
        wave = np.where(f.is_native, native, g.ampere["wave_us"] + written / g.l2_bytes_per_cycle)
        return self._measured("wave", wave)

    @cached_property
    def _start(self) -> Floats:
        """Microseconds before the first and after the last wave."""
        g = self.constants
        start: Floats = np.where(self.features.is_native, g.native["start_us"], g.ampere["start_us"])
        return self._measured("start", start)

    @cached_property
    def _fixup(self) -> Floats:
        """Bytes of partial sums that a threadblock writes and reads in a microsecond."""
        return self._of_family("fixup_bytes_per_cycle") * (self.constants.clock_ghz * 1e3)

    @cached_property
    def _fixed(self) -> Floats:
        """Microseconds of clearing semaphores and of waiting for the first of them."""
        return self._of_family("stream_k_us")

    @cached_property
    def _reduction(self) -> Floats:
        """Microseconds of the launch of the kernel that adds up."""
        return self._of_family("reduction_us")

    def _of_family(self, name: str) -> Floats:
        g = self.constants
        result: Floats = np.where(self.features.is_native, g.native[name], g.ampere[name])
        return result

    @cached_property
    def _fits(self) -> list[Any]:
        """What was measured of each candidate, or None."""
        known = self.constants.fitted
        pairs = zip(self.candidates, self.features.classes, strict=True)
        return [known.get(product, {}).get(candidate.name) for candidate, product in pairs]

    def _measured(self, name: str, analytic: Floats) -> Floats:
        """Return constants with those of measured candidates in their places."""
        fits = self._fits
        if not any(fits):
            return analytic
        return np.array(
            [value if fit is None else getattr(fit, name) for fit, value in zip(fits, analytic, strict=True)]
        )

    @cached_property
    def _fitted(self) -> tuple[Any, Floats, Floats] | None:
        """Which candidates were measured, and the constants of their last waves; None where none was."""
        fits = self._fits
        if not any(fits):
            return None
        last = [(0.0, 0.0) if fit is None else (fit.last_wave, fit.last_depth) for fit in fits]
        return np.array([fit is not None for fit in fits]), *np.array(last).T


def _up(values: Floats, steps: Floats) -> Floats:
    result: Floats = np.ceil(values / steps) * steps
    return result
