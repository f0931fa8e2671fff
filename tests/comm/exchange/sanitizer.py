"""A device on which every use of memory is looked at: is it ordered behind what made, wrote or read it before?

As `torch.cuda._sanitizer` does for a GPU, every operation of torch in this thread is seen, whatever calls it. Streams
have vector clocks (`clocks.Clocks`). Of every word of memory it is known which stream wrote it last and which have read
it since. Memory that Python frees may be given to the stream that made it at once, as by CUDA's caching allocator: all
other streams must be done with it then, or be named by `reads`. Tensors lie in host memory; those that the product puts
on the device, and all that is computed from them, count.

The threads of the product are played one at a time in one thread (`on`): what a thread has seen to be done on the
device is done for all that it issues from then on.
"""

import contextlib
import itertools
import random
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from clocks import Clocks, Mark, Stream
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

ELSEWHERE = torch.device("meta")  # of the tables: not the host. What is made there is made in host memory all the same
SHARES = 0.01, 0.2, 0.9  # of the questions whether a stream is done that are answered by yes
_WORD = 4  # bytes
_BY_INDEX = {"aten::index_select": (False, 2), "aten::index_add_": (True, 2)}  # whether it writes, where its index is


@dataclass(eq=False, slots=True)
class Version:
    """What stands in some words since a stream wrote it, in a piece of work of a worker. reads: by stream, the last."""

    by: Stream
    count: int
    work: Any
    reads: dict[Stream, tuple[int, Any]] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Block:
    """Memory of one storage. read_by: streams that `reads` named; used: by stream, the last use."""

    made: Stream
    words: list[Version]
    what: str = "sent"
    of: str = ""
    read_by: set[Stream] = field(default_factory=set)
    used: dict[Stream, int] = field(default_factory=dict)
    alive: Any = None


