"""`load_library`: the plans of a shared object, launched from Python without a compiler."""

from __future__ import annotations

import ctypes
import json
import operator
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pycutlass import _core, device
from pycutlass.allocators import chosen
from pycutlass.cache.files import as_path, is_cut_off, is_file
from pycutlass.calls import public, shown, suggestion
from pycutlass.device import current_stream_source
from pycutlass.errors import ArgumentError, ArgumentTypeError, CacheError, DeviceError, PyCutlassError, UnknownNameError
from pycutlass.exports import interface
from pycutlass.integers import real
from pycutlass.memory import DeviceBuffer
from pycutlass.plan.gradients import check_gradients, frozen_scalars
from pycutlass.plan.launches import workspace_of
from pycutlass.tensor import Guard, TensorView, guard, wrap
from pycutlass.types import ELEMENTS, Element

__all__ = ["LoadedLibrary", "LoadedPlan", "load_library"]

#: By pycutlass_code of library.h; what is left out is a refused argument.
_ERRORS: Mapping[int, type[PyCutlassError]] = {
    1: ArgumentError,
    2: DeviceError,
    3: DeviceError,
    4: CacheError,
    5: CacheError,
    6: DeviceError,
}
_BY_DTYPE: Mapping[str, Element] = {row.dtype_name: row for row in reversed(ELEMENTS) if row.short != "tf32"}
_BY_CODE: Mapping[int, Element] = {row.code: row for row in ELEMENTS}
_PIXELS, _RANK = 3, 4  # pycutlass_layout, and the most dimensions
_NOTHING: Mapping[str, Any] = MappingProxyType({})
#: The files that the process has loaded, by their paths, since none is ever unloaded: device, number, size and time.
_opened: dict[Path, list[tuple[int, ...]]] = {}
_opening = threading.Lock()


@public
def load_library(path: str | os.PathLike[str]) -> LoadedLibrary:
    """Return the library that `export_library` has written to a file. No compiler is needed, and no GPU yet.

    It is native code: load it only from those whose programs you would run.

    Raises
    ------
    CacheError
        There is no such file, it is no library, or it was made for another version of the interface.

    Examples
    --------
    >>> import pycutlass
    >>> library = pycutlass.load_library("kernels.so")  # doctest: +SKIP
    >>> library["linear"].run(a=x, b=w, out=y)  # doctest: +SKIP
    """
    return LoadedLibrary(as_path("path", path))


