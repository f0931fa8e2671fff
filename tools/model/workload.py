"""What a rank trains on in a step, as a profile has it: events, operations, collisions, time lost to slow ranks."""

import ast
import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from freescale_tools.calibrate.calibration import Calibration
from freescale_tools.console.errors import UsageError
from freescale_tools.model.batches import PACKED, UNPACKED, Samples, Setting, simulate_setting
from freescale_tools.model.hardware import check, number, parameter, parameters
from freescale_tools.scan.batch_order import RowsInOrder
from freescale_tools.scan.histogram import LengthHistogram
from fsdata.balance.cost import CostModel, Polynomial, Power

PAPER_COLLISION = 0.12
METHODS = (UNPACKED, PACKED)
"""How batches come to ranks: as they are dealt, or by the recommended method."""
CHANNELS, LAYERS, DENSE_PARAMETERS = 512, 4, 50_000_000
FIELDS = 3.0  # aligned sequences of a history (item, action, time)
# A pair of events takes two products of `channels` multiply-adds forward and twice that backward, in every
# layer.
FLOPS_PER_COST = 12 * CHANNELS * LAYERS
_SENT = ("collision_rows", "collision_gradients", "exclusive_rows", "exclusive_gradients")  # bytes in a profile


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Means per rank and step. Raises ValueError for impossible values."""

    batch_size: int = number("samples per rank", whole=True)
    max_length: int | None = number("events", whole=True, default=None)
    events: float = number("per rank and step")
    """Events of the histories after the cut to `max_length`."""
    flops: float = number("operations per rank and step")
    """Of forward and backward."""
    dim: float = number("floats per event")
    """Exchanged per event: the embedding dimensions of all its fields together."""
    ids: float = number("per event", default=1.0)
    """Looked up per event."""
    value_bytes: float = number("bytes", most=4, default=4.0)
    """Of an exchanged value of a row or a gradient: 2 with communication quantised to fp16 or bf16."""
    fields: float = number("values per event", default=FIELDS)
    """8 bytes each: of a batch, copied to the GPU; of samples that balancing moves between hosts."""
    dense_parameters: float = number("", zero=True)
    compute_ms: float | None = number("ms per rank and step", zero=True, default=None)
    """Of forward and backward of a mean rank, without `fixed_ms`; None: it follows from `flops`."""
    fixed_ms: float = number("ms per step", zero=True, default=0.0)
    """Of forward and backward, whatever the samples."""
    forward: float | None = number("share of compute", most=1, default=None)
    """Of the forward pass; None: as assumed."""
    lookup_ms: float | None = number("ms per rank and step", zero=True, default=None)
    """Of all rows of a rank; None: it follows from the memory."""
    apply_ms: float | None = number("ms per rank and step", zero=True, default=None)
    balancing_ms: float = number("ms per step", zero=True, default=0.0)
    """What balancing itself takes of the training thread."""
    distinct: float = number("rows per event", most=1, default=1.0)
    """Rows of a rank's batch over its events: what is sent if a row is sent once to each rank."""
    colliding_distinct: float = number("rows per colliding event", most=1, default=1.0)
    """The same of the events that collide."""
    collisions: Mapping[int, float]
    """Ranks -> share of the events whose row the batch before uses too, 0 to 1."""
    time_lost: Mapping[tuple[int, str], float] = dataclasses.field(default_factory=dict)
    """(ranks, one of METHODS) -> share of the computing time that ranks wait for the slowest, 0 to below 1."""
    skews: Mapping[tuple[int, str], float] = dataclasses.field(default_factory=dict)
    """(ranks, one of METHODS) -> events of the rank that has most, over the mean; 1 where nothing is known."""
    sequence: str = ""
    cost: CostModel = dataclasses.field(default_factory=Polynomial)
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Field -> where its value comes from."""

    def __post_init__(self) -> None:
        check(self)
        if not self.collisions or not all(0 <= rate <= 1 for rate in self.collisions.values()):
            raise ValueError(f"collisions = {dict(self.collisions)}: shares of 0 to 1 by ranks are needed")
        if not all(0 <= share < 1 for share in self.time_lost.values()):
            raise ValueError(f"time_lost = {dict(self.time_lost)}: shares of 0 to below 1 are needed")

    def collision(self, ranks: int) -> float:
        """The rate at `ranks`, interpolated on a logarithmic axis; the nearest rate beyond its ends."""
        known = sorted(self.collisions)
        return float(np.interp(np.log2(ranks), np.log2(known), [self.collisions[at] for at in known]))

    def parameters(self) -> list[dict[str, Any]]:
        """All that has a source, as {name, value, unit, source}."""
        most = max(self.collisions)
        return [
            parameter("sequence", self.sequence, "", "profile"),
            parameter("cost", repr(self.cost), "", self.sources["cost"]),
            *parameters(self),
            parameter("collision", self.collisions[most], "share of events", self.sources["collisions"]),
        ]


def workload(
    profile: Mapping[str, Any],
    *,
    sequence: str | None = None,
    batch_size: int | None = None,
    max_length: int | None = None,
    dim: float | Mapping[str, int] | None = None,
    calibration: Calibration | None = None,
) -> Workload:
    """The workload of a profile, without the time lost to slow ranks, which `at_ranks` adds.

    Settings that are None come from the profile: its first sequence, the batch size of its grid, the recommended
    maximum length, its `dims`. `dim`: floats exchanged per event, or by list column. Raises UsageError for a profile
    without lengths, and for unknown sequences and columns.
    """
    name, whole = _lengths(profile, sequence)
    usual, advice = (profile.get("stragglers") or {}).get("default", {}), profile.get("recommended") or {}
    collisions, source = profile.get("collisions"), calibration.source if calibration else ""
    batch_size, of_batch_size = _first(
        (batch_size, "given"), (usual.get("batch_size"), "profile: its grid"), (128, "paper, Fig. 8")
    )
    max_length, of_max_length = _first(
        (max_length, "given"),
        (advice.get("max_length"), "profile: recommended"),
        (usual.get("max_length"), "profile: its grid"),
        (whole.longest, "profile: its longest history"),
    )
    cost, of_cost = _first(
        (calibration and repr(calibration.cost), source),
        (advice.get("cost_model"), "profile: recommended"),
        (usual.get("cost"), "profile: its grid"),
        ("Polynomial()", "fsdata's default"),
    )
    dims, given = (dim, "given") if dim is not None else (profile.get("dims"), "profile: given")
    floats, ids = _per_event(profile, name, max_length, dims) if isinstance(dims, Mapping) else (None, 1.0)
    exchanged, of_exchanged = _first(
        (floats, f"{given}, by column"),
        (None if floats else dims, given),
        (calibration and calibration.dim, f"{source}, embeddings"),
        (collisions and collisions["dim"], "profile: collisions"),
        (128, "assumed"),
    )
    histogram = whole.clipped(max_length)
    operations = batch_size * flops(histogram.lengths, histogram.counts)
    found = {
        "batch_size": (batch_size, of_batch_size),
        "max_length": (max_length, of_max_length),
        "cost": (cost_model(cost), of_cost),
        "dim": (exchanged, of_exchanged),
        "ids": (ids, of_exchanged),
        "fields": _fields(profile, name, max_length),
        "events": (batch_size * histogram.mean, "profile: its lengths, cut to max_length"),
        "dense_parameters": (DENSE_PARAMETERS, "assumed"),
        "flops": (operations, "" if calibration else "assumed: from channels and layers"),
        **_counted(collisions),
        **(_measured(histogram, batch_size, calibration) if calibration else {}),
    }
    return Workload(
        sequence=name,
        **{field: value for field, (value, _) in found.items()},
        sources={field: source for field, (_, source) in found.items() if source},
    )


def _first(*options: tuple[Any, str]) -> tuple[Any, str]:
    """The first value that is known, and its source."""
    return next(option for option in options if option[0] is not None)


def _lengths(profile: Mapping[str, Any], asked: str | None) -> tuple[str, LengthHistogram]:
    """The sequence asked for, or the first. Raises UsageError if the profile has no lengths of it."""
    sequences = profile["sequences"]
    name = next(iter(sequences), "") if asked is None else asked
    if name not in sequences:
        raise UsageError(f"the profile has no sequence {name!r}: it has {', '.join(sequences) or 'none'}")
    histogram = sequences[name].get("histogram")
    if not histogram or not any(histogram["lengths"]):
        raise UsageError(
            f"the profile has no lengths of {name!r}: a quick profile counts them only, and a sequence without events "
            "has none; run `freescale profile` without --quick"
        )
    return name, LengthHistogram.from_dict(histogram)


def _per_event(
    profile: Mapping[str, Any], sequence: str, max_length: int, dims: Mapping[str, int]
) -> tuple[float, float]:
    """(floats, ids) of the columns of `dims` for an event of `sequence`. Raises UsageError for columns not profiled."""
    means = mean_lengths(profile, max_length)
    unknown = [column for column in dims if column not in means]
    if unknown:
        raise UsageError(
            f"--dim: the profile has no lengths of {', '.join(unknown)}, but of {', '.join(means)}: name list columns "
            "with --sequence and --candidates when you profile"
        )
    each = {column: means[column] / means[sequence] for column in dims}
    return sum(share * dims[column] for column, share in each.items()), sum(each.values())


def mean_lengths(profile: Mapping[str, Any], max_length: int | None) -> dict[str, float]:
    """List column -> mean events of a row: of sequences cut to `max_length` (None: whole), of candidates whole.

    Columns of a quick profile, which has no lengths, are left out.
    """
    found = {}
    for part in ("sequences", "candidates"):
        for column, one in profile.get(part, {}).items():
            if one.get("histogram"):
                histogram = LengthHistogram.from_dict(one["histogram"])
                if max_length is not None and part == "sequences":
                    histogram = histogram.clipped(max_length)
                found[column] = histogram.mean
    return found


def _fields(profile: Mapping[str, Any], sequence: str, max_length: int) -> tuple[float, str]:
    """(values of a batch for each event of `sequence`, source); a batch has at least `FIELDS`, profiled or not."""
    means = mean_lengths(profile, max_length)
    counted = sum(means.values()) / means[sequence]
    if counted > FIELDS:
        return counted, "profile: its list columns"
    return FIELDS, "assumed: item, action and time of an event"


def uncounted(profile: Mapping[str, Any], load: Workload, *, dim: Any = None) -> str:
    """Why the profile does not say how often ids repeat within a rank's batch of `load`, and what would.

    Empty if it does. `dim`: as of `workload`.
    """
    collisions, dims = profile.get("collisions"), profile.get("dims") if dim is None else dim
    if collisions is not None and collisions.get("ranks") == 1:
        return "one rank exchanges nothing"
    if collisions is None or not any((collisions.get("bytes") or {}).values()):
        return (
            "the ids of a rank's batch were not counted. Name a column of integer ids with --ids, and enough files for "
            "two global batches"
        )
    if collisions["batch_size"] != load.batch_size:
        return (
            f"ids were counted in batches of {collisions['batch_size']:,} samples a rank, which repeat other shares of "
            f"their ids than {load.batch_size:,}. Profile more files, or with that --batch-size"
        )
    others = sorted(set(dims) - {collisions["column"]}) if isinstance(dims, Mapping) else []
    if others:
        return (
            f"ids were counted in {collisions['column']} only, and rows of {', '.join(others)} are exchanged, too. Run "
            "`freescale collisions` for each column"
        )
    return ""


def _counted(collisions: Mapping[str, Any] | None) -> dict[str, tuple[Any, str]]:
    """Field -> value and source of what the profile counted; as in the paper if it counted nothing."""
    if collisions is None:
        once = 1.0, "assumed: no row twice in a rank's batch"
        rate = {1: PAPER_COLLISION}, "paper, section 2 (Fig. 3): about 12 %; the profile counted none"
        return {"collisions": rate, "distinct": once, "colliding_distinct": once}
    rates = {
        point["ranks"]: point["by_occurrence"]["mean"]
        for point in collisions["points"]
        if point["axis"] in ("ranks", "default")
    }
    first, last = min(rates), max(rates)
    said = f"at {last} ranks; counted at {first} to {last}, between them by logarithm, beyond the nearest"
    # A gradient is sent for every event, a row once to each rank.
    sent = collisions.get("bytes") or dict.fromkeys(_SENT, 0)
    rows, gradients, other_rows, other_gradients = (sent[name] for name in _SENT)
    shares = {"distinct": (rows + other_rows, gradients + other_gradients), "colliding_distinct": (rows, gradients)}
    return {
        "collisions": (rates, f"profile: {said}"),
        **{name: (of / all if all else 1.0, "profile: its bytes of a step") for name, (of, all) in shares.items()},
    }


def _measured(histogram: LengthHistogram, batch_size: int, calibration: Calibration) -> dict[str, tuple[Any, str]]:
    """Field -> value and source of what the calibration says of a rank's step, as far as it does."""
    costs = calibration.cost({"sequence": histogram.lengths}).astype(np.float64)
    cost = batch_size * float(costs @ histogram.counts) / histogram.rows
    rows = 1e3 * batch_size * histogram.mean
    found = {
        "compute_ms": 1e3 * calibration.seconds_per_cost * cost,
        "fixed_ms": 1e3 * calibration.constant_s,
        "forward": calibration.forward,
        "lookup_ms": None if calibration.lookup_s is None else rows * calibration.lookup_s,
        "apply_ms": None if calibration.update_s is None else rows * calibration.update_s,
        "balancing_ms": None if calibration.balancing_s is None else 1e3 * calibration.balancing_s,
    }
    return {name: (value, calibration.source) for name, value in found.items() if value is not None}