class Player:
    """A thread of the product. known: what it knows the device to have done. work: what it does, of a worker."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.known: Counter[str] = Counter()
        self.work: Any = None


class Sanitizer(Clocks):
    """The device of one schedule.

    Attributes:
        edges: (what, stream, stream) that used the same memory one after the other, streams by their `roles`.
        roles: of streams, by name; of others the name itself.
        player: the thread that acts; training: the one that trains.
    """

    where = ELSEWHERE

    def __init__(self, draws: random.Random) -> None:
        """draws: which streams are fast, and what the device has done when it is asked."""
        super().__init__(runs_ahead=True)
        self._random = draws
        self._shares: dict[str, float] = {}  # of a stream, how often it is done
        self._blocks: dict[int, Block] = {}
        self._races: dict[str, None] = {}
        self.edges: set[tuple[str, str, str]] = set()
        self._over = False
        self.roles: dict[str, str] = {}
        self._done: Counter[str] = Counter()  # what some thread knows to be done, before it drops what it has kept
        self._late: list[tuple[Any, str]] = []  # reads of tables that an update did not wait for, by their work
        self._consumed: set[Any] = set()  # work that made what the training thread has used
        self.player = self.training = self.thread("compute")
        self._own = SimpleNamespace(stream=self.player.stream)  # type: ignore[assignment]
        self._seen = _Seen(self)

    def thread(self, name: str) -> Player:
        return Player(Stream(self, name))

    def role(self, stream: Stream) -> str:
        return self.roles.get(stream.name, stream.name)

    @contextlib.contextmanager
    def on(self, player: Player) -> Iterator[None]:
        """Inside, `player` acts."""
        outside, stream = self.player, self.current
        self.player, self.current = player, player.stream
        try:
            yield
        finally:
            self.player, self.current = outside, stream

    # As the product sees it.

    def mark(self) -> Mark:
        self.current.clock |= self.player.known
        mark = super().mark()
        mark.share = self._shares.setdefault(self.current.name, self._random.choice(SHARES))
        return mark

    def is_done(self, mark: Any) -> bool:
        if mark is None or mark in self.waited or self._random.random() < mark.share:
            self.wait(mark, 0.0)
            return True
        return False

    def wait(self, mark: Any, limit_s: float) -> None:
        if mark is not None:
            self.waited.add(mark)
            self.player.known |= mark.clock
            self._done |= mark.clock

    def reads(self, *tensors: Any) -> None:
        for tensor in tensors:
            if (block := self._block(tensor)) is not None:
                block.read_by.add(self.current)

    def put(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """In one block, as on CUDA."""
        starts = [*itertools.accumulate((-(-tensor.nbytes // 16) * 16 for tensor in tensors), initial=0)]
        packed = self.named("plan", torch.empty(starts[-1], dtype=torch.uint8))
        with _disable_current_modes():
            spans = [packed[at : at + each.nbytes] for at, each in zip(starts[:-1], tensors, strict=True)]
            there = [of.view(each.dtype).view(each.shape) for of, each in zip(spans, tensors, strict=True)]
            for copied, each in zip(there, tensors, strict=True):
                copied.copy_(each)
        return there

    def staging(self, like: torch.Tensor) -> torch.Tensor:
        made = self.named("staging", torch.empty_like(like))
        self.wait(self.mark(), 0.0)  # it is the host's
        return made

    # What is seen.

    def named(self, what: str, tensor: torch.Tensor, of: str = "") -> torch.Tensor:
        """Memory of this tensor is on the device, and is called so. Tables are read and written row by row. of: of
        which module."""
        if (block := self._block(tensor)) is None:
            self._make(tensor)
            block = self._block(tensor)
        if block is not None:
            block.what, block.of = what, of
            if what == "tables":
                block.words = _versions(
                    len(block.words), True, self.current, self.current.clock[self.current.name], None
                )
        return tensor

    def broken(self) -> list[str]:
        """Memory that was used or freed too early, in a run that is over. A look-up that no forward used may race: it
        was stale."""
        return [*self._races, *(race for work, race in self._late if work in self._consumed)]

    def saw(self, function: Any, args: Sequence[Any], found: Any) -> None:
        """An operation of torch, which gave `found`."""
        is_view, written = _schema(function)
        if is_view:
            return
        index_of = _BY_INDEX.get(function._schema.name)
        for number, given in enumerate(args):
            for tensor in given if isinstance(given, list | tuple) else (given,):
                if isinstance(tensor, torch.Tensor):
                    index = args[index_of[1]] if index_of is not None and number == 0 else None
                    self._use(tensor, index, writes=number in written)
        for tensor in found if isinstance(found, list | tuple) else (found,):
            if isinstance(tensor, torch.Tensor) and not written and self._block(tensor) is None:
                self._make(tensor)

    def _block(self, tensor: torch.Tensor) -> Block | None:
        return self._blocks.get(tensor.untyped_storage()._cdata)

    def _make(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if not storage.nbytes():
            return
        made, key = self.current, storage._cdata
        version = Version(made, made.clock[made.name], self.player.work)
        block = self._blocks[key] = Block(made, [version] * -(-storage.nbytes() // _WORD))
        block.alive = weakref.ref(storage, lambda _: self._freed(self._blocks.pop(key)))

    def _freed(self, block: Block) -> None:
        for stream, count in block.used.items():
            safe = stream is block.made or stream in block.read_by or block.what == "staging"
            if not safe and count >= max(block.made.clock[stream.name], self._done[stream.name]):
                self._race(f"{block.what} of {self.role(block.made)} freed while {self.role(stream)} may use it")

    def _use(self, tensor: torch.Tensor, index: torch.Tensor | None, *, writes: bool) -> None:
        block = self._block(tensor)
        if block is None or not tensor.numel():
            return
        stream, clock, known = self.current, self.current.clock, self.player.known
        count, size, first = clock[stream.name], tensor.element_size(), tensor.storage_offset()
        block.used[stream] = count
        reach = [(n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True)]
        starts = [first] if index is None else [first + row * tensor.stride(0) for row in index.tolist()]
        length = sum(reach if index is None else reach[1:]) + 1
        places = [(start * size // _WORD, -(-(start + length) * size // _WORD)) for start in starts]
        for version in {id(each): each for start, stop in places for each in block.words[start:stop]}.values():
            self._behind(block, version.by, version.count, clock, known, None if writes else self.player.work)
            if writes:
                for reader, (read, work) in version.reads.items():
                    self._behind(block, reader, read, clock, known, work)
            else:
                version.reads[stream] = count, self.player.work
                if self.player is self.training and block.what == "rows":
                    self._consumed.add((version.work, block.of))
        for start, stop in places if writes else ():
            block.words[start:stop] = _versions(stop - start, block.what == "tables", stream, count, self.player.work)

    def _behind(
        self, block: Block, before: Stream, count: int, clock: Counter[str], known: Counter[str], work: Any
    ) -> None:
        """work: that reads, before or now; None: no worker's, or none does."""
        if before is self.current:
            return
        edge = block.what, self.role(before), self.role(self.current)
        if count < max(clock[before.name], known[before.name]):
            if edge[1] != edge[2]:  # streams of one transport
                self.edges.add(edge)
            return
        race = "{} of {} used too early by {}".format(*edge)
        if block.what == "tables" and work is not None:
            self._late.append(((work, block.of), race))
        else:
            self._race(race)

    def _race(self, race: str) -> None:
        if not self._over:
            self._races[race] = None

    def __enter__(self) -> "Sanitizer":
        self._seen.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._over = True
        self._seen.__exit__(*error)


class _Seen(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and to make sure of that takes as long as most operations

    def __init__(self, device: Sanitizer) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), options: Any = None) -> Any:
        options = options or {}
        if options.get("device") == ELSEWHERE:
            options = {**options, "device": torch.device("cpu")}
        found = function(*args, **options)
        self._device.saw(function, args, found)
        return found


def _versions(words: int, apart: bool, *written: Any) -> list[Version]:
    """Of so many words, which are read one by one or together."""
    return [Version(*written) for _ in range(words)] if apart else [Version(*written)] * words


_schemas: dict[int, tuple[bool, frozenset[int]]] = {}


def _schema(function: Any) -> tuple[bool, frozenset[int]]:
    """Whether it gives a view, and which of its arguments it writes."""
    if (known := _schemas.get(id(function))) is None:
        schema = function._schema
        written = frozenset(
            i for i, each in enumerate(schema.arguments) if each.alias_info and each.alias_info.is_write
        )
        views = any(each.alias_info is not None and not each.alias_info.is_write for each in schema.returns)
        known = _schemas[id(function)] = views, written
    return known
