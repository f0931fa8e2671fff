"""From blocks of steps to the tables of `exposed.py`: medians and quartiles over rounds, no measuring."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

GOODPUT = 1448 / 1514  # payload of a full TCP packet
TITLES = {
    "compute": "compute only",
    "plain": "plain loop",
    "sparse dist": "TorchRec SparseDist",
    "pec": "TorchRec PEC, stubbed",
    "fscomm": "fscomm",
}
_OF_MAPS = {"hits": "hit", "own": "have a row of their own", "late": "have a row that the step evicted"}
Table = tuple[str, list[str], list[list[Any]]]


def title(mode: str) -> str:
    kind, *parts = mode.split(" in ")
    return " in ".join([TITLES[kind], *parts])


@dataclass(kw_only=True, slots=True)
class Blocks:
    """What all ranks measured in one section: per mode and round, one answer of `exposed_rank.block` per rank."""

    condition: dict[str, Any]
    data: dict[str, float]
    answers: dict[str, dict[int, list[dict[str, Any]]]] = field(default_factory=dict)

    def add(self, number: int, mode: str, answers: list[dict[str, Any]]) -> None:
        self.answers.setdefault(mode, {})[number] = answers

    def parts(self, mode: str) -> list[int]:
        """Of a step, in each round."""
        if mode.endswith("auto parts"):
            return [ranks[0]["said"][-1]["parts"] for ranks in self._rounds(mode)]
        return [int(mode.split(" ")[-2]) if mode.endswith("parts") else 1] * len(self.answers[mode])

    def steps_ms(self, mode: str) -> list[float]:
        """Mean step of all ranks, per round."""
        return [statistics.mean(1e3 * answer["step_s"] for answer in ranks) for ranks in self._rounds(mode)]

    def exposed_ms(self, mode: str) -> list[float]:
        """Step minus the compute-only step of the same round."""
        return [step - alone for step, alone in zip(self.steps_ms(mode), self.steps_ms("compute"), strict=True)]

    def cpu_ms(self, mode: str) -> float:
        """CPU time of a rank's step, all threads: the median over rounds of the mean over ranks."""
        of_rounds = [statistics.mean(1e3 * answer["cpu_s"] for answer in ranks) for ranks in self._rounds(mode)]
        return statistics.median(of_rounds)

    def blocked_ms(self, mode: str) -> float | None:
        """Of a step, in which the training thread waited, as fscomm reports; None of other modes."""
        rounds = [
            [sum(step["exposed_ms"].values()) for answer in ranks for step in answer["said"]]
            for ranks in self._rounds(mode)
        ]
        return statistics.median(map(statistics.mean, rounds)) if all(rounds) else None

    def managed(self) -> dict[str, float] | None:
        """Shares of the ids that the ranks own behind managed collision, over all measured steps; None without it."""
        if not self.condition["shape"]["slots"]:
            return None
        steps = [step for ranks in self._rounds("fscomm") for rank in ranks for step in rank["said"]]
        maps = [each for step in steps for each in step["managed"].values()]
        collisions = [each for step in steps for each in step["collisions"].values()]
        shares = {name: sum(each[name] for each in maps) / sum(each["ids"] for each in maps) for name in _OF_MAPS}
        return shares | {
            "collide": sum(each["colliding"] for each in collisions) / sum(each["occurrences"] for each in collisions)
        }

    def floor_ms(self) -> float | None:
        """Wire time of a step's collisions, one after the other; None where links are not held to a rate."""
        if self.condition["rate_mbit"] is None or set(self.condition["shape"]["sharding"]) != {"row"}:
            return None
        size = self.data["gradient bytes"] + self.data["row bytes"]
        return 8e3 * size / (self.condition["rate_mbit"] * 1e6 * GOODPUT)

    def line(self) -> str:
        return ", ".join(
            f"{mode} {statistics.median(self.exposed_ms(mode)):.0f}" for mode in self.answers if mode != "compute"
        )

    def raw(self) -> dict[str, Any]:
        """Everything, without the details of single steps."""
        answers = {
            mode: {
                str(number): [{**answer, "said": len(answer["said"])} for answer in ranks]
                for number, ranks in rounds.items()
            }
            for mode, rounds in self.answers.items()
        }
        return {"condition": self.condition, "data": self.data, "answers": answers}

    def _rounds(self, mode: str) -> Iterator[list[dict[str, Any]]]:
        for _, ranks in sorted(self.answers[mode].items()):
            yield ranks


