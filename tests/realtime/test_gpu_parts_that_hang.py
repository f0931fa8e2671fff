"""`make gpu` with stand-in parts that hang or leave processes behind: these are ended, and the other parts run."""

import json
import signal
import subprocess
from pathlib import Path

from test_gpu_parts import FAILS, PASSES, RESULTS, Part, Step, environment, gpu, part, run

LIMIT_S = 1.0


def alive(pid: int) -> bool:
    """Not a zombie either: nobody may reap the children of a process that was killed."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def shell(code: str) -> Step:
    """A stand-in that hangs. A shell is at its end long before the limit, also on a machine that is busy."""
    return Step(command=("sh", "-c", code, RESULTS), limit_s=LIMIT_S)


AT_FOUR = """{"pid": %s, "checks": [{"name": "four", "status": "running"}]}"""
HANGS = Part(
    name="hangs", asked="what hangs does", steps=(shell(f"sleep 600 & printf '{AT_FOUR}' $! > $0/d.json; wait"),)
)


def test_a_part_that_hangs_is_ended_and_the_others_run(tmp_path):
    assert gpu.run_all([environment(measured_with={"torch": "9"}), FAILS, HANGS, PASSES], tmp_path) == 1
    documents = {path.stem: json.loads(path.read_text()) for path in tmp_path.iterdir()}
    assert documents["passes"]["failures"] == []
    (hung,) = documents["hangs"]["failures"]
    assert hung.endswith("it was ended after its limit of 1 s; it was at four")
    assert not alive(documents["hangs"]["steps"][0]["found"]["d"]["pid"])


def test_processes_that_do_not_end_when_asked_are_killed(monkeypatch):
    monkeypatch.setattr("common.run_parts._PATIENCE_S", 0.3)
    deaf = shell("""trap '' TERM; printf '{"pid": %s}' $$ > $0/a.json; exec sleep 600""")
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        (ended,) = run(Part(name="deaf", asked="", steps=(deaf,)))["steps"]
        assert not alive(ended["found"]["a"]["pid"])
        assert alive(bystander.pid)
    finally:
        bystander.send_signal(signal.SIGKILL)
        bystander.wait()


def test_what_a_step_leaves_running_ends_with_it():
    leaves = "write('a.json', pid=subprocess.Popen(['sleep', '600']).pid)"
    (ended,) = run(part("leaves", leaves))["steps"]
    assert ended["problem"] == ""
    assert not alive(ended["found"]["a"]["pid"])
