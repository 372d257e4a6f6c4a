"""Makes a swarm's question file from a data set: one on the Hub, or a local file or directory.

- A data set on the Hub is downloaded only if its size is known beforehand and within `download_bytes`.
- Text columns are read character by character. Type inference for a column changes its cells: 18 beside 3.5 becomes
  18.0, and 007 becomes 7. So CSV, TSV, JSON and JSON lines are read here, and a cell whose spelling another format has
  lost is refused.
- The file is written atomically, and errors name row and column.
"""

import csv
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from swarmd.bounds import DECODE_ERRORS
from swarmd.errors import DatasetRefused, SwarmError
from swarmd.files import advise_on_path_error, detect_wrong_content, read_start, replace_durably
from swarmd.swarms import jsonl
from swarmd.swarms.options import COLUMNS_MAX, DatasetSource

FILES_MAX = 4096  # of one data set
ASKED_AT_ONCE = 500  # files, in one request to the Hub
PACKED = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip", ".7z", ".tar", ".tgz")  # contents of any size
BYTES_MAX = 2 * 1024**3  # largest file read here; the rows kept have their own bounds
SEPARATORS = {".csv": ",", ".tsv": "\t"}
SUFFIXES = (".jsonl", ".json", *SEPARATORS)  # of files that are read here
BUILDERS = {".parquet": "parquet", ".arrow": "arrow"}  # suffix → builder of `datasets`
CELL_CHARACTERS = 80  # of a cell shown in an error
CAUSES_MAX = 5  # causes of an error that are shown
START_BYTES = 256  # enough to detect a wrong suffix

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")
_PLAIN = re.compile(r"string|large_string|bool|u?int\d+|float\d+|null")
_INTEGER = re.compile(r"0|-?[1-9]\d{0,17}")
_QUOTED_LATE = re.compile(r'\s+".*"\s*', re.DOTALL)  # quotes that do not start the cell
_RawRow = dict[str, msgspec.Raw]


def is_hub_id(name: str) -> bool:
    """Whether `name` has the form of a Hub id; as a relative path it then cannot lead upwards."""
    suffix = Path(name).suffix.lower()
    return bool(_HUB_ID.fullmatch(name)) and ".." not in name and suffix not in (*SUFFIXES, *BUILDERS)


def read_dataset_source(options: Mapping[str, Any]) -> DatasetSource:
    """The data set that a kind's options name. Raises SwarmError for a wrong value."""
    try:
        known = DatasetSource.__struct_fields__
        return msgspec.convert({key: options[key] for key in known if key in options}, DatasetSource)
    except msgspec.ValidationError as error:
        raise SwarmError(f"swarm.options: {error}", "docs/swarms/file.md has the keys of a data set") from error


def write_questions_file(home: Path, name: str, source: DatasetSource, digest: str = "") -> None:
    """Load a data set into the question file, unless the file exists or no data set is named.

    Several processes of a node may do so at the same time.

    Args:
        digest: required digest of the rows; empty: any.

    Raises:
        DatasetRefused: the data set is on the Hub and larger than `download_bytes`, or its size cannot be known.
        SwarmError: it cannot be loaded, lacks a column, exceeds the bounds of such files, has a row without a question,
        or has another digest. No file is kept then.
    """
    target = home / name
    if not source.dataset or target.exists():
        return
    if not name.endswith(jsonl.SUFFIX):
        raise SwarmError(f"swarm.options.data: a data set is kept as {name!r}", 'Name a file such as "questions.jsonl"')
    found = _load_split(home, source)
    if len(found) > jsonl.ROWS_MAX:
        raise _too_large_error(source, f"has {len(found)} rows, the limit is {jsonl.ROWS_MAX}")
    rows = tuple(_check_row_bounds(_convert_rows(found, source), source))
    if not rows:
        raise SwarmError(f"the data set {source.dataset} has no rows", "Set swarm.options.split to another")
    jsonl.check_digest(Path(source.dataset), rows, digest)
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_durably(target, b"".join(map(_encode_row, rows)))
    except OSError as error:
        fix = advise_on_path_error(error, target) or "Make room for it, and try again"
        raise SwarmError(f"the questions cannot be kept in {target}: {error.strerror}", fix) from error


