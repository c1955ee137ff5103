"""Programs that make arguments on the stand-in for a GPU: at once by C++, or looked at by Python alone."""

__all__ = ["ODD", "THERE", "TORCH"]

#: Tensors of torch in host memory that pass for some of GPU 0, and arguments made with and without what is prepared.
TORCH = """
import copy, dataclasses, logging, random, sys
import torch
from pycutlass import _core, kernel, log
from pycutlass.errors import PyCutlassError
from pycutlass.launch import device, split_k
from pycutlass.operands import reordered
from pycutlass.tensor import adapters
from descriptions import COLUMN, ROW
from fake_gpu.inside import _load

original = adapters._from_torch

def on_gpu(name, tensor):
    view = original(name, tensor)
    return dataclasses.replace(view, device=0)

for name, value in list(vars(adapters).items()):
    if name == "_ADAPTERS":
        adapters._ADAPTERS = tuple((matches, on_gpu if adapt is original else adapt) for matches, adapt in value)
reordered.current_stream_source = split_k.current_stream_source = lambda library, ordinal: lambda: 0
device.follow_streams = lambda call, libraries, ordinal: (call.follow_callable(lambda: 0), [])[1]

said = []
class Hearer(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())
logging.getLogger("pycutlass").addHandler(Hearer())
logging.getLogger("pycutlass").propagate = False

def made(operation, *given, **named):
    kinds = {pycutlass.Conv2dOperation: pycutlass.Conv2dArguments}
    kinds[pycutlass.ReductionOperation] = pycutlass.ReductionArguments
    return kinds.get(type(operation), pycutlass.GemmArguments)(operation, *given, **named)

def is_ordinary(arguments):
    return "_reordering" not in vars(arguments)

def in_threads(work, *streams):
    # work(stream) for each stream at the same time, each in a thread of its own
    import threading
    errors = []

    def guarded(stream):
        try:
            work(stream)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(stream,)) for stream in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors

def looked_at(operation, *given, **named):
    # by Python alone
    starts = [(pycutlass.GemmArguments, "_start_ordinary"), (pycutlass.Conv2dArguments, "_start_known")]
    starts.append((pycutlass.ReductionArguments, "_start_ordinary"))
    before = [getattr(*each) for each in starts]
    for each in starts:
        setattr(*each, lambda *given: False)
    try:
        return made(operation, *given, **named)
    finally:
        for each, start in zip(starts, before):
            setattr(*each, start)
"""

#: Tensors of torch in memory of the stand-in, which kernels read and write there.
THERE = """
def there(values):
    # a tensor of torch in memory of the stand-in
    array = Array(0, values)
    tensor = torch.from_numpy(memory_at(array.data.ptr, array.shape))
    tensor.array = array
    return tensor

def of(*shape):
    return there(np.random.randint(-4, 5, shape).astype(np.float32))
"""

