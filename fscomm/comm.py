"""`fscomm.enable`: prioritized embedding communication for the sharded modules of a model, inside a `with`."""

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from torch import nn

from fscomm.compose import is_installed
from fscomm.device import device_of
from fscomm.engine.agreement import Agreement, Features, agree_on_modules, note_fallbacks
from fscomm.engine.engine import Engine
from fscomm.engine.hooks import install_hooks
from fscomm.engine.schedule import StepSchedule
from fscomm.loop.lookahead import Ahead, Listener, Lookahead, Rng
from fscomm.loop.moving import Moving
from fscomm.plan.sharding_group import MOST_RANKS_PER_HOST
from fscomm.report.recorder import Recorder
from fscomm.report.report import OnStep, Report
from fscomm.tables.binding import MOST_CALLS
from fscomm.tables.torchrec import torchrec_version
from fscomm.transports.opening import agree_on, split_name
from fsranks.machine.at_exit import at_exit, why_over
from fsranks.meeting import Meeting
from fsranks.rank_context import resolve

if TYPE_CHECKING:
    from fscomm.parts.asked import AskedParts

T = TypeVar("T")
AFTER_CTRL_C_S = 1.0  # that pending updates get to complete


class enable:
    """Serve the sharded modules of `model` inside a `with`; results stay bitwise those of the plain loop.

    That holds for loaders that do not depend on what the training step does: see `Comm.lookahead`.

    model: a DistributedModelParallel or any module that holds sharded TorchRec modules. Nothing of it is replaced but
    the `forward` attribute of the served instances, for as long as the block lasts. What cannot be served exactly runs
    plainly, with the reason in `comm.report().fallbacks`; with `strict=True` that raises instead.

    transport: how rows travel: `gloo`, `nccl`, `nccl-ce`, `copy-engine`, `host-staged`, or `auto`, which is `gloo` on
    the CPU; one line in the log (logger `fscomm`) says how rows travel, or why they do not. Tables on CUDA run plainly
    under `auto`: serving them has not been run on a GPU yet and must be asked for by a name.

    features: for modules whose input is not found in the batch by itself, a function from the batch to the
    KeyedJaggedTensor that the module will get, by the module's name in the model; a list of functions for the calls of
    a module that is called more than once. Those of modules that run plainly are not called.

    calls: how often in a step the model calls a module, at most. Calls after those run plainly.

    parts: how many parts every step is computed in. The look-ahead then hands out steps, whose `parts()` are to be
    computed in order (see `fscomm.parts.batch_parts.InParts`). Tables are read as they were before the step and updated
    once, with the gradients of all parts: to the bit as one call for the whole batch. Rows that only later parts need
    travel while earlier ones compute, and gradients of earlier parts while later ones do. A step is over when all its
    parts had a backward pass, or when the next one is asked for. Goes with calls=1 and ranks_per_host=1.
    Of several numbers the fastest is taken: they take turns, six steps each, the largest one first, until all are
    measured. "auto" is (1, 2, 4, 8). `report().parts` says which one it is. Where steps cannot be computed in parts,
    several numbers with a 1 among them come to one part, with the reason in the report.

    ranks_per_host: so many consecutive ranks share a host, as torchrun numbers them. A row that several ranks of a host
    look up then comes to it once, and one of them passes it on. Gradients go straight to the owner: to add up those of
    a host first would change bits.

    cpu_kernels: tables behind managed collision train on the CPU in the block (`fscomm.cpu_kernels.install`).

    on_step: a function that gets the numbers of every step, a dict (`StepReport.numbers`): exposed milliseconds and
    bytes by kind, the wait for stragglers, the collision rate. Steps are reported in order, each once, in the thread
    that asks for batches, when it asks for one: two steps later than they were trained on, because their exclusive
    gradients are applied until then; on a device once its streams have reached all of the step, which may be later. The
    last steps follow when the block is left without an error. What the function raises reaches the loop, which may
    ask for the batch again. Never called where nothing is served.

    Entering is collective over all ranks and blocks until they are there; `timeout_s` bounds that and every exchange,
    over gloo also those of TorchRec and DDP in a forward or backward pass. Leaving completes all updates.

    Raises:
        ValueError: no process group, no sharded module, a module that another block already serves, unknown names.
        NotServedError: with `strict`, something would run plainly; with `parts`, something cannot be served.
        MismatchError, PeerError: the ranks do not agree or do not come. Also in place of gloo's error when that leaves
            the block.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        transport: str = "auto",
        strict: bool = False,
        features: Mapping[str, Features] | None = None,
        calls: int = 1,
        ranks_per_host: int = 1,
        parts: int | Sequence[int] | Literal["auto"] = 1,
        cpu_kernels: bool = False,
        on_step: OnStep | None = None,
        timeout_s: float = 300,
    ) -> None:
        if on_step is not None and not callable(on_step):
            raise TypeError(f"on_step is a function of a dict of numbers or None, got {on_step!r}")
        if transport != "auto":
            split_name(transport)
        if not timeout_s > 0:
            raise ValueError(f"timeout_s must be positive seconds, got {timeout_s!r}")
        if not (isinstance(calls, int) and 1 <= calls <= MOST_CALLS):
            raise ValueError(f"calls must be a number from 1 to {MOST_CALLS}, got {calls!r}")
        if not (isinstance(ranks_per_host, int) and 1 <= ranks_per_host <= MOST_RANKS_PER_HOST):
            most = MOST_RANKS_PER_HOST
            raise ValueError(f"ranks_per_host must be a number from 1 to {most}, got {ranks_per_host!r}")
        asked = _asked(parts)
        if asked is not None and (calls > 1 or ranks_per_host > 1):
            raise ValueError(
                f"parts={parts!r} goes with calls=1 and ranks_per_host=1 only, got calls={calls}, "
                f"ranks_per_host={ranks_per_host}"
            )
        torchrec_version()  # raises where there is none
        self._enter = partial(
            Comm.enter,
            model,
            partial(
                agree_on_modules,
                model,
                dict(features or {}),
                calls=calls,
                ranks_per_host=ranks_per_host,
                parts=asked.given if asked is not None else (),
            ),
            transport=transport,
            strict=strict,
            asked=asked,
            on_step=on_step,
            timeout_s=timeout_s,
        )
        self._comm: Comm | None = None
        self._needs_kernels = model if cpu_kernels else None
        self._kernels = contextlib.ExitStack()

    def __enter__(self) -> "Comm":
        if self._comm is not None:
            raise ValueError("this enable() was entered before: make a new one for every block")
        with contextlib.ExitStack() as kernels:
            if self._needs_kernels is not None:
                from fscomm.managed.cpu_kernels import install

                kernels.callback(install(self._needs_kernels))
            self._comm = self._enter()
            self._kernels = kernels.pop_all()
        return self._comm

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._comm is not None
        with self._kernels:
            self._comm._leave(error)


class Comm:
    """What `with fscomm.enable(model) as comm` gives."""

    def __init__(self, recorder: Recorder, engine: Engine | None, listener: Listener) -> None:
        self._recorder = recorder
        self._engine = engine  # None if no module is served
        self._listener = listener
        self._lookaheads: weakref.WeakSet[Any] = weakref.WeakSet()  # and the loops over them
        self._newest_ahead: Ahead[Any] | None = None
        self._moving: dict[torch.device | None, Moving] = {}
        self._over = False
        self._undo = contextlib.ExitStack()
        self._undo.callback(at_exit(self._end_at_exit))

    @classmethod
    def enter(
        cls,
        model: nn.Module,
        agree: Callable[..., Agreement],
        *,
        transport: str,
        strict: bool,
        asked: "AskedParts | None" = None,
        on_step: OnStep | None = None,
        timeout_s: float,
    ) -> "Comm":
        """Agree with all ranks on what is served and how, and take over the modules. Collective; blocks.

        agree: which modules of `model` are served (`agree_on_modules`). asked: in how many parts steps may be computed;
        None for whole steps.
        """
        context = resolve()
        if context.group is None:
            raise ValueError(
                "fscomm.enable needs torch.distributed: call init_process_group first (torchrun sets it up)"
            )
        recorder = Recorder(rank=context.rank, on_step=on_step)
        meeting = partial(Meeting, context, what="fscomm.enable", timeout_s=timeout_s)
        agreed = agree(
            transport=transport,
            strict=strict,
            context=context,
            recorder=recorder,
            meeting=meeting,
            timeout_s=timeout_s,
        )
        problems, modules = agreed.problems, agreed.modules
        choice = agree_on(transport, context, modules[0].device, timeout_s=timeout_s) if modules else None
        unserved = {module.name: choice.line() for module in modules} if choice and choice.name is None else {}
        if asked is not None:
            asked.settle(model, modules, problems | unserved, recorder, strict=strict)
        if choice is None or choice.name is None:
            note_fallbacks(recorder, unserved, strict=strict)
            listener = Listener() if asked is None else asked.listener()
            return cls(recorder, None, listener)._with_counts(agreed, problems | unserved)
        travels = choice.name if transport == "auto" else transport
        device = device_of(modules[0].device)
        recorder.travels_by(travels, device.where)
        recorder.runs_on(device)
        with contextlib.ExitStack() as failed, meeting() as all_ranks:
            engine = Engine(
                modules,
                context,
                recorder,
                finder=agreed.finder,
                device=device,
                transport=travels,
                strict=strict,
                timeout_s=timeout_s,
                schedule=StepSchedule if asked is None else asked.schedule(recorder, device, limit_s=timeout_s),
            )
            comm = cls(recorder, engine, engine)
            failed.push(comm._give_up)
            comm._undo.push(install_hooks(engine))
            all_ranks.agree({})
            failed.pop_all()
        return comm._with_counts(agreed, problems)

    def lookahead(
        self, loader: Iterable[T], device: torch.device | None = None, *, rng: Rng = "shared", early: bool = True
    ) -> "Lookahead[T]":
        """Iterate over `loader` one batch ahead, so that the next batch's ids and rows travel during this one's step.

        In a block with `parts` it gives `InParts`, each of one batch. Moves batches to `device` itself. The iterator's
        `state_dict()` is the loader's own as of the batch that the user holds. Several may be open at a time: one for
        evaluation inside the loop over another, for example.

        The loader must not depend on what the training step does, as it makes a batch before the step on the one
        before: pass early=False where it does (curriculum, hard negatives, replay), and steps run plainly.

        rng: "shared" gives what the plain loop gives; where loader and training step draw from the same generator of
        random numbers, steps run plainly then. "own" gives the loader a stream of random numbers of its own: see
        `Lookahead`.
        """
        if self._over:
            raise RuntimeError("the fscomm block was left: call lookahead inside `with fscomm.enable(model) as comm`")
        moving = self._moving.setdefault(device, Moving(device))
        lookahead = Lookahead(
            loader, listener=self._listener, moving=moving, rng=rng, early=early, opened=self._lookaheads.add
        )
        self._lookaheads.add(lookahead)
        self._newest_ahead = lookahead.ahead
        return lookahead

    def flush(self) -> None:
        """Complete all pending updates of this rank, as before reading tables. No collective.

        What was fetched ahead is dropped, so tables may also be written by hand now; the next step fetches it again.
        """
        if self._engine is not None and not self._over:
            self._engine.flush()
            self._engine.written(range(len(self._engine.modules)))
            for handles in self._engine.handles.values():
                handles.accept()

    def report(self) -> Report:
        """What happened so far on this rank."""
        return self._recorder.report()

    @property
    def unconsumed(self) -> Any:
        """The batch that the newest look-ahead had fetched and never handed out, or None."""
        return None if self._newest_ahead is None else self._newest_ahead.unconsumed

    def _with_counts(self, agreed: Agreement, unserved: Mapping[str, str]) -> "Comm":
        """Count the forwards of modules of which nothing is served."""
        for name in agreed.found.keys() & unserved.keys():
            count = partial(_count_plain, self._recorder, agreed, name, unserved[name])
            counted = agreed.found[name].register_forward_pre_hook(count)
            self._undo.callback(counted.remove)
        return self

    def _give_up(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Entering failed on some rank: put everything back."""
        assert self._engine is not None
        self._undo.close()
        self._engine.abort(f"could not enter the fscomm block: {error}")
        self._engine.close("could not enter the fscomm block")

    def _leave(self, error: BaseException | None) -> None:
        """Complete updates, end threads and groups, put every attribute back."""
        if self._over:
            return
        self._over = True
        if (engine := self._engine) is not None:
            engine.over = True
        try:
            if engine is not None and error is None:
                self._end(engine)
            elif engine is not None and error is not None:
                lost = engine.explain(error)
                self._end_after(engine, lost or error)
                if lost is not None:
                    raise lost from error
        finally:
            if engine is not None:
                engine.schedule.close()
            self._undo.close()
            for lookahead in list(self._lookaheads):
                lookahead.close()
            for moving in self._moving.values():
                moving.close()
        if error is None:
            self._recorder.report_steps(over=True)

    def _end_at_exit(self) -> None:
        """Python ends inside the block."""
        self._over = True
        if self._engine is not None:
            self._engine.over = True
            self._engine.abort(why_over())
            self._engine.close(why_over(), at_exit=True)

    def _end(self, engine: Engine) -> None:
        try:
            engine.schedule.end_step()
            engine.flush()
            engine.plain_runs.note_replaced(engine)
        except BaseException as error:
            engine.abort(f"failed: {error}")
            raise
        finally:
            engine.close("left the fscomm block")
        engine.device.release()  # after an error a stream may hang, and stays with this block

    def _end_after(self, engine: Engine, error: BaseException) -> None:
        """The user's loop raised `error`, which the user must see. After Ctrl-C no rank is waited for any longer."""
        giving_up = threading.Timer(AFTER_CTRL_C_S, engine.abort, ["ended by Ctrl-C"])
        if isinstance(error, KeyboardInterrupt):
            giving_up.start()
        try:
            engine.flush()
        except BaseException as lost:
            error.add_note(f"fscomm could not complete pending updates: {lost}")
        finally:
            giving_up.cancel()
            if giving_up.ident is not None:
                giving_up.join()
        engine.abort(f"raised {type(error).__name__}: {error}")
        engine.close(f"raised {type(error).__name__}")


def _asked(parts: Any) -> "AskedParts | None":
    """None for whole steps."""
    if type(parts) is int and parts == 1:
        return None
    if not is_installed("parts"):
        raise ValueError(f"parts={parts!r} takes fscomm.parts, which is not installed")
    from fscomm.parts.asked import AskedParts

    return AskedParts(parts)


def _count_plain(
    recorder: Recorder, agreed: Agreement, name: str, why: str, module: Any, inputs: tuple[Any, ...]
) -> None:
    if torch.is_grad_enabled() and inputs:
        recorder.forward(name, *agreed.forward_size(module, inputs[0]), why)


__all__ = ["Comm", "enable"]
