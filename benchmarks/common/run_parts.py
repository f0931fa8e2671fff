"""Runs commands that measure, each within its own time limit, and keeps what they found, whatever happens to them.

A command gets a folder and writes JSON documents into it. A document may hold `checks` (see `common.checks`), which are
rewritten while the command runs: so a command that is ended leaves the name of the check that it was at.
"""

import datetime
import json
import os
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.table import text_table

RESULTS = "{results}"  # in a command: the folder for its JSON
_PATIENCE_S = 10.0  # for processes that were asked to end
_ENDED_WITH = "it ended with {}"
_TAIL = 8000  # characters of the output that are kept
STATUSES = PASSED, FAILED, SKIPPED, RUNNING = "passed", "failed", "skipped", "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """environment: variables besides those of this process."""

    command: tuple[str, ...]
    limit_s: float
    environment: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """Without the folders of this machine."""
        words = [Path(word).name if Path(word).is_absolute() else word for word in self.command]
        words = [word for word in words if word not in (RESULTS, "--results", "--outcomes")]
        return " ".join([*(f"{k}={v}" for k, v in self.environment.items()), *words])


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A question. `asked`: in a few words."""

    name: str
    asked: str
    steps: tuple[Step, ...]


def run(part: Part) -> dict[str, Any]:
    """The record of all steps, also of those after one that failed. Nothing that they do raises here."""
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    steps = [_run(step) for step in part.steps]
    checks = _checks(steps)
    counts = Counter(check["status"] for check in checks)
    reached = [f"{counts[status]} {status}" for status in STATUSES if counts[status]]
    documents = [item for step in steps for item in step["found"].items()]
    reached += [f"{name}: {len(found['rows'])} rows" for name, found in documents if "rows" in found]
    problems = [f"{step['step']}: {step['problem']}" for step in steps if step["problem"]]
    return {
        "part": part.name,
        "asked": part.asked,
        "date": date,
        "seconds": sum(step["seconds"] for step in steps),
        "reached": ", ".join(reached) or "nothing",
        "failures": problems + [f"{check['name']}: {check['told']}" for check in checks if check["status"] == FAILED],
        "steps": steps,
    }


def summary(records: Sequence[dict[str, Any]]) -> str:
    """A table, then what was found, skipped and failed, one line each."""
    rows = [
        [each["part"], each["asked"], each["reached"], len(each["failures"]), round(each["seconds"])]
        for each in records
    ]
    lines = [text_table("", ["part", "asked", "reached", "failures", "seconds"], rows)]
    for record in records:
        name, checks = record["part"], _checks(record["steps"])
        texts = [f"{check['name']}: {check['told']}" for check in checks if check["status"] == PASSED and check["told"]]
        for step in record["steps"]:
            texts += [note for found in step["found"].values() for note in found.get("notes", [])]
        skipped = Counter(check["told"] for check in checks if check["status"] == SKIPPED)
        texts += [f"{count} skipped: {why}" for why, count in skipped.items()]
        lines += [f"{name}: {text}" for text in texts]
        lines += [f"{name} FAILED: {text}" for text in record["failures"]]
    return "\n".join(lines)


def _checks(steps: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    return [check for step in steps for check in step["checks"]]


def _run(step: Step) -> dict[str, Any]:
    """found: its documents by name. problem: why it counts as failed, besides its checks."""
    with tempfile.TemporaryDirectory() as folder:
        scratch, log = Path(folder) / "results", Path(folder) / "output"
        scratch.mkdir()
        start = time.monotonic()
        problem = _problem(step, scratch, log)
        seconds = time.monotonic() - start
        found, broken = _documents(scratch)
        output = log.read_text(errors="replace")[-_TAIL:]
    checks = [check for document in found.values() for check in document.get("checks", [])]
    at = [check["name"] for check in checks if check["status"] == RUNNING]
    if problem == _ENDED_WITH.format(1) and any(check["status"] == FAILED for check in checks):
        problem = ""  # these checks say it
    problems = [problem and problem + (f"; it was at {', '.join(at)}" if at else ""), *broken]
    if not any(problems) and not found:
        problems.append("it ended well, but wrote no result")
    text = "; ".join(each for each in problems if each)
    return {
        "step": str(step), "seconds": seconds, "problem": text, "found": found, "checks": checks, "output": output,
    }  # fmt: skip


def _problem(step: Step, scratch: Path, log: Path) -> str:
    """What went wrong, or an empty text. Its processes have ended then."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(scratch) if word == RESULTS else word for word in step.command],
            env={**os.environ, **step.environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a group of its own, which can be ended without touching any other process
        )
        try:
            code = process.wait(step.limit_s)
        except subprocess.TimeoutExpired:
            return f"it was ended after its limit of {step.limit_s:g} s"
        finally:
            _end_group(process)
    return _ENDED_WITH.format(code) if code else ""


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """What is left of a command would disturb those after it: ask it to end, then make it end."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        end = time.monotonic() + _PATIENCE_S
        try:
            os.killpg(process.pid, number)
            while time.monotonic() < end:
                process.poll()
                os.killpg(process.pid, 0)
                time.sleep(0.02)
        except ProcessLookupError:
            return
    process.wait()


def _documents(scratch: Path) -> tuple[dict[str, Any], list[str]]:
    """By name; what could not be read, as the process was ended while it wrote."""
    found, broken = {}, []
    for path in sorted(scratch.glob("*.json")):
        try:
            found[path.stem] = json.loads(path.read_text())
        except ValueError as error:
            broken.append(f"{path.name} is no result: {error}")
    return found, broken