def _check_row_bounds(rows: Iterable[dict[str, Any]], source: DatasetSource) -> Iterator[dict[str, Any]]:
    """Yield rows while their file stays within its bounds: a small download may expand beyond memory."""
    size = 0
    for number, row in enumerate(rows, 1):
        line = _encode_row(row)
        size += len(line)
        if len(line) > jsonl.LINE_BYTES_MAX or size > jsonl.FILE_BYTES_MAX:
            raise _too_large_error(source, f"is beyond the limits at row {number}")
        yield row


def _encode_row(row: dict[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _too_large_error(source: DatasetSource, what: str) -> SwarmError:
    fix = 'Take a part of it, such as swarm.options.split = "train[:10000]", or fewer columns: swarm.options.keep'
    return SwarmError(f"the data set {source.dataset} {what}", fix)


# --- loading ---


def _load_split(home: Path, source: DatasetSource) -> Any:
    """Load the split. The back-ends of `datasets` raise many kinds of error; all become SwarmError."""
    try:
        path = home / Path(source.dataset).expanduser()
        if not path.exists() and not is_hub_id(source.dataset):
            raise FileNotFoundError(f"there is no {path}, and the Hub has no such names")
        unused = (source.revision and "revision") or (path.is_file() and source.subset and "subset")
        if unused and path.exists():
            raise SwarmError(
                f"swarm.options.{unused} is for data sets on the Hub, and {source.dataset} is on this machine",
                "Leave it out, or name the data set of the Hub",
            )
        return _read_dataset(path, source)
    except SwarmError:
        raise
    except Exception as error:
        elsewhere = (
            "Load it once with a network (HF_TOKEN if it is private), name a copy in swarm.options.dataset, or "
            "put the file that swarm.options.data names there, from a node that has it"
        )
        here = "Correct swarm.options by docs/swarms/file.md#from-a-data-set, or save the file again"
        if "nrecognized instruction format" in str(error):
            here = 'Write swarm.options.split as "train", "train[:1000]" or "train[:10%]"'
        fix = elsewhere if is_hub_id(source.dataset) and not (home / source.dataset).exists() else here
        raise SwarmError(f"the data set {source.dataset} cannot be loaded: {describe_causes(error)}", fix) from error


def describe_causes(error: BaseException) -> str:
    """The first lines of an error and its causes: the outer error of `datasets` often says nothing."""
    causes: list[str] = []
    while error is not None and len(causes) < CAUSES_MAX:
        first = next(iter(str(error).strip().splitlines()), "")
        if f"{type(error).__name__}: {first}" not in causes:
            causes.append(f"{type(error).__name__}: {first}")
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return ", because of ".join(causes)


def _read_dataset(path: Path, source: DatasetSource) -> Any:
    import datasets

    if path.exists():
        datasets.disable_progress_bars()
    if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():  # written by save_to_disk
        found = datasets.load_from_disk(str(path))
        if not isinstance(found, datasets.DatasetDict):
            return found
        if source.split not in found:
            raise SwarmError(
                f"the data set {source.dataset} has no split {source.split!r}; it has: {', '.join(map(repr, found))}",
                "Set swarm.options.split to one of them",
            )
        return found[source.split]
    if path.is_dir():
        builder = make_dataset_builder(str(path), source.subset, _text_columns(source))
        builder.download_and_prepare()
        return builder.as_dataset(split=source.split)
    suffix = path.suffix.lower()
    if suffix in SUFFIXES and path.exists():
        found = datasets.Dataset.from_dict(read_table_columns(path, _text_columns(source)))
        parts = datasets.ReadInstruction.from_spec(source.split).to_absolute({"train": len(found)})
        return found.select([row for part in parts for row in range(len(found))[part.from_ : part.to]])
    if path.exists():
        if suffix not in BUILDERS:
            raise ValueError(f"{path.name} does not end in one of {', '.join((*SUFFIXES, *BUILDERS))}")
        return datasets.load_dataset(BUILDERS[suffix], data_files={"train": str(path)}, split=source.split)
    return load_from_hub(source)


def _text_columns(source: DatasetSource) -> tuple[str, ...]:
    columns = source.columns
    return tuple(name for name in (columns.prompt, columns.answer, columns.task) if name)


def make_dataset_builder(name: str, subset: str, texts: Sequence[str], **more: Any) -> Any:
    """The builder for a data set, which reads these CSV columns as text instead of guessing their types."""
    import datasets

    builder = datasets.load_dataset_builder(name, subset or None, **more)
    if not hasattr(builder.config, "converters"):
        return builder
    as_texts = {"converters": dict.fromkeys(texts, str), "keep_default_na": False}
    return datasets.load_dataset_builder(name, subset or None, **as_texts, **more)


# --- the Hub ---


def load_from_hub(source: DatasetSource) -> Any:
    """Load one split of a data set on the Hub, or from the cache, whatever its size.

    Raises:
        DatasetRefused: it is larger than `download_bytes`, does not give its size, or has files elsewhere. Only its
        card was downloaded.
        Exception: whatever the back-ends of `datasets` raise.
    """
    name = source.dataset
    builder = make_dataset_builder(name, source.subset, _text_columns(source), revision=source.revision or None)
    # In the cache, or a directory of this name, which `datasets` prefers to the Hub.
    is_here = Path(builder.cache_dir).is_dir() or Path(builder.base_path or "hf://").is_dir()
    if not is_here:
        check_download_size(builder, name, source.download_bytes)
    builder.download_and_prepare()
    return builder.as_dataset(split=source.split)


def check_download_size(builder: Any, name: str, bytes_max: int) -> None:
    """Raise DatasetRefused unless the size of everything to download is known and within the bound."""
    files = [file for listed in (builder.config.data_files or {}).values() for file in listed]
    if not files or len(files) > FILES_MAX:
        raise _refused_error(
            name, f"has {len(files)} files that can be counted, and between 1 and {FILES_MAX} are taken"
        )
    known = sum(iter_file_sizes(name, files))
    claimed = max(builder.info.download_size or 0, builder.info.dataset_size or 0)
    if max(known, claimed) > bytes_max:
        size = f"has {known:,} bytes" if known >= claimed else f"has, by its own card, {claimed:,} bytes"
        raise _refused_error(
            name, f"{size}, and this node downloads {bytes_max:,} at most (swarm.options.download_bytes)"
        )


def iter_file_sizes(name: str, files: list[str]) -> Iterator[int]:
    """The size of each file on the Hub, in bytes."""
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    revision, paths = split_hub_addresses(name, files)
    remaining = iter(paths)
    while batch := list(islice(remaining, ASKED_AT_ONCE)):
        found = HfApi().get_paths_info(name, batch, revision=revision, repo_type="dataset")
        sizes = {each.path: each.size for each in found if isinstance(each, RepoFile)}
        unknown = [path for path in batch if not isinstance(sizes.get(path), int)]
        if unknown:
            raise _refused_error(name, f"does not say how large its file {unknown[0]} is")
        yield from (sizes[path] for path in batch)


def split_hub_addresses(name: str, files: list[str]) -> tuple[str, list[str]]:
    """Split hf:// addresses into their common commit and their paths."""
    revisions, paths = set(), []
    for file in files:
        inside, _, address = file.partition(f"hf://datasets/{name}@")
        revision, _, path = address.partition("/")
        if inside or not path or "::" in file:
            raise _refused_error(name, f"has files from elsewhere, or in archives, such as {file}")
        if path.lower().endswith(PACKED):
            raise _refused_error(
                name, f"has packed files, such as {path}, and nothing says how large their contents are"
            )
        revisions.add(revision)
        paths.append(path)
    if len(revisions) != 1:
        raise _refused_error(name, "has files of several commits")
    return revisions.pop(), paths


def _refused_error(name: str, what: str) -> DatasetRefused:
    return DatasetRefused(
        f"the data set {name} {what}; nothing of it was downloaded",
        "Get the file of questions from a node that has it and put it beside the manifest, or into the data directory. "
        "If you trust whoever named the data set, raise swarm.options.download_bytes, with `swarmd join` "
        "--download-bytes, or load it once yourself: datasets.load_dataset(...)",
    )


# --- rows ---


def _convert_rows(found: Any, source: DatasetSource) -> Iterator[dict[str, Any]]:
    """Rows for the file: prompt, answer and task under these names, other plain columns under their own."""
    columns = source.columns
    roles = {"prompt": columns.prompt, "answer": columns.answer, "task": columns.task}
    named = {role: name for role, name in roles.items() if name}
    there = found.column_names
    missing = [name for name in (*named.values(), *(source.keep or ())) if name not in there]
    if missing:
        raise SwarmError(
            f"the data set {source.dataset} has no column {missing[0]!r}; it has: {', '.join(map(repr, there))}",
            'Name its columns, as in swarm.options.columns = {prompt = "question", answer = "solution"}',
        )
    others = [
        name for name in there if name not in {*roles, *named.values()} and _is_json_feature(found.features[name])
    ]
    if source.keep is not None:
        others = [name for name in others if name in source.keep]
    if len(others) > COLUMNS_MAX:
        raise SwarmError(f"the data set {source.dataset} has {len(others)} columns", "Name those in swarm.options.keep")
    spell = {name: _make_cell_converter(found.features[name]) for name in named.values()}
    selected = found.select_columns(list(dict.fromkeys([*named.values(), *others])))
    for number, cells in enumerate(selected, 1):
        row = {}
        for role, name in named.items():
            where = f"the data set {source.dataset}, row {number}: the column {name!r}"
            cell = spell[name](cells[name])
            row[role] = _cell_to_text(_extract_question(cell, where) if role == "prompt" else cell, where)
        yield row | {name: _replace_non_finite(cells[name]) for name in others}


def _make_cell_converter(feature: Any) -> Callable[[Any], Any]:
    """A function that converts a cell: a class label to its name, a float32 to the shortest number that rounds to
    it."""
    if hasattr(feature, "int2str"):
        return lambda cell: feature.int2str(cell) if cell is not None and cell >= 0 else None
    if getattr(feature, "dtype", "") in ("float16", "float32"):
        import numpy

        shorten = getattr(numpy, feature.dtype)
        return lambda cell: cell if cell is None else float(str(shorten(cell)))
    return lambda cell: cell


def _is_json_feature(feature: Any) -> bool:
    """Whether a column holds only JSON types."""
    if isinstance(feature, dict):
        return all(map(_is_json_feature, feature.values()))
    inner = getattr(feature, "feature", None)
    if inner is not None:
        return _is_json_feature(inner)
    return bool(_PLAIN.fullmatch(str(getattr(feature, "dtype", ""))))


def _extract_question(cell: Any, where: str) -> Any:
    """The question's text; of a conversation, which TRL also accepts, the single user message."""
    if not isinstance(cell, list) or not all(isinstance(each, dict) for each in cell):
        return cell
    if len(cell) == 1 and cell[0].get("role") == "user":
        return cell[0].get("content")
    raise SwarmError(
        f"{where} is a conversation of more than one message of the user",
        "Take the user's message alone, as in `data.map(...)`; a system prompt goes into swarm.options.system",
    )


def _cell_to_text(cell: Any, where: str) -> str:
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):  # pandas represents missing values as NaN
        raise SwarmError(f"{where} is empty", "Leave such rows out: `data.filter(...)`, and name the result")
    if isinstance(cell, float) and cell.is_integer():
        raise SwarmError(
            f"{where} is {cell!r}, in a column of numbers with fractions: whether {int(cell)} or {cell!r} was written "
            "is lost",
            "Write the column as texts, or into CSV or JSON lines, whose cells are taken letter by letter",
        )
    if isinstance(cell, bool | int | float):
        return str(cell)
    if not isinstance(cell, str):
        what = f"is not a text: {type(cell).__name__} {str(cell)[:CELL_CHARACTERS]}"
        raise SwarmError(f"{where} {what}", "Write the column as texts: `data.map(...)`")
    if not cell.strip():
        raise SwarmError(f"{where} is blank", "Leave such rows out: `data.filter(...)`, and name the result")
    return cell


def _replace_non_finite(cell: Any) -> Any:
    """The cell with None for NaN and infinity, which JSON lacks."""
    if isinstance(cell, float):
        return cell if math.isfinite(cell) else None
    if isinstance(cell, list):
        return [_replace_non_finite(each) for each in cell]
    if isinstance(cell, dict):
        return {str(name): _replace_non_finite(each) for name, each in cell.items()}
    return cell


# --- CSV, TSV, JSON and JSON lines ---


def read_table_columns(path: Path, texts: Collection[str]) -> dict[str, list[Any]]:
    """Read a file's columns by name; missing cells are None. `texts`: columns whose cells are kept as spelled in the
    file, lists and objects decoded. Other CSV columns become numbers if every cell survives the round trip, for
    functions that expect numbers. Raises SwarmError, which names the row, if the file is too large, not UTF-8, or not
    what its suffix says."""
    if path.stat().st_size > BYTES_MAX:
        raise SwarmError(f"{path} has more than {BYTES_MAX:,} bytes", "Take a part of it")
    start = read_start(path, START_BYTES)
    if found := detect_wrong_content(path, start):
        raise SwarmError(*found)
    if not start or b"\0" in start:
        fix = "Save it in UTF-8, with a first line of names"
        raise SwarmError(f"{path} is {'not a text' if start else 'empty'}", fix)
    try:
        if separator := SEPARATORS.get(path.suffix.lower()):
            return _read_separated_values(path, separator, texts)
        rows = [_decode_row(row, texts) for row in _read_json_rows(path)]
    except UnicodeDecodeError as error:
        raise SwarmError(f"{path} is not UTF-8: {error}", "Save it in UTF-8") from error
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _read_separated_values(path: Path, separator: str, texts: Collection[str]) -> dict[str, list[Any]]:
    csv.field_size_limit(jsonl.LINE_BYTES_MAX)
    rows: list[list[str]] = []
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=separator, strict=True)
        try:
            names = next(reader, [])
            for row in filter(None, reader):
                if len(row) != len(names):
                    raise csv.Error(f"{len(row)} cells, and the header has {len(names)}")
                if any(map(_QUOTED_LATE.fullmatch, row)):
                    raise csv.Error("a cell has blanks before its quotes, which would be a part of it")
                rows.append(row)
        except csv.Error as error:
            raise SwarmError(
                f"{path}, row {len(rows) + 1}, which ends in line {reader.line_num}: {error}",
                "Put a cell with separators, quotes or line breaks into quotes, and double its own quotes",
            ) from error
    others = {";", ",", "\t"} - {separator}
    if len(names) == 1 and (found := [each for each in others if each in names[0]]):
        raise SwarmError(
            f"{path} has one column, {names[0]!r}: its cells are separated by {found[0]!r}, not by {separator!r}",
            "Save it with commas as .csv, or with tabs as .tsv",
        )
    if len(set(names)) < len(names):
        raise SwarmError(
            f"{path} has two columns with the same name: {', '.join(names)}", "Rename one in the first line"
        )
    cells = zip(*rows, strict=True) if rows else ([] for _ in names)
    return {
        name: list(column) if name in texts else _convert_column_cells(list(column))
        for name, column in zip(names, cells, strict=True)
    }


