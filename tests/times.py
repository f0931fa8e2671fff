"""Prints how long each folder of tests took, slowest first, from a JUnit file: `make test-times`."""

import sys
from collections import Counter
from xml.etree import ElementTree


def main(path: str) -> None:
    cases: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    for case in ElementTree.parse(path).iter("testcase"):
        folder = "/".join(case.get("classname", "").split(".")[:3])
        cases[folder] += 1
        seconds[folder] += float(case.get("time", 0))
    print("| folder | cases | s |\n|---|---|---|")
    for folder, took in seconds.most_common():
        print(f"| `{folder}` | {cases[folder]} | {took:.0f} |")
    print(f"| all | {cases.total()} | {seconds.total():.0f} |")


if __name__ == "__main__":
    main(sys.argv[1])
