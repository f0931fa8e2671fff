"""Deliberate breaks of the product, to see that its tests find them: `make breaks`.

Each break is a small wrong change, as a tired engineer or a refactoring makes it. It is made in a copy of the working
tree, and the tests that ought to find it run there, those that `make test` runs. A break that they do not find is a
hole in the tests. Where the product has changed so that a break fits no more, write it anew, at the same place.

    python tests/breaks.py          all of them, one after another
    python tests/breaks.py 7 31     only these
    python tests/breaks.py 0        no break: the tests of all breaks have to pass in a copy
"""

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from copies import copy

OPTIONS = "-m pytest -x -n0 -m 'not long' -p no:cacheprovider -o timeout=120"  # s: some breaks let ranks wait
PYTEST = (sys.executable, *shlex.split(OPTIONS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """A wrong change of one file.

    Attributes:
        before: text that occurs exactly once in the file. after: what stands there instead.
        tests: files or folders that ought to find it.
        why: what a user would see.
    """

    file: str
    before: str
    after: str
    tests: tuple[str, ...]
    why: str


MANAGED = ("tests/comm/exactness/test_managed.py",)
STREAMS = ("tests/comm/exchange/test_stream_order.py",)
BREAKS: tuple[Break, ...] = (
    # fsdata
    Break(
        file="fsdata/pages/kernels/deltas.py",
        before="if width > (32 if narrow else 64) or per_miniblock * width >> 3 > end - at:",
        after="if width > (32 if narrow else 64):",
        tests=("tests/data/pages",),
        why="a page of deltas that is cut gives numbers from what lies behind it instead of an error",
    ),
    Break(
        file="fsdata/histories/histories.py",
        before="own = [column.take(selected) for column in columns]",
        after="own = [column.take(np.arange(len(selected))) for column in columns]",
        tests=("tests/data/joins",),
        why="two sources with histories: rows that come from another rank fail or get the events of other rows",
    ),
    Break(
        file="fsdata/histories/kernels/resolve.py",
        before=" and two[LOOKUP + lookups.WIDTH] == 4",
        after="",
        tests=("tests/data/joins/test_pools.py",),
        why="a dimension table with a column of large numbers beside one of small ones gives halves of the large ones",
    ),
    Break(
        file="fsdata/tables/side_table.py",
        before=" & ~null\n",
        after="\n",
        tests=("tests/data/joins",),
        why="a row whose key is null gets the side table's row of another key",
    ),
    Break(
        file="fsdata/tables/side_table.py",
        before="(np.cumsum(stored) - stored)[order]",
        after="np.cumsum(stored[order]) - stored[order]",
        tests=("tests/data/joins",),
        why="rows get values of other keys, where the rows of a side table are not in the order of their keys",
    ),
    Break(
        file="fsdata/order/tokens.py",
        before="length * count).sum())",
        after="length).sum())",
        tests=("tests/data/together/test_together.py",),
        why="with explode, the elements in a batch's stats count each history once and not once for each candidate",
    ),
    Break(
        file="fsdata/order/progress.py",
        before="history = (*self.history, self.positions) if any(self.positions) else self.history",
        after="history = (self.positions,) if any(self.positions) else self.history",
        tests=("tests/data/order",),
        why="a job whose number of ranks changed twice in an epoch repeats samples and misses others",
    ),
    Break(
        file="fsdata/order/mixture.py",
        before="is_begun = (rows < ends[stream.ends] - ends[stream.begins]) & shuffle",
        after="is_begun = (rows < 0) & shuffle",
        tests=("tests/data/order/test_epoch.py", "tests/data/loader/test_changes.py"),
        why="after a change of weights, rows of a shuffled window that were read are read again",
    ),
    Break(
        file="fsdata/order/changes.py",
        before="found: list[float | None] = [0.0] * len(run.weights)",
        after="found: list[float | None] = [None] * len(run.weights)",
        tests=("tests/data/order/test_epoch.py", "tests/data/loader/test_changes.py"),
        why="the rows read before a source was added are computed as if it had been there",
    ),
    Break(
        file="fsdata/order/changes.py",
        before="int(length) for length in before]) != old:",
        after="int(length) for length in before]) == new:",
        tests=("tests/data/loader/test_changes.py",),
        why="changed='max_length' accepts another schema",
    ),
    Break(
        file="fsdata/order/progress.py",
        before="of_epoch = int(left.min()) // batch_size if drop_last else",
        after="of_epoch = int(left.max()) // batch_size if drop_last else",
        tests=("tests/data/loader/test_skip.py",),
        why="with drop_last, skip(steps) counts a step at the end of an epoch that the loader does not take",
    ),
    Break(
        file="fsdata/nodes/steps.py",
        before="self._windows.appendleft(",
        after="self._windows.append(",
        tests=("tests/data/nodes", "tests/data/together/test_loader_programs.py"),
        why="rows that max_tokens carries over come after those behind them, and a saved state counts them wrongly",
    ),
    Break(
        file="fsdata/balance/kernels/packing.py",
        before="if (net > 0 and net > room_b) or (net < 0 and -net > room_a):",
        after="if net > 0 and net > room_b:",
        tests=("tests/data/balance",),
        why="a rank gets more than max_tokens, and may run out of memory",
    ),
    Break(
        file="fsdata/nodes/status_exchange.py",
        before='f"rank {left[0]} left the loop before {at}',
        after='f"rank {self.context.rank} left the loop before {at}',
        tests=("tests/data/balance", "tests/data/loader/test_loader_ranks.py"),
        why="the error that a rank left the loop names the rank that went on",
    ),
    Break(
        file="fsdata/catalog/prune.py",
        before='"GtEq": "LtEq", "Lt": "Gt",',
        after='"GtEq": "Lt", "Lt": "Gt",',
        tests=("tests/data/catalog/test_prune.py", "tests/data/lake/test_prune_by_catalog.py"),
        why="filter=pl.lit(5) >= pl.col('day') misses the rows of day 5 in a row group that begins with day 5",
    ),
    Break(
        file="fsdata/lake/catalog_file.py",
        before='if head["version"] != VERSION:',
        after='if head["version"] > VERSION:',
        tests=("tests/data/lake", "tests/tools/catalog"),
        why="a catalog of an older release is read as if it were of this one",
    ),
    Break(
        file="fsdata/growing/watermark.py",
        before="        elif file.key > taken.upto:\n            break",
        after="        else:\n            break",
        tests=("tests/data/follow",),
        why="a late file that is not whole yet holds up all files after it",
    ),
    Break(
        file="fsdata/remote/row_group.py",
        before="            if opened.stamp != self._stamp:\n                self._contents.clear()\n",
        after="",
        tests=("tests/data/remote",),
        why="an object that is written again while it is read gives old bytes beside new ones",
    ),
    Break(
        file="fsdata/catalog/retry.py",
        before="number >= (1 if file.local else policy.tries) or self._waited + wait > policy.max_s",
        after="number >= (1 if file.local else policy.tries)",
        tests=("tests/data/catalog/test_damage.py",),
        why="Retry(max_s=...) ends nothing: a store that is down is asked for minutes",
    ),
    Break(
        file="fsdata/nodes/dataset.py",
        before="np.cumsum(self._of_epoch.row_counts[[piece.unit, *piece.more]])",
        after="np.cumsum(self._of_epoch.row_counts[[piece.unit, *piece.more]])[-1:]",
        tests=("tests/data/pages/test_small_row_groups.py",),
        why="a state counts dropped rows by which row groups were decoded together",
    ),
    Break(
        file="fsdata/decode/readers/open_files.py",
        before="kept = 0 if self._closed else self._keep",
        after="kept = self._keep",
        tests=("tests/data/catalog", "tests/data/decode"),
        why="files that are given back after the loader was closed stay open",
    ),
    # fsranks
    Break(
        file="fsranks/meeting.py",
        before="for item in sorted({*reference, *given[rank]}):",
        after="for item in sorted(reference):",
        tests=("tests/ranks/test_meeting.py",),
        why="an argument that only the higher ranks were given is not noticed",
    ),
    Break(
        file="fsranks/machine/local_processes.py",
        before=' if peer != rank and each["machine"] == here})',
        after=" if peer != rank})",
        tests=("tests/ranks",),
        why="ranks of other machines count as dead, since no process of this machine has their number",
    ),
    Break(
        file="fsranks/diagnosis.py",
        before='f"{name_ranks(silent)} {within}: dead or stopped.',
        after='f"{name_ranks(missing)} {within}: dead or stopped.',
        tests=("tests/ranks/test_diagnosis.py",),
        why="the error about a dead rank also names ranks that run and only wait for it",
    ),
    Break(
        file="fsranks/diagnosis.py",
        before="if of_peer < limit_s / 2]",
        after="if of_peer < 0]",
        tests=("tests/faults",),
        why="a rank that comes back while the others look for it is not named",
    ),
    Break(
        file="fsranks/diagnosis.py",
        before="return bool(self.reason) and self.number <= number",
        after="return bool(self.reason)",
        tests=("tests/ranks/test_diagnosis.py", "tests/faults"),
        why="where a rank is lost in the last step, ranks that had finished before are named",
    ),
    Break(
        file="fsranks/diagnosis.py",
        before="if of_rank > 1.1 * limit_s + _SLACK_S",
        after="if of_rank > 9 * limit_s",
        tests=("tests/ranks/test_diagnosis.py", "tests/faults"),
        why="a rank that was stopped inside an exchange is not named",
    ),
    Break(
        file="fsdata/nodes/status_exchange.py",
        before="bool(failed) or all(other.ended for other in statuses)",
        after="bool(failed) or any(other.ended for other in statuses)",
        tests=("tests/faults",),
        why="once a rank has no rows left, the others wait for a rank that leaves the loop until the time limit",
    ),
    Break(
        file="fsdata/order/progress.py",
        before="history = (*self.history, self.positions) if any(self.positions) else self.history",
        after="history = self.history",
        tests=("tests/faults",),
        why="a state on another number of ranks begins the epoch anew: rows are read twice",
    ),
    # fscomm
    Break(
        file="fscomm/engine/program.py",
        before="read = each.rows(step.number, step.follows)",
        after="read = each.rows(step.number, step.number - 1)",
        tests=("tests/comm/engine/test_tables.py", "tests/comm/exactness/test_programs.py"),
        why="the first step of a second loop may look rows up before the last step of the first loop has updated them",
    ),
    Break(
        file="fscomm/engine/engine.py",
        before="for step in self.steps.to_come():\n                    if",
        after="for step in self.steps.to_come()[:1]:\n                    if",
        tests=("tests/comm/engine/test_checkpoint.py", "tests/comm/exactness/test_programs.py"),
        why="the step after load_state_dict trains with rows from before it",
    ),
    Break(
        file="fscomm/exchange/wire_gate.py",
        before="0 < self._number <= self._released",
        after="0 < self._number < self._released",
        tests=("tests/comm/exchange",),
        why="a rank that reads its tables between two backward passes waits until the deadline for the last update",
    ),
    Break(
        file="fscomm/loop/lookahead.py",
        before="saved.set_result(copy.deepcopy(save()))",
        after="saved.set_result(save())",
        tests=("tests/comm/loop",),
        why="where a loader gives its own dict out as its state, a saved state is one batch ahead of training",
    ),
    Break(
        file="fscomm/plan/group_plan.py",
        before="indices[of] = index - first[of % len(first)]",
        after="indices[of] = index - first[0]",
        tests=("tests/comm/exchange", "tests/comm/plan"),
        why="gradients of later parts are taken from the beginning of the step",
    ),
    Break(
        file="fscomm/plan/group_plan.py",
        before="return OwnerReply(classes, bounds.max(0).tolist())",
        after="return OwnerReply(classes, bounds[0].tolist())",
        tests=("tests/comm/exchange",),
        why="ranks know other bounds than each other, and cut into other numbers of chunks",
    ),
    Break(
        file="fscomm/exchange/id_exchange.py",
        before="self._cut_by(verdict.us_per_mb)",
        after="self._cut_by(pace)",
        tests=("tests/comm/exchange",),
        why="every rank cuts by the pace of its own link: ranks exchange chunks of other sizes",
    ),
    Break(
        file="fscomm/exchange/control_word.py",
        before="late = int(waited_us.argmin())",
        after="late = int(waited_us.argmax())",
        tests=("tests/comm/exchange/test_control_word.py",),
        why="the report names the rank that waited longest as the one that is late",
    ),
    Break(
        file="fscomm/two_levels/plan.py",
        before="most = [bound * elsewhere for bound in reply.bounds]",
        after="most = reply.bounds",
        tests=("tests/comm/exchange",),
        why="a rank passes on more rows to another rank of its host than the ranks know of: the transport refuses them",
    ),
    Break(
        file="fscomm/transports/cutting.py",
        before="return max(number + 1 - slots, 0)",
        after="return max(number - slots, 0)",
        tests=("tests/comm/transports/test_cutting.py", "tests/comm/transports/ring"),
        why="a fast sender writes over rows that a slow receiver has not taken out of the slot yet",
    ),
    Break(
        file="fscomm/transports/watch.py",
        before="gone = [rank for rank in gone if rank in missing]",
        after="pass",
        tests=("tests/comm/transports/ring",),
        why="a rank that has done its part and left is named as the reason why another one is late",
    ),
    Break(
        file="fscomm/tables/handles.py",
        before="        for tensor in tensors_in(result):\n            self.watch(tensor, addresses(tensor))\n",
        after="",
        tests=("tests/comm/engine/test_flushing.py", "tests/comm/exactness/test_programs.py"),
        why="a view of a table that the user makes inside the block is read before its updates are complete",
    ),
    Break(
        file="fscomm/tables/torchrec/binding.py",
        before="one = one_sample_without_ids(features)\n            dist_input(",
        after="one = features\n            dist_input(",
        tests=("tests/comm/engine/test_binding.py",),
        why="on a GPU the first batch is read before its copy is complete: an error about memory, now and then",
    ),
    Break(
        file="fscomm/tables/torchrec/module_view.py",
        before='changed["_has_mean_pooling_callback"] = False',
        after="pass",
        tests=("tests/comm/engine/test_binding.py",),
        why="on a GPU row-wise means fail: lengths in host memory are divided by tensors of the device",
    ),
    Break(
        file="fscomm/bags/pooled_tables.py",
        before="of_bags = shares[first].view(len(widths), -1).T",
        after="of_bags = shares[first].view(-1, len(widths))",
        tests=("tests/comm/engine/test_pooled_tables.py",),
        why="on a GPU gradients of a mean are divided by the lengths of other bags",
    ),
    Break(
        file="fscomm/tables/lookups.py",
        before="shadow().over(copies).update(",
        after="shadow().update(",
        tests=("tests/comm/exactness/test_programs.py",),
        why="an update that TorchRec loses, as hooks on saved tensors gave its backward a copy of the table, is done",
    ),
    Break(
        file="fscomm/engine/choice.py",
        before="(served and m in step.ids.irregular,",
        after="(False,",
        tests=("tests/comm/engine/test_fallbacks.py",),
        why="a module that gets an id outside its table is served all the same, and report().fallbacks does not tell",
    ),
    Break(
        file="fscomm/comm.py",
        before="        self._undo.close()\n        self._engine.abort(",
        after="        self._engine.abort(",
        tests=("tests/comm/engine/test_enter.py", "tests/comm/engine/test_bad_use.py"),
        why="after enable() failed on another rank, the model's forward still goes to the engine that was given up",
    ),
    Break(
        file="fscomm/parts/dedup_plan.py",
        before="        which = np.flatnonzero(last == part)\n",
        after="        which = np.flatnonzero(last == part)[np.argsort(part_of_use[last == part], kind='stable')]\n",
        tests=("tests/comm/parts/test_parts.py",),
        why="with index dedup gradients of an id are added up part after part, and not feature after feature",
    ),
    Break(
        file="fscomm/parts/dedup_plan.py",
        before="    last[item[in_parts]] = part_of_use[in_parts]  # of equal indices the last one counts\n",
        after="    last[:] = first\n",
        tests=("tests/comm/parts/test_parts.py",),
        why="with index dedup the gradient of an id travels before its last part had a backward pass",
    ),
    Break(
        file="fscomm/parts/dedup_plan.py",
        before="part_of=last.astype(np.uint8), first_of=first.astype(np.uint8))",
        after="part_of=last.astype(np.uint8), first_of=last.astype(np.uint8))",
        tests=("tests/comm/parts/test_parts.py",),
        why="with index dedup a row travels as late as the last part that uses it needs it",
    ),
    Break(
        file="fscomm/parts/schedule.py",
        before="if module.sent == parts:",
        after="if module.sent >= parts - 1:",
        tests=("tests/comm/parts/test_parts.py",),
        why="tables are updated before the last part of a step has its gradients, and again when it has them",
    ),
    Break(
        file="fscomm/parts/schedule.py",
        before="while module.sent in module.received:",
        after="while module.sent < len(module.received):",
        tests=("tests/comm/parts/test_parts.py",),
        why="gradients of parts travel in the order of their backward passes, so some travel before they are there",
    ),
    Break(
        file="fscomm/parts/row_classes.py",
        before="sends=2 * parts - 1)",
        after="sends=2 * parts - 2)",
        tests=("tests/comm/parts/test_parts.py",),
        why="rows that a later part of the next step needs are updated without the gradients of the last part",
    ),
    Break(
        file="fscomm/engine/program.py",
        before="done = self._executor.submit([*operations, *fetches], due, expecting=expecting)",
        after="first, last = (fetches, operations) if due is Due.NEXT else (operations, fetches)\n"
        "            done = self._executor.submit([*first, *last], due, expecting=expecting)\n"
        "            done = done[len(first) :] + done[: len(first)] if due is Due.NEXT else done",
        tests=("tests/comm/parts/test_parts.py",),
        why="a later part gets rows as they were before the update of the step before",
    ),
    Break(
        file="fscomm/parts/schedule.py",
        before="exchange and last",
        after="exchange",
        tests=("tests/comm/parts/test_parts.py",),
        why="DistributedDataParallel exchanges dense gradients with every part, so those of early parts count twice",
    ),
    Break(
        file="fscomm/exchange/id_exchange.py",
        before="words[:, 4:].max(0)",
        after="words[:, 4:].min(0)",
        tests=("tests/comm/parts/test_parts.py",),
        why="with parts='auto' steps are computed in the number of parts that is fastest on the fastest rank",
    ),
    Break(
        file="fscomm/plan/row_plan.py",
        before="ends=np.cumsum([len(part.ids) for part in parts]).tolist(),",
        after="ends=sorted({*np.cumsum([len(part.ids) for part in parts]).tolist()}),",
        tests=("tests/comm/parts/test_parts.py", "tests/comm/exchange"),
        why="a rank that has nothing in one part of a step leaves the part out, and plans of ranks do not fit",
    ),
    Break(
        file="fsmeter/meter.py",
        before="if len(fetched) > self._ahead else {}",
        after="if len(fetched) >= self._ahead else {}",
        tests=("tests/meter",),
        why="meter.watch(..., ahead=2) notes the lengths of the batch after the one that is trained on",
    ),
    Break(
        file="fscomm/exchange/worker.py",
        before="        value = super().result(timeout)\n        self._device.after(self.mark)\n",
        after="        value = super().result(timeout)\n",
        tests=STREAMS,
        why="on a GPU the training stream reads rows before the copy that brings them has run",
    ),
    Break(
        file="fscomm/exchange/worker.py",
        before="            if not self._device.is_done(mark):\n                self._under_way.append((mark, work))\n",
        after="",
        tests=STREAMS,
        why="on a GPU the memory of gradients is given away before the kernels that send them have run",
    ),
    Break(
        file="fscomm/exchange/rows.py",
        before="        self._device.after(made)",
        after="        pass",
        tests=STREAMS,
        why="on a GPU exclusive gradients arrive in memory in which collision kernels of the step before still work",
    ),
    Break(
        file="fscomm/engine/engine.py",
        before="        self.device.reads(*given, *tensors)\n",
        after="        self.device.reads(*tensors)\n",
        tests=STREAMS,
        why="on a GPU what a module's output needs of its features is overwritten while the forward uses it",
    ),
    Break(
        file="fscomm/exchange/executor.py",
        before="behind=self._device.mark() if from_device else moved)",
        after="behind=moved)",
        tests=STREAMS,
        why="on a GPU ids of a batch that the loader made there are read before they are written",
    ),
    Break(
        file="fscomm/exchange/rows.py",
        before="layout.host])) * row_bytes for splits in (send, receive)]",
        after="layout.host])) * row_bytes for splits in (receive, send)]",
        tests=("tests/comm/report", "tests/golden"),
        why="comm.report() shows the bytes received as sent, and those sent as received",
    ),
    Break(
        file="fscomm/engine/program.py",
        before="with_others = due is not Due.BACKGROUND or self._served.mixes_classes(m)",
        after="with_others = due is not Due.BACKGROUND",
        tests=("tests/comm/exactness/test_extensions.py",),
        why="exclusive rows of bags are updated before their gradient is there, which travels with the collision class",
    ),
    Break(
        file="fscomm/report/verdict.py",
        before="    timed = [(step_ms, waits) for step_ms, waits in timed if step_ms <= longest]\n",
        after="",
        tests=("tests/comm/report",),
        why="one evaluation in the loop, and the report says that next to nothing of a step waits for communication",
    ),
    Break(
        file="fscomm/engine/backward.py",
        before="        self._send_before(m, but=forward)\n",
        after="",
        tests=("tests/comm/engine/test_calls.py",),
        why="a module that is called twice in a step updates its tables in another order than the plain loop",
    ),
    Break(
        file="fscomm/exchange/executor.py",
        before='            self.abort(f"lost the others: {error}")\n',
        after="            self.wire_gate.stop()\n",
        tests=("tests/faults",),
        why="after one class of rows has failed, the other ranks wait for the others of this rank until the limit",
    ),
    Break(
        file="fscomm/tables/shadow_kernels.py",
        before="        with torch.no_grad(), self._turns.turn():\n",
        after="        with torch.no_grad():\n",
        tests=("tests/comm/exactness/test_cached_tables.py",),
        why="a look-up ahead takes places in the cache of a table from an update in another stream, which uses them",
    ),
    Break(
        file="fscomm/tables/turns.py",
        before="            self._device.after(self._last)\n",
        after="",
        tests=("tests/comm/exactness/test_cached_tables.py",),
        why="operations on the cache of a table are issued in turn, and the device does them at the same time",
    ),
    Break(
        file="fscomm/tables/shadow_kernels.py",
        before='"get_all_states", "flush"\n',
        after='"get_all_states"\n',
        tests=("tests/comm/exactness/test_cached_tables.py",),
        why="TorchRec's state_dict writes the cache of a table back before the pending updates are in it",
    ),
    # Managed collision
    Break(
        file="fscomm/engine/engine.py",
        before="ANY if step is None or foreign or reassigns else whole(step.number)",
        after="ANY if step is None or foreign else whole(step.number)",
        tests=MANAGED,
        why="after a batch was mapped to other rows than those ahead, the next one has rows without their last update",
    ),
    Break(
        file="fscomm/engine/engine.py",
        before="            guard.before_rows(record)\n",
        after="            pass\n",
        tests=MANAGED,
        why="maps stay as they were before the forward, and rows keep what the id before has learned",
    ),
    Break(
        file="fscomm/engine/program.py",
        before="        updates = self._order[m].before(reassigned(step.number))",
        after="        updates = self._order[m].before(reassigned(step.number))[:0]",
        tests=MANAGED,
        why="an update of a row lands after its id was evicted and it was reset",
    ),
    Break(
        file="fscomm/exchange/id_exchange.py",
        before="        return Mapped(rows, guard.reassigned(records[m], group))",
        after="        asked = [each[np.isin(each, rows)] for each in guard.reassigned(records[m], group)]\n"
        "        return Mapped(rows, asked)",
        tests=MANAGED,
        why="an evicted row that the step does not use is updated after it was reset",
    ),
    Break(
        file="fscomm/managed/guard.py",
        before="renewed = self._chain_of_twins != self._chain",
        after="renewed = self._chain_of_twins == 0",
        tests=MANAGED,
        why="after another batch than the announced one, ids get the rows that they would have had",
    ),
    Break(
        file="fscomm/managed/guard.py",
        before="record.hour_before not in (None, self._ran_in) or ",
        after="",
        tests=("tests/comm/engine/test_map_order.py",),
        why="an hour that begins between a batch and the next one evicts in the maps and not in their twins",
    ),
    Break(
        file="fscomm/exchange/id_exchange.py",
        before="        return Mapped(rows, guard.reassigned(records[m], group))",
        after="        guard.maps.evict(records[m])\n        return Mapped(rows, guard.reassigned(records[m], group))",
        tests=MANAGED,
        why="rows are reset while the step before still uses them, by the ids worker",
    ),
    Break(
        file="fscomm/exchange/id_exchange.py",
        before="                    classes[g][new.reassigned] = REASSIGNED",
        after="                    classes[g][new.reassigned[:-1]] = REASSIGNED",
        tests=MANAGED,
        why="one of the rows that a forward evicts is fetched ahead of it, with the weights of the old id",
    ),
    Break(
        file="fscomm/managed/guard.py",
        before="        if not self._has_held:\n            self._begin_chain()\n",
        after="",
        tests=MANAGED,
        why="a batch that was evaluated instead of trained on counts in the twins, and not in the maps",
    ),
    Break(
        file="fscomm/plan/row_plan.py",
        before="irregular=rows.irregular or two_rows,",
        after="irregular=rows.irregular,",
        tests=MANAGED,
        why="an id that gets its row in mid-batch has that of its first occurrence everywhere",
    ),
    Break(
        file="fscomm/managed/cpu_kernels.py",
        before="    if kernel.optimizer != EmbOptimType.EXACT_ROWWISE_ADAGRAD:",
        after="    if kernel.optimizer not in (EmbOptimType.EXACT_ROWWISE_ADAGRAD, EmbOptimType.EXACT_ADAGRAD):",
        tests=("tests/comm/engine/test_cpu_kernels.py",),
        why="a row with a new id loses the state of Adagrad, which fbgemm keeps",
    ),
    Break(
        file="fscomm/tables/lookups.py",
        before="            again = options | {name: unpacked[i] for name, i in given.items()}",
        after="            again = options",
        tests=MANAGED,
        why="under activation checkpointing rows are updated that the second forward has mapped to others",
    ),
    # tools
    Break(
        file="tools/scan/lengths.py",
        before="sums[column].count(lengths, piece.file, first_row, span)",
        after="sums[column].count(lengths, piece.file, 0, span)",
        tests=("tests/tools/scan",),
        why="the longest rows of a profile are named by their place in the row group, not in the file",
    ),
    Break(
        file="tools/profile/recommend.py",
        before="return int(-(-value // unit)) * unit",
        after="return int(value // unit) * unit",
        tests=("tests/tools/profile/test_recommend.py", "tests/golden"),
        why="the recommended max_tokens is rounded down: less room than the text beside it says",
    ),
    Break(
        file="tools/model/durations.py",
        before="hardware.allreduce_efficiency + latency / 1e3",
        after="hardware.allreduce_efficiency + latency",
        tests=("tests/tools/simulate",),
        why="the latency of an all-reduce counts microseconds as milliseconds: simulated steps are far too long",
    ),
    Break(
        file="tools/plan/costs.py",
        before="_to_one(moved[GRADIENTS], at, given)",
        after="_to_one(moved[GRADIENTS, ::-1], at, given)",
        tests=("tests/tools/plan",),
        why="`freescale plan` takes gradients to leave the rank that holds a table, and shows wrong bytes by rank",
    ),
    Break(
        file="tools/calibrate/fits.py",
        before='"low": over(inverse["high"]), "high": over(inverse["low"]),',
        after='"low": over(inverse["low"]), "high": over(inverse["high"]),',
        tests=("tests/tools/calibrate",),
        why="the interval of a calibrated bandwidth has its ends swapped",
    ),
    Break(
        file="tools/profile/length_report.py",
        before='Column("median", n.COUNT, "p50",',
        after='Column("median", n.COUNT, "p95",',
        tests=("tests/tools/report",),
        why="in the table of lengths over time, P95 stands under median, too",
    ),
    Break(
        file="tools/console/terminal.py",
        before="        if error is None and self._findings:\n            raise typer.Exit(FOUND)\n",
        after="",
        tests=("tests/tools/console", "tests/tools/check"),
        why="`freescale check` ends with status 0 although it found faults: CI stays green",
    ),
    Break(
        file="fsdata/decode/align.py",
        before="for each in lengths]) & ~decoded.drop",
        after="for each in lengths])",
        tests=("tests/tools/check",),
        why="lists of unequal length are a fault also in rows that are left out",
    ),
    Break(
        file="fsdata/sampling/sampled_rows.py",
        before="rows - np.concatenate([[0], ends])[number]",
        after="rows",
        tests=("tests/data/sampling",),
        why="rows of small row groups draw other events where these are decoded one by one, as after a resume",
    ),
    Break(
        file="fsdata/sampling/sampled_rows.py",
        before="start=start if at_end else start + skipped",
        after="start=start + skipped",
        tests=("tests/data/sampling",),
        why="sampled histories with pools have events that happened after the row",
    ),
    Break(
        file="fsdata/histories/histories.py",
        before="for name in self.groups if name not in sampled)",
        after="for name in self.groups)",
        tests=("tests/data/sampling",),
        why="a sampled history that moves to another rank has the newest events there, and not those that it drew",
    ),
    Break(
        file="fsdata/histories/history_table.py",
        before="own = () if files.faults.notes is None else (secrets.token_hex(),)",
        after="own = ()",
        tests=("tests/tools/check",),
        why="a loader takes the tables that `freescale check` made on the same host, with rows that it would refuse",
    ),
    Break(
        file="tools/scan/batch_order.py",
        before="rows = first + np.flatnonzero(has_time[first : first + count])",
        after="rows = np.flatnonzero(has_time[first : first + count])",
        tests=("tests/tools/collisions",),
        why="collisions by time count the rows of the first stretch again in place of those of later ones",
    ),
    Break(
        file="tools/model/batches.py",
        before="return self._less(self.mean, self.most)",
        after="return self.straggler()",
        tests=("tests/tools/profile/test_stragglers.py",),
        why="a step with one giant history counts as much as an even one: gains are 5 to 20 times off",
    ),
    Break(
        file="tools/scan/batch_order.py",
        before="rows, world_size=ranks, shuffle=shuffle, shuffle_window=WINDOW, seed=seed, epoch=0",
        after="rows, world_size=ranks, shuffle=shuffle, shuffle_window=len(rows), seed=seed, epoch=0",
        tests=("tests/tools/profile/test_loader_code.py",),
        why="rows are shuffled over the whole set, as no loader does: stragglers of sorted data look small",
    ),
)


CONTROL = Break(
    file="pyproject.toml",
    before="[build-system]",
    after="[build-system]",
    tests=tuple(sorted({each for broken in BREAKS for each in broken.tests})),
    why="nothing is broken",
)


def failure(broken: Break) -> tuple[str, str]:
    """(which test fails in a copy with the break, empty if none does; how many tests ran, and how long)."""
    with tempfile.TemporaryDirectory() as name:
        at = Path(name).resolve()
        environment, file = copy(at), at / broken.file
        text = file.read_text()
        if text.count(broken.before) != 1:
            raise SystemExit(f"{broken.file} has {text.count(broken.before)} times, not once: {broken.before!r}")
        file.write_text(text.replace(broken.before, broken.after))
        if "@kernel" in text:  # numba does not notice a changed callee
            shutil.rmtree(at / "build" / "numba", ignore_errors=True)
        done = subprocess.run([*PYTEST, *broken.tests], cwd=at, env=environment, capture_output=True, text=True)
    if done.returncode > 1:
        raise SystemExit(f"{broken.file}: the tests do not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    by = failed[1] if failed else f"pytest ended with {done.returncode}" if done.returncode else ""
    return by, done.stdout.strip().rpartition("\n")[2]


def main(numbers: list[int]) -> int:
    missed = 0
    for number in numbers or range(1, len(BREAKS) + 1):
        broken = (CONTROL, *BREAKS)[number]
        by, ran = failure(broken)
        missed += bool(by) != bool(number)
        print(f"{number:2} {f'found by {by}' if by else 'NOT FOUND'}: {broken.file}: {broken.why}. {ran}", flush=True)
    return missed > 0


if __name__ == "__main__":
    sys.exit(main([int(number) for number in sys.argv[1:]]))