@public
class LoadedLibrary(Mapping[str, "LoadedPlan"]):
    """The plans of a library, by name.

    Attributes
    ----------
    path : Path
        Its file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        if not is_file(self.path):
            raise CacheError(f"{path} cannot be loaded as a library of kernels: there is no such file")
        try:
            self._object = _open(self.path)
            get = self._object.pycutlass_get_library
        except (OSError, AttributeError) as error:
            raise CacheError(
                f"{path} cannot be loaded as a library of kernels: {error}. Write it again with "
                f"pycutlass.export_library, or copy it again"
            ) from error
        get.restype = ctypes.POINTER(interface.Library)
        self._library: interface.Library = get().contents
        if self._library.version != interface.VERSION or self._library.struct_size < ctypes.sizeof(interface.Library):
            raise CacheError(
                f"{path} has version {self._library.version} of the interface of libraries, and this PyCUTLASS has "
                f"version {interface.VERSION}: export it again with this one"
            )
        if self._library.abi_version != _core.ABI_VERSION:
            raise CacheError(
                f"the kernels of {path} were made for call record {self._library.abi_version}, and this PyCUTLASS has "
                f"{_core.ABI_VERSION}: export them again"
            )
        infos = [self._library.plans[number] for number in range(self._library.plan_count)]
        self._plans = {info.name.decode(): LoadedPlan(self, number, info) for number, info in enumerate(infos)}

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """What is in the library: plans, kernels with their digests, and what compiled them."""
        read: dict[str, Any] = json.loads(self._library.manifest)
        return read

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path alone: the library is loaded from there again, which is for the same machine."""
        return load_library, (self.path,)

    def __getitem__(self, name: str) -> LoadedPlan:
        """Return the plan of that name.

        Raises
        ------
        UnknownNameError
            There is none.
        """
        found = self._plans.get(name) if isinstance(name, str) else None
        if found is None:
            near = suggestion(name, self._plans) if isinstance(name, str) else ""
            raise UnknownNameError(
                f"{self.path.name} has no plan {shown(name)}; it has {', '.join(self._plans)}.{near}"
            )
        return found

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the plans."""
        return iter(self._plans)

    def __len__(self) -> int:
        """Return how many plans there are."""
        return len(self._plans)

    def __repr__(self) -> str:
        return f"<LoadedLibrary {self.path}: {', '.join(self._plans)}>"

    def _check(self, code: int) -> None:
        """Raise what a function of the library has to say."""
        if code:
            raise _ERRORS.get(code, ArgumentError)(self._library.message().decode(errors="replace"))


@public
class LoadedPlan:
    """A plan of a library.

    Attributes
    ----------
    name, description, target : str
        By which the library has it, what it computes, and which GPUs its kernels are for.
    tensors : tuple of str
        What a run takes, in order.
    """

    def __init__(self, library: LoadedLibrary, number: int, info: interface.PlanInfo) -> None:
        self._library, self._number = library, number
        self.name, self.description, self.target = (
            text.decode() for text in (info.name, info.description, info.target)
        )
        self._infos = [info.tensors[each] for each in range(info.tensor_count)]
        self.tensors = tuple(each.name.decode() for each in self._infos)
        self._scalars = [info.scalars[each] for each in range(info.scalar_count)]
        self.scalars = {each.name.decode(): each.value for each in self._scalars}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the library, as it is pickled, and the name."""
        return operator.getitem, (self._library, self.name)

    def load(self) -> None:
        """Load the kernels for the current GPU; `run` does so where they are not loaded, but not under capture.

        Raises
        ------
        DeviceError
            There is no GPU, or the kernels are for others.
        CacheError
            A kernel was changed.
        """
        device.require()
        with _core.DeviceScope(device.current()):
            self._library._check(self._library._library.load(self._number))

    def run(self, *, stream: Any = None, scalars: Mapping[str, float] = _NOTHING, **tensors: Any) -> Any:
        """Launch the plan, and return `out`.

        Parameters
        ----------
        stream : optional
            An integer handle, or a stream of torch, cupy or cuda.core; by default the current stream of the tensors'
            library. On a stream that is named, keep the tensors until the launch is through.
        scalars : mapping, optional
            Other scalars than the plan was exported with, by name.
        **tensors : tensor
            Those of the plan, by name, on one GPU.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            Something does not fit; nothing was launched.
        DeviceError
            There is no GPU, or the kernels are for others.
        CacheError
            A kernel was changed.
        PoolError
            No memory for the workspace.
        """
        views = self._views(tensors)
        ordinal = _ordinal_of(views)
        written = self._written(views)
        launch = interface.Launch(ctypes.sizeof(interface.Launch), 1)
        kept = (interface.Tensor * len(views))(*map(_tensor, views.values()))
        launch.tensors = kept
        values = self._values(scalars)
        launch.scalars = values
        first = next(iter(views.values()))
        with _core.DeviceScope(ordinal):
            current = _core.Stream(ordinal, current_stream_source(first.library, ordinal)())
            on = current if stream is None else _core.named_stream(stream, ordinal)
            launch.stream = on.handle
            with workspace_of(first.library == "torch"):  # which belongs to a graph that torch captures
                workspace = self._workspace(launch, ordinal, on)
            self._library._check(self._library._library.run(self._number, ctypes.byref(launch)))
        del workspace  # which is given back behind the launch
        for each in written:
            each.count_write()
        return tensors["out"]

    def _views(self, tensors: Mapping[str, Any]) -> dict[str, TensorView]:
        missing = [name for name in self.tensors if tensors.get(name) is None]
        unknown = [name for name in tensors if name not in self.tensors]
        if missing or unknown:
            said = f"{', '.join(missing)} missing" if missing else f"{', '.join(unknown)} not among them"
            raise ArgumentTypeError(f"{self.name} takes the tensors {', '.join(self.tensors)}, by name; {said}")
        views = {name: wrap(name, tensors[name]) for name in self.tensors}
        check_gradients(views, "launch")
        return {
            name: _channels_last(view) if info.layout == _PIXELS else view
            for (name, view), info in zip(views.items(), self._infos, strict=True)
        }

    def _written(self, views: Mapping[str, TensorView]) -> list[Guard]:
        """Return what tells libraries that their tensors were written to."""
        found = []
        for (name, view), info in zip(views.items(), self._infos, strict=True):
            if info.written and not view.writable:
                raise ArgumentError(f"{name} is written, and its memory is read-only: pass another tensor")
            watch = guard(view, written=True) if info.written else None
            found += [] if watch is None else [watch]
        return found

    def _values(self, scalars: Any) -> Any:
        if not isinstance(scalars, Mapping):
            raise ArgumentTypeError(f"scalars must be a mapping of names to numbers, got {shown(scalars)}")
        unknown = [name for name in scalars if not isinstance(name, str) or name not in self.scalars]
        if unknown:
            raise ArgumentTypeError(
                f"{self.name} takes the scalars {', '.join(self.scalars) or 'none'}, got "
                f"{', '.join(name if isinstance(name, str) else shown(name) for name in unknown)}"
            )
        values = self.scalars | {
            name: _number(name, value) for name, value in frozen_scalars(scalars, "launch").items()
        }
        return (interface.ScalarValue * max(len(values), 1))(
            *(interface.ScalarValue(value, None) for value in values.values())
        )

    def _workspace(self, launch: interface.Launch, ordinal: int, stream: _core.Stream) -> DeviceBuffer | None:
        """Return memory beside the tensors, and tell the launch of it."""
        size, library = ctypes.c_uint64(), self._library
        asked = library._library.workspace_size(self._number, ctypes.byref(launch), ctypes.byref(size))
        library._check(asked)
        if not size.value:
            return None
        buffer = DeviceBuffer(ordinal, size.value, stream, chosen.get().allocator)
        launch.workspace, launch.workspace_bytes = buffer.pointer, size.value
        return buffer

    def __repr__(self) -> str:
        return f"<LoadedPlan {self.name}: {self.description}, for {self.target}>"


