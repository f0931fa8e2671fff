"""Prints how long each folder of tests took, slowest first, from a JUnit file: `make test-times`."""

import sys
from collections import Counter
from xml.etree import ElementTree

LEAST_S = 5  # folders that took less are one line


def _folder(module: str) -> str:
    """`tests/comm/engine` for `tests.comm.engine.test_calls`: three levels at most, without the name of the file."""
    return "/".join(module.split(".")[:-1][:3])


def main(path: str) -> None:
    cases: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    for case in ElementTree.parse(path).iter("testcase"):
        folder = _folder(case.get("classname", ""))
        cases[folder] += 1
        seconds[folder] += float(case.get("time", 0))
    print("| folder | cases | s |\n|---|---|---|")
    shown = [folder for folder, took in seconds.most_common() if took >= LEAST_S]
    for folder in shown:
        print(f"| `{folder}` | {cases[folder]} | {seconds[folder]:.0f} |")
    others = seconds.keys() - set(shown)
    print(f"| others | {sum(cases[name] for name in others)} | {sum(seconds[name] for name in others):.0f} |")
    print(f"| all | {cases.total()} | {seconds.total():.0f} |")


if __name__ == "__main__":
    main(sys.argv[1])
