"""Runs commands that measure, each within its own time limit, and keeps what they found, whatever happens to them.

A command gets a folder and writes JSON documents into it. A document may hold `checks`, which are rewritten while the
command goes on: so a command that is ended leaves the name of the check that it was at.
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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from common.table import text_table

RESULTS = "{results}"  # in a command: the folder for its JSON
_PATIENCE_S = 10.0  # for processes that were asked to end
_ENDED_WITH = "it ended with {}"
_TAIL = 8000  # characters of the output that are kept
PASSED, FAILED, SKIPPED, RUNNING = "passed", "failed", "skipped", "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """environment: variables besides those of this process."""

    command: tuple[str, ...]
    limit_s: float
    environment: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        words = [_short(word) for word in self.command if word not in (RESULTS, "--results", "--outcomes")]
        return " ".join([*(f"{k}={v}" for k, v in self.environment.items()), *words])


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A question. `asked`: in a few words."""

    name: str
    asked: str
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """status: passed, failed, skipped or running; told: what was found, or why not."""

    name: str
    status: str
    told: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A step that was run. found: its documents by name. problem: why it counts as failed, besides its checks."""

    step: str
    seconds: float
    problem: str
    found: dict[str, Any]
    checks: list[Check]
    output: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    part: Part
    date: str
    ended: list[Ended]

    @property
    def checks(self) -> list[Check]:
        return [check for each in self.ended for check in each.checks]

    @property
    def seconds(self) -> float:
        return sum(each.seconds for each in self.ended)

    @property
    def failures(self) -> list[str]:
        problems = [f"{each.step}: {each.problem}" for each in self.ended if each.problem]
        return problems + [f"{check.name}: {check.told}" for check in self.checks if check.status == FAILED]

    @property
    def reached(self) -> str:
        """`45 passed, 3 skipped, kernels: 10 rows`."""
        counts = Counter(check.status for check in self.checks)
        texts = [f"{counts[status]} {status}" for status in (PASSED, FAILED, SKIPPED, RUNNING) if counts[status]]
        documents = [(name, found) for each in self.ended for name, found in each.found.items()]
        texts += [f"{name}: {len(found['rows'])} rows" for name, found in documents if "rows" in found]
        return ", ".join(texts) or "nothing"


def run(part: Part) -> Outcome:
    """All steps, also after one that failed. Nothing that they do raises here."""
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Outcome(part=part, date=date, ended=[_ended(step) for step in part.steps])


def write(outcome: Outcome, folder: Path, measured_with: Mapping[str, Any]) -> Path:
    """`<part>.json`: date and versions, what was asked, what was found, and what failed."""
    document = {
        "part": outcome.part.name,
        "asked": outcome.part.asked,
        "date": outcome.date,
        "measured_with": dict(measured_with),
        "seconds": outcome.seconds,
        "reached": outcome.reached,
        "failures": outcome.failures,
        "steps": [asdict(each) for each in outcome.ended],
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{outcome.part.name}.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def summary(outcomes: Sequence[Outcome]) -> str:
    """A table, then what was found, skipped and failed, one line each."""
    rows = [
        [each.part.name, each.part.asked, each.reached, len(each.failures), round(each.seconds)] for each in outcomes
    ]
    lines = [text_table("", ["part", "asked", "reached", "failures", "seconds"], rows)]
    for outcome in outcomes:
        name, checks = outcome.part.name, outcome.checks
        lines += [f"{name}: {each.name}: {each.told}" for each in checks if each.status == PASSED and each.told]
        lines += [
            f"{name}: {note}" for each in outcome.ended for found in each.found.values() for note in _notes(found)
        ]
        skipped = Counter(check.told for check in checks if check.status == SKIPPED)
        lines += [f"{name}: {count} skipped: {why}" for why, count in skipped.items()]
        lines += [f"{name} FAILED: {text}" for text in outcome.failures]
    return "\n".join(lines)


def _notes(found: Mapping[str, Any]) -> list[str]:
    """What a benchmark says below its table."""
    return [str(note) for note in found.get("notes", [])]


def _ended(step: Step) -> Ended:
    with tempfile.TemporaryDirectory() as folder:
        scratch, log = Path(folder) / "results", Path(folder) / "output"
        scratch.mkdir()
        start = time.monotonic()
        problem = _run(step, scratch, log)
        seconds = time.monotonic() - start
        found, checks, broken = _documents(scratch)
        output = log.read_text(errors="replace")[-_TAIL:] if log.exists() else ""
    at = [check.name for check in checks if check.status == RUNNING]
    if problem == _ENDED_WITH.format(1) and any(check.status == FAILED for check in checks):
        problem = ""  # these checks say it
    problems = [problem and problem + (f"; it was at {', '.join(at)}" if at else ""), *broken]
    if not any(problems) and not found:
        problems.append("it ended well, but wrote no result")
    text = "; ".join(each for each in problems if each)
    return Ended(step=str(step), seconds=seconds, problem=text, found=found, checks=checks, output=output)


def _run(step: Step, scratch: Path, log: Path) -> str:
    """What went wrong, or an empty text. Its processes have ended then."""
    command = [str(scratch) if word == RESULTS else word for word in step.command]
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                command,
                env={**os.environ, **step.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a group of its own, which can be ended without touching any other process
            )
        except OSError as error:
            return f"it could not be started: {error}"
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


def _documents(scratch: Path) -> tuple[dict[str, Any], list[Check], list[str]]:
    """By name; the checks in them; what could not be read."""
    found, checks, broken = {}, [], []
    for path in sorted(scratch.glob("*.json")):
        try:
            document = json.loads(path.read_text())
            of_it = [Check(**check) for check in document.get("checks", [])]
            if not all(isinstance(value, str) for check in of_it for value in asdict(check).values()):
                raise TypeError("name, status and told of a check must be texts")
            if not all(isinstance(document.get(name, []), list) for name in ("rows", "notes")):
                raise TypeError("rows and notes must be lists")
            checks += of_it
            found[path.stem] = document
        except (ValueError, TypeError, AttributeError) as error:
            broken.append(f"{path.name} is no result: {error}")
    return found, checks, broken


def _short(word: str) -> str:
    """Without the folders of this machine."""
    return Path(word).name if Path(word).is_absolute() else word