def _open(path: Path) -> ctypes.CDLL:
    """Load a file, and no other that had its path before.

    The system's loader goes by names, and returns what it has loaded by one, whatever has taken its place since. So a
    file that follows another is loaded by another spelling.

    Raises
    ------
    AttributeError, OSError
        The loader does not take it.
    CacheError
        The file is cut off, or was written over while it was loaded.
    """
    if is_cut_off(path):
        raise CacheError(f"{path} cannot be loaded as a library of kernels: its end is missing. Copy it again")
    status = path.stat()
    file = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    with _opening:
        before = _opened.get(path, [])
        if file not in before and file[:2] in [each[:2] for each in before]:
            raise CacheError(
                f"{path} was written over while this process had it loaded: load it in a new process, and replace such "
                f"files by others, as export_library and mv do"
            )
        number = before.index(file) if file in before else len(before)
        made = ctypes.CDLL(f"{path.parent}/{'./' * number}{path.name}", mode=os.RTLD_NOW | os.RTLD_LOCAL)
        _opened[path] = before if file in before else [*before, file]
    return made


def _number(name: str, value: Any) -> float:
    number = real(value, f"the scalar {name}")
    if number is None:
        raise ArgumentTypeError(f"the scalar {name} must be a number, got {shown(value)}")
    return number


def _channels_last(view: TensorView) -> TensorView:
    """Return images as (N, H, W, C): those of torch have their channels behind N."""
    if view.library != "torch" or view.shape is None or view.strides is None or len(view.shape) != _RANK:
        return view
    shape, strides = (tuple(each[axis] for axis in (0, 2, 3, 1)) for each in (view.shape, view.strides))
    return replace(view, shape=shape, strides=strides)


def _tensor(view: TensorView) -> interface.Tensor:
    found = _BY_DTYPE.get(view.dtype_name or "")
    if found is None or view.shape is None or view.strides is None:
        raise ArgumentError(f"a tensor is of {view.dtype_name or 'no known type'}, which kernels do not take")
    if len(view.shape) > _RANK:
        raise ArgumentError(f"a tensor has {len(view.shape)} dimensions, and libraries take 4 at most")
    tensor = interface.Tensor(view.pointer, rank=len(view.shape), element=found.code)
    tensor.shape[: len(view.shape)] = view.shape
    tensor.strides[: len(view.shape)] = view.strides
    return tensor


def _ordinal_of(views: Mapping[str, TensorView]) -> int:
    device.require()
    found = {name: view.device for name, view in views.items()}
    for name, ordinal in found.items():
        if ordinal is None or ordinal < 0:
            raise ArgumentError(f"{name} is not in the memory of a GPU, and libraries copy nothing: move it to one")
    first = next(iter(found.values()))
    if len(set(found.values())) > 1:
        where = ", ".join(f"{name} on GPU {ordinal}" for name, ordinal in found.items())
        raise ArgumentError(f"tensors must be on one device, got {where}: move one")
    assert first is not None
    return first
