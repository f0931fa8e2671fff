"""Reads options that several commands have in common."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from freescale_tools.console.errors import UsageError

RANKS = (8, 16, 32, 64, 128, 256, 512, 1024)
"""Numbers of ranks that predictions are made for if the user names none."""


def numbers(given: Sequence[str] | None, option: str) -> list[int] | None:
    """Read whole numbers of 1 or more: joined by commas, or the option given several times.

    The result is ascending, without repeats; None if nothing is given. Raises UsageError for anything else.
    """
    if not given:
        return None
    try:
        found = sorted({int(part) for text in given for part in text.split(",")})
    except ValueError:
        raise UsageError(f"{option} {','.join(given)}: numbers joined by commas are needed, as in 8,64,512") from None
    if found[0] < 1:
        raise UsageError(f"{option} must be at least 1, got {found[0]}")
    return found


def floats(given: Sequence[str] | None) -> int | dict[str, int] | None:
    """Read --dim: one number, or column=number joined by commas. None if nothing is given. Raises UsageError."""
    parts = [part for text in given or () for part in text.split(",")]
    pairs = [(name.strip(), number) for name, _, number in (part.rpartition("=") for part in parts)]
    if not pairs:
        return None
    one = len(pairs) == 1 and not pairs[0][0]
    if not all(number.strip().isdecimal() and int(number) for _, number in pairs) or (
        not one and (not all(name for name, _ in pairs) or len(dict(pairs)) < len(pairs))
    ):
        raise UsageError(
            f"--dim {','.join(parts)}: a number of 1 or more is needed, or one for each of several columns, as in "
            "item=128,action=16"
        )
    return int(pairs[0][1]) if one else {name: int(number) for name, number in pairs}


ReportFolder = Annotated[
    Path | None,
    typer.Option(
        "--out",
        help="Folder for the page and the JSON document; those of an earlier run there are replaced. Default: "
        "freescale-report, where earlier ones stay and new ones get a number, as in profile-2.html.",
    ),
]
Dim = Annotated[
    list[str] | None,
    typer.Option(
        "--dim",
        help="Floats exchanged per event, all its fields together; or those of each list column that is looked up, as "
        "in item=128,candidate=64. May be given several times.",
    ),
]
ProfileFile = Annotated[Path, typer.Option("--profile", help="profile.json of `freescale profile`, or its folder.")]
_HARDWARE = 'b200-ib, h100-ib, h200-nvl, mi350x-roce, or a TOML file: like = "h100-ib" and what differs.'
HardwareName = Annotated[str, typer.Option("--hardware", help=_HARDWARE)]
_BATCH_SIZE = "Samples of a rank in a step. Default: as in the profile, else 128."
BatchSize = Annotated[int | None, typer.Option("--batch-size", help=_BATCH_SIZE)]
_MAX_LENGTH = "Most events of a history. Default: as the profile recommends."
MaxLength = Annotated[int | None, typer.Option("--max-length", help=_MAX_LENGTH)]
_CALIBRATION = "What `freescale calibrate --out` wrote, or the run.json that BubbleMeter.save wrote."
CalibrationFile = Annotated[Path | None, typer.Option("--calibration", help=_CALIBRATION)]
Histories = Annotated[
    list[str] | None,
    typer.Option(
        help="Files of histories that are stored once per key: PATHS are then requests, and list columns are those "
        "of this table. May be given several times. Needs --on, --event-time and --time."
    ),
]
On = Annotated[str | None, typer.Option(help="The key of requests and histories.")]
_EVENT_TIME = "The list column of --histories with the times of the events; --time is that of a request."
EventTime = Annotated[str | None, typer.Option(help=_EVENT_TIME)]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredHistories:
    """Histories that are stored once per key, as the user names them.

    Attributes:
        paths: of the table.
        on: the key, a column of the table and of the requests.
        event_time: the times of the events, a list column of the table.
        time: the time of a request.
    """

    paths: tuple[str, ...]
    on: str
    event_time: str
    time: str


def stored_histories(
    paths: Sequence[str] | None, *, on: str | None, event_time: str | None, time: str | None
) -> StoredHistories | None:
    """What --histories, --on, --event-time and --time say; None without histories. Raises UsageError if some lack."""
    if not paths:
        alone = [name for name, value in (("--on", on), ("--event-time", event_time)) if value]
        if alone:
            raise UsageError(f"{' and '.join(alone)} without --histories: name the files of the histories, too")
        return None
    if on and event_time and time:
        return StoredHistories(paths=tuple(paths), on=on, event_time=event_time, time=time)
    needed = (
        (on, "--on, the key of requests and histories"),
        (event_time, "--event-time, the list column of the histories with the times of the events"),
        (time, "--time, the column with the time of a request"),
    )
    raise UsageError(f"--histories also needs {'; '.join(said for value, said in needed if not value)}")
