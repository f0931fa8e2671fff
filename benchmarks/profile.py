"""What profiles and collisions cost: see `parts/profile_costs.py`. Run: python benchmarks/profile.py"""

import importlib.util
import sys
import sysconfig
from pathlib import Path

if __name__ == "__main__":
    from parts.profile_costs import main

    main()
else:
    # Programs that run from this folder and use cProfile (torchrec does) find this file where they look for the
    # standard library's module of the same name: it is what they get.
    _spec = importlib.util.spec_from_file_location(__name__, Path(sysconfig.get_path("stdlib")) / "profile.py")
    assert _spec is not None
    assert _spec.loader is not None
    sys.modules[__name__] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules[__name__])
