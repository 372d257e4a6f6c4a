"""Tiny wheels in a directory, and a pip that looks nowhere else."""

import base64
import hashlib
import zipfile
from pathlib import Path

SCRIPT = "import sys\n\n\ndef main() -> None:\n    print('swarmd', {version!r}, *sys.argv[1:])\n"


def write_wheel(place: Path, name: str, version: str, files: dict[str, str], script: str = "", needs: str = "") -> Path:
    """A pure wheel with these files; `script` is `NAME=MODULE:FUNCTION`."""
    place.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    requires = f"Requires-Dist: {needs}\n" if needs else ""
    files = files | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: by hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if script:
        files[f"{info}/entry_points.txt"] = f"[console_scripts]\n{script}\n"
    path = place / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file, text in files.items():
            entry = zipfile.ZipInfo(file)
            entry.external_attr = (0o100755 if ".data/scripts/" in file else 0o100644) << 16
            wheel.writestr(entry, text)
        wheel.writestr(f"{info}/RECORD", "".join(map(_recorded, files, files.values())) + f"{info}/RECORD,,\n")
    return path


def _recorded(file: str, text: str) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
    return f"{file},sha256={digest},{len(text.encode())}\n"


def only(place: Path) -> dict[str, str]:
    """Settings of a pip that knows these wheels alone."""
    return {"PIP_CONFIG_FILE": "/dev/null", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(place)}


def swarmd_wheel(place: Path, version: str, lock: str) -> Path:
    """What install.sh takes: a command that says its version, and the lock."""
    files = {"swarmd/__init__.py": SCRIPT.format(version=version), "swarmd/constraints.txt": lock}
    wheel = write_wheel(place, "swarmd", version, files, script="swarmd = swarmd:main", needs="tiny")
    (place / "SHA256SUMS").write_text(f"{hashlib.sha256(wheel.read_bytes()).hexdigest()}  {wheel.name}\n")
    return wheel