def _convert_column_cells(cells: list[str]) -> list[Any]:
    """Convert to numbers or booleans if every cell is spelled as Python prints it; empty cells become None."""
    given = [cell for cell in cells if cell]
    kinds: tuple[tuple[Callable[[str], Any], Callable[[str], bool]], ...] = (
        (int, lambda cell: bool(_INTEGER.fullmatch(cell))),
        (float, _is_plain_float),
        ("True".__eq__, {"True", "False"}.__contains__),
    )
    for convert, is_kept in kinds:
        if given and all(map(is_kept, given)):
            return [convert(cell) if cell else None for cell in cells]
    return list(cells)


def _is_plain_float(cell: str) -> bool:
    try:
        return repr(float(cell)) == cell
    except ValueError:
        return False


def _read_json_rows(path: Path) -> Iterator[_RawRow]:
    """Rows of a JSON array or of JSON lines, with cells not decoded yet."""
    body = path.read_bytes().removeprefix(jsonl.BYTE_ORDER_MARK)
    try:
        if path.suffix.lower() == ".json" and body.lstrip().startswith(b"["):
            yield from msgspec.json.decode(body, type=list[_RawRow])
            return
    except DECODE_ERRORS as error:
        raise SwarmError(f"{path} is not a list of objects in JSON: {error}", "Write [{...}, {...}]") from error
    decoder = msgspec.json.Decoder(_RawRow)
    for number, line in enumerate(body.split(b"\n"), 1):
        if line.strip():
            try:
                yield decoder.decode(line)
            except DECODE_ERRORS as error:
                raise SwarmError(f"{path}, line {number}: not JSON: {error}", "Write one JSON object a line") from error


def _decode_row(row: _RawRow, texts: Collection[str]) -> dict[str, Any]:
    """Decode a row's cells; in text columns, a number or boolean stays as spelled in the file."""
    cells = {}
    for name, cell in row.items():
        value = msgspec.json.decode(cell)
        is_spelt = name in texts and isinstance(value, bool | int | float)
        cells[name] = bytes(cell).decode().strip() if is_spelt else value
    return cells