def headline_table(blocks: Sequence[Blocks]) -> Table:
    """One line per section and mode: the four measures."""
    unshaped = {block.condition["compute_ms"]: block for block in blocks if block.condition["rate_mbit"] is None}
    rows = []
    for block in blocks:
        if block.condition["name"].startswith("collision"):
            continue
        other = unshaped.get(block.condition["compute_ms"])
        comparable = other is not None and other is not block and other.condition["shape"] == block.condition["shape"]
        plain = statistics.median(block.exposed_ms("plain")) if "plain" in block.answers else None
        for mode in block.answers:
            exposed = statistics.median(block.exposed_ms(mode))
            shaped = None
            if comparable and other is not None and block.condition["ranks"] == other.condition["ranks"]:
                shaped = statistics.median(block.steps_ms(mode)) - statistics.median(other.steps_ms(mode))
            rows.append([
                block.condition["name"],
                title(mode),
                statistics.median(block.steps_ms(mode)),
                None if mode == "compute" else exposed,
                "" if mode == "compute" else _quartiles(block.exposed_ms(mode)),
                None if mode == "compute" or not plain else round(100 * (exposed / plain - 1), 1),
                shaped,
                block.blocked_ms(mode),
                block.cpu_ms(mode),
            ])  # fmt: skip
    columns = [
        "section", "mode", "step ms", "(1) exposed", "quartiles", "vs plain %", "(2) shaped - unshaped", "(3) blocked",
        "(4) CPU",
    ]  # fmt: skip
    return "Embedding communication that a step still pays for, ms (per rank and step)", columns, rows


def collision_table(blocks: Sequence[Blocks]) -> tuple[str, list[str], list[list[Any]], list[str]]:
    """Exposed time over the collision rate, and its slope."""
    rows = []
    for block in blocks:
        if not block.condition["name"].startswith("collision"):
            continue
        data = block.data
        for mode in block.answers:
            if mode != "compute":
                exposed = block.exposed_ms(mode)
                rows.append([
                    100 * data["by occurrence"], 100 * data["by distinct row"], title(mode),
                    statistics.median(exposed), _quartiles(exposed), block.blocked_ms(mode),
                    block.floor_ms() / statistics.median(block.parts(mode)), _list(block.parts(mode)),
                ])  # fmt: skip
    notes = []
    points: list[Any] = [(row[0], row[3]) for row in rows if row[2] == TITLES["fscomm"]]
    if len(points) > 2:
        percent, cost = zip(*points, strict=True)
        line, fit = statistics.linear_regression(percent, cost), statistics.correlation(percent, cost)
        notes = [
            f"fscomm: {line.intercept:.1f} ms + {line.slope:.2f} ms per percent of collisions (correlation {fit:.3f})."
        ]
    columns = ["% of ids", "% of rows", "mode", "(1) exposed ms", "quartiles", "(3) blocked ms", "floor ms", "parts"]
    return "Exposed time over the collision rate, 400 ms emulated compute", columns, rows, notes


def cost_notes(
    blocks: Sequence[Blocks], different: dict[str, dict[str, list[str]]], peaks: dict[str, int]
) -> list[str]:
    """What the headline table needs to be read: the floor, shares of ids, whether tables are equal, memory."""
    notes = [
        "Medians over rounds of block means. Compute is emulated by sleeping except in sections named real compute.",
        "Compute only: the same dense network under DDP, rows constant. (3): without the waits of DDP.",
        "TorchRec's PEC is for CUDA, runs here on two stubs, and its updates are wrong.",
    ]
    for block in blocks:
        floor = block.floor_ms()
        if floor is not None and not block.condition["name"].startswith("collision"):
            data = block.data
            notes.append(
                f"{block.condition['name']}: {data['by occurrence']:.1%} of ids collide ({data['by distinct row']:.1%} "
                f"of distinct rows); floor, every collision byte exposed: {floor:.1f} ms."
            )
        if shares := block.managed():
            texts = [f"{shares[name]:.1%} {what}" for name, what in {**_OF_MAPS, "collide": "collide"}.items()]
            notes.append(f"{block.condition['name']}: of the ids {', '.join(texts)}.")
    for section, modes in different.items():
        for mode, ranks in modes.items():
            if mode != "compute":
                verdict = (
                    f"DIFFER from the plain loop's on ranks {', '.join(ranks)}" if ranks else "are the plain loop's"
                )
                alike = " in as many parts" if mode.endswith("parts") else ""
                notes.append(f"World of {section!r}, {title(mode)}: tables and dense weights {verdict}{alike}.")
    if peaks:
        over = {mode: peak - peaks["plain"] for mode, peak in peaks.items() if mode != "plain"}
        notes += [f"{title(mode)}: peak memory over the plain loop {more:,} bytes." for mode, more in over.items()]
    for block in blocks:
        alone = block.steps_ms("compute")
        if (spread := max(alone) / min(alone) - 1) > 0.05:
            notes.append(
                f"NOT FOR THE RECORD: the machine was busy in {block.condition['name']!r}, where the compute-only step "
                f"varied by {spread:.0%} between rounds."
            )
    return notes


def _list(parts: Sequence[int]) -> str:
    return ", ".join(map(str, sorted({*parts})))


def _quartiles(values: Sequence[float]) -> str:
    if len(values) < 3:
        return f"[{min(values):.1f}..{max(values):.1f}]"
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"[{low:.1f}..{high:.1f}]"
