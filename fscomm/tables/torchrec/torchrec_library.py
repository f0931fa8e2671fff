"""TorchRec as a `fscomm.tables.sharding_library.Library`."""

from fscomm.tables.torchrec.bind import bind
from fscomm.tables.torchrec.binding import make_features
from fscomm.tables.torchrec.facts import versions
from fscomm.tables.torchrec.servable import adds_parts, features_problem, problems
from fscomm.tables.torchrec.structure import asked, parts, sharded_modules
from fscomm.tables.torchrec.throwaway import trial

__all__ = [
    "adds_parts",
    "asked",
    "bind",
    "features_problem",
    "make_features",
    "parts",
    "problems",
    "sharded_modules",
    "trial",
    "versions",
]