#: Tensors that are odd in some way, and what comes of arguments that are made of them.
ODD = """
class Own(torch.Tensor):
    pass

class Cupy:
    # An array of cupy on GPU 0, in the memory of a tensor.
    __cuda_array_interface__ = {}

    def __init__(self, tensor, device=0):
        array = tensor.numpy()
        self.shape, self.strides, self.dtype, self.tensor = array.shape, array.strides, array.dtype, tensor
        self.data = SimpleNamespace(ptr=tensor.data_ptr(), device_id=device)

class OwnCupy(Cupy):
    pass

sys.modules["cupy"].ndarray = Cupy

def cupy_with(**attributes):
    def changed(tensor):
        array = Cupy(tensor)
        vars(array).update({name: value(array) for name, value in attributes.items()})
        return array
    return changed

def freed(tensor):
    tensor = tensor.clone()
    tensor.untyped_storage().resize_(0)
    return tensor

def cut_short(tensor):
    tensor.untyped_storage().resize_(tensor.untyped_storage().nbytes() // 8)
    return tensor

def negated(tensor):
    return torch.complex(torch.zeros_like(tensor.float()), tensor.float()).conj().imag

def made_in_inference(tensor):
    with torch.inference_mode():
        return tensor.clone()

#: What may be odd about one operand.
ODD = {
    "transposed": lambda t: t.mT,
    "flat": lambda t: t.reshape(-1),
    "f64": lambda t: t.double(),
    "i32": lambda t: t.int(),
    "one longer": lambda t: torch.zeros(*t.shape[:-1], t.shape[-1] + 1),
    "one dimension more": lambda t: t[None],
    "a vector": lambda t: torch.zeros(t.shape[-1]),
    "a column": lambda t: torch.zeros(t.shape[-2], 1),
    "every second": lambda t: torch.zeros(*t.shape[:-1], 2 * t.shape[-1])[..., ::2],
    "one for all": lambda t: torch.zeros(1, 1).expand(t.shape[-2:]),
    "shared": lambda t: t[0] if t.dim() == 3 else t,
    "followed": lambda t: t.clone().requires_grad_(),
    "parameter": lambda t: torch.nn.Parameter(t.clone()),
    "frozen parameter": lambda t: torch.nn.Parameter(t.clone(), requires_grad=False),
    "negated": negated,
    "meta": lambda t: t.to("meta"),
    "sparse": lambda t: t.to_sparse(),
    "subclass": lambda t: t.clone().as_subclass(Own),
    "freed": freed,
    "cut short": cut_short,
    "lazy": torch._lazy_clone,
    "inference": made_in_inference,
    "numpy": lambda t: t.numpy(),
    "nothing": lambda t: None,
    "address": lambda t: t.data_ptr(),
    "a list": lambda t: [t],
    "half": lambda t: t.half(),
    "float": lambda t: t.float(),
    "cupy": Cupy,
    "cupy elsewhere": lambda t: Cupy(t, device=1),
    "own cupy": OwnCupy,
    "cupy of integers": lambda t: Cupy(t.int()),
    "cupy backwards": cupy_with(strides=lambda array: tuple(-step for step in array.strides)),
    "cupy between elements": cupy_with(strides=lambda array: (array.strides[0] + 1, *array.strides[1:])),
    "cupy of lists": cupy_with(shape=lambda array: list(array.shape)),
    "cupy without memory": cupy_with(data=lambda array: SimpleNamespace(ptr=0, device_id=0)),
    "cupy misplaced": cupy_with(data=lambda array: SimpleNamespace(ptr=array.data.ptr + 2, device_id=0)),
    "cupy unlike itself": cupy_with(data=lambda array: None),
}

def as_cupy(given):
    if type(given) is not torch.Tensor or given.layout is not torch.strided or given.device.type != "cpu":
        return given
    if given.is_neg() or given.requires_grad or not given.untyped_storage().nbytes():
        return given
    return Cupy(given)

def copied(given):
    return Cupy(given.tensor.clone()) if isinstance(given, Cupy) else given.clone()

def odd_memory(odd):
    return odd is not None and odd.partition(", ")[0] in ("cut short", "freed", "cupy misplaced", "cupy of lists")

def without_workspace(execution):
    pointer = getattr(execution._buffers.get("workspace"), "pointer", 0)  # each has its own
    return execution.call.record_bytes.replace(pointer.to_bytes(8, "little"), bytes(8))

def outcome(make, operation, given, how):
    log._said.clear()
    said.clear()
    try:
        arguments = make(operation, *given, **how)
    except PyCutlassError as error:
        return None, (type(error), str(error), list(said))
    return arguments, (state(arguments), list(said))

def compared(operation, odd, given, how, is_known, alike=copied):
    # Counts of what was taken at once, under `odd` and `is_known`; `alike` copies a tensor for an exchange.
    if draw.random() < 0.5:  # what looks may change how others find it: a lazy copy gets memory of its own
        other, expected = outcome(looked_at, operation, given, how)
        arguments, got = outcome(made, operation, given, how)
    else:
        arguments, got = outcome(made, operation, given, how)
        other, expected = outcome(looked_at, operation, given, how)
    taken, all_of_them, right = counts.get((odd, is_known), (0, 0, 0))
    ordinary = arguments is not None and is_ordinary(arguments)
    if other is not None and arguments is not None and not ordinary:
        is_interleaved = operation.A.order.interleave > 1 or operation.B.order.interleave > 1
        if getattr(other._execution, "_buffers", None) or is_interleaved or other._partials:
            return  # each has its own copies, or partial sums
    different = [pair for pair in zip(expected, got) if pair[0] != pair[1]]
    assert not different, (odd, operation, [t if not hasattr(t, "shape") else t.shape for t in given], how, different)
    counts[odd, is_known] = taken + ordinary, all_of_them + 1, right + (arguments is not None)
    launched = arguments is not None and isinstance(arguments._execution, device.DeviceLaunch)
    if launched and not odd_memory(odd):
        tensors = [t if isinstance(t, (torch.Tensor, Cupy)) else None for t in given[1:]]
        fresh = [None if t is None or draw.random() < 0.5 else alike(t) for t in tensors]
        assert arguments._try_exchange(*fresh) == other._try_exchange(*fresh)
        assert without_workspace(arguments._execution) == without_workspace(other._execution)

counts = {}

def print_counts():
    for (odd, is_known), row in counts.items():
        print(odd, is_known, *row, sep="|")
"""
