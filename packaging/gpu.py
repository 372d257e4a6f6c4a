"""swarmd on a machine with a GPU and torch, but no network: `gpu.py wheels DIR` here, `gpu.py check DIR` there.

`wheels` downloads what constraints.txt has for running, but for what the other machine has already: `--have`, the
output of `python3 -m pip list --format=freeze` there, or torch alone. `check` makes an environment over that Python
with those wheels and this checkout, and runs `python -m bench gpu-check` in it. Standard library alone.
"""

import argparse
import datetime
import re
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
EXTRA = ("gguf", "peft", "bitsandbytes")  # models and adapters of users' own
GLIBC = (39, 35, 34, 31, 28, 27, 24, 17, 12, 5)  # minor versions of glibc 2 that wheels are built for
OLDER = ("manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64")
ENVIRONMENT = ROOT / ".swarmd" / "gpu-venv"
RESULTS = ROOT / "bench" / "results"


def normal(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def wanted(have: set[str]) -> list[str]:
    """Requirements for running, without those packages and what came with a torch for CUDA."""
    section = CONSTRAINTS.read_text(encoding="utf-8").split("# running:")[1].split("# bootstrap:")[0]
    locked = [line for line in section.splitlines() if "==" in line]
    names = {normal(line.partition("==")[0]) for line in locked}
    return [
        line
        for line in (*locked, *(name for name in EXTRA if name not in names))
        if normal(line.partition("==")[0]) not in have
    ]


def fetch(directory: Path, have: set[str], python: str) -> int:
    """Download wheels for x86-64 Linux, or build those that an index has as sources alone. Returns how many failed."""
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in GLIBC] + list(OLDER)
    target = ["--python-version", python, "--implementation", "cp", "--only-binary", ":all:"]
    target += [part for abi in (f"cp{python.replace('.', '')}", "abi3", "none") for part in ("--abi", abi)]
    target += [part for platform in platforms for part in ("--platform", platform)]
    pip = [sys.executable, "-m", "pip"]
    failed = 0
    for requirement in wanted(have):
        quiet = ["-q", "--no-deps", requirement]
        if not subprocess.run(
            [*pip, "download", *target, "-d", str(directory), *quiet], capture_output=True
        ).returncode:
            continue
        if subprocess.run([*pip, "wheel", "-w", str(directory), *quiet]).returncode:
            print(f"not to be had: {requirement}", file=sys.stderr)
            failed += 1
    return failed


def install(directory: Path) -> Path:
    """Make the environment. Returns its Python."""
    venv.create(ENVIRONMENT, system_site_packages=True, clear=True)
    python = ENVIRONMENT / "bin" / "python"
    site = subprocess.run(
        [str(python), "-c", "import site; print(site.getsitepackages()[0])"], capture_output=True, text=True, check=True
    ).stdout.strip()
    # What the interpreter itself has counts too where it lives in an environment of its own.
    own = next(path for path in sys.path if path.endswith("site-packages"))
    (Path(site) / "checkout.pth").write_text(f"{ROOT}\n{own}\n", encoding="utf-8")
    wheels = sorted(map(str, directory.glob("*.whl")))
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile"]
    subprocess.run([*pip, "--target", site, *wheels], check=True)
    return python


def check(directory: Path) -> int:
    """Run the check, keep its figures by date and device, and return its exit code."""
    python = install(directory)
    name = subprocess.run(
        [str(python), "-c", "import torch; print(torch.cuda.get_device_name(0))"], capture_output=True, text=True
    ).stdout.strip()
    RESULTS.mkdir(exist_ok=True)
    place = RESULTS / f"{datetime.date.today()}-{normal(name.replace(' ', '-')) or 'no-gpu'}.json"
    return subprocess.run([str(python), "-m", "bench", "gpu-check", "--json", str(place)], cwd=ROOT).returncode


def main() -> int:
    """Read the command line. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("wheels", "check"))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--have", type=Path, metavar="LIST", help="what the other machine has, as pip freezes it")
    parser.add_argument("--python", default="3.12", metavar="X.Y", help="of the other machine (3.12)")
    options = parser.parse_args()
    if options.verb == "check":
        return check(options.directory)
    lines = options.have.read_text(encoding="utf-8").splitlines() if options.have else ["torch"]
    have = {normal(re.split(r"[=@ ]", line)[0]) for line in lines if line.strip()}
    options.directory.mkdir(parents=True, exist_ok=True)
    return int(bool(fetch(options.directory, have, options.python)))


if __name__ == "__main__":
    sys.exit(main())
