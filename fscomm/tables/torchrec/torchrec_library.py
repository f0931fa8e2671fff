"""TorchRec as a `fscomm.tables.sharding_library.Library`."""

from fscomm.tables.torchrec.bind import bind
from fscomm.tables.torchrec.binding import asked, make_features
from fscomm.tables.torchrec.servable import adds_parts, features_problem, problems, sharded_modules

__all__ = ["adds_parts", "asked", "bind", "features_problem", "make_features", "problems", "sharded_modules"]