def samples_of(profile: Mapping[str, Any], sequence: str | None = None) -> Samples:
    """The rows of a profile, in order as far as it has them: of its first sequence, with the candidates.

    Raises UsageError for a profile without lengths, for unknown sequences, and where its rows in order are damaged.
    """
    name, histogram = _lengths(profile, sequence)
    first, stored = name == next(iter(profile["sequences"])), profile.get("in_order")
    candidates = [one["histogram"] for one in profile.get("candidates", {}).values() if one.get("histogram")]
    try:
        rows = RowsInOrder.from_dict(stored) if first and stored else None
    except ValueError as error:
        raise UsageError(f"the profile is damaged: {error}; make it again") from error
    return Samples(
        histogram=histogram,
        candidates=LengthHistogram.from_dict(candidates[0]) if candidates else None,
        rows=rows,
    )


def at_ranks(load: Workload, samples: Samples, ranks: Sequence[int], *, method: str = "fbs+swap") -> Workload:
    """`load` with the time that is lost at all these numbers of ranks, without balancing and balanced by `method`."""
    assert load.max_length is not None
    lost: dict[tuple[int, str], float] = {}
    skews: dict[tuple[int, str], float] = {}
    for count in ranks:
        setting = Setting(ranks=count, batch_size=load.batch_size, max_length=load.max_length, cost=load.cost)
        point = simulate_setting(samples, setting, methods=(method,))
        for of, name in ((UNPACKED, UNPACKED), (PACKED, method)):
            lost[count, of], skews[count, of] = point["time_lost"][name], point["skew"][name]
    return dataclasses.replace(load, time_lost=lost, skews=skews)


def flops(lengths: np.ndarray, counts: np.ndarray) -> float:
    """Mean operations per sample by the default Polynomial: a profile's cost model has no unit."""
    pairs = Polynomial()({"sequence": lengths}).astype(np.float64)
    return FLOPS_PER_COST * float(pairs @ counts) / float(counts.sum())


def cost_model(text: str) -> CostModel:
    """A `Polynomial(...)` or `Power(...)` from its repr. Raises UsageError for other texts."""
    models = {"Polynomial": Polynomial, "Power": Power}
    call = re.fullmatch(r"\s*(\w+)\((.*)\)\s*", text, re.DOTALL)
    if call is None or call[1] not in models:
        raise UsageError(f"the profile's cost model is {text!r}: Polynomial(...) or Power(...) is needed")
    try:
        keywords = ast.parse(text.strip(), mode="eval").body.keywords  # type: ignore[attr-defined]
        return models[call[1]](**{word.arg: ast.literal_eval(word.value) for word in keywords})
    except (SyntaxError, TypeError, ValueError) as error:
        raise UsageError(f"the profile's cost model {text!r} cannot be read: {error}") from error
