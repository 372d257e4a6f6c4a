"""A swarm from a file: questions and answers as JSONL, a system prompt and named rewards, and no Python.

- The file may be made of a data set, of the Hub or of this machine, within bounds that are known beforehand.
- A node's own configuration may name reward functions as TRL takes them.
- A question is known by the digest of the file and its row, so that only nodes with the same questions understand each
  other.

docs/swarms/file.md describes the options.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec

from swarmd.config import SwarmConfig, TrainingConfig
from swarmd.errors import DatasetRefused, RecordRejected, SwarmError
from swarmd.files import replace_durably
from swarmd.logger import get_logger
from swarmd.swarms import jsonl
from swarmd.swarms.answers import BOXED, bare_answer, read_number
from swarmd.swarms.jsonl import check_digest, load_rows
from swarmd.swarms.options import COLUMNS_MAX, PROMPT_CHARACTERS_MAX, DatasetSource, FileOptions, decode_options
from swarmd.swarms.plan import Material, Message, Question, Score, Split, SplitPlan, StageId, hash_number, split_of
from swarmd.swarms.rewards import (
    COMPARING,
    Answered,
    AnswerPlace,
    Reward,
    RewardFunctions,
    RewardOption,
    find_answer,
    make_reward,
)
from swarmd.swarms.rollouts import NAME_CHARACTERS_MAX, Reference
from swarmd.swarms.tables import SUFFIXES, read_table
from swarmd.swarms.text import CLOSING, OPENING, canonical_of, is_well_formed, span_answer

FILES_MAX = 4096  # of one data set
ASKED_AT_ONCE = 500  # files, in one question to the Hub
PACKED = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip", ".7z", ".tar", ".tgz")  # their contents have any size


def load_from_hub(source: DatasetSource) -> Any:
    """One split of a data set. One that is on this machine already is taken, whatever its size.

    Raises:
        DatasetRefused: it is larger than `download_bytes`, does not say how large it is, or has files from elsewhere.
            Nothing of it was downloaded but its card.
        Exception: whatever the back-ends of `datasets` raise.
    """
    name = source.dataset
    builder = make_builder(name, source.subset, _texts(source), revision=source.revision or None)
    if not is_here(builder):
        check_size(builder, name, source.download_bytes)
    builder.download_and_prepare()
    return builder.as_dataset(split=source.split)


def make_builder(name: str, subset: str, texts: Sequence[str], **more: Any) -> Any:
    """What reads a data set; in CSV these columns letter by letter, as their types would be guessed otherwise."""
    import datasets

    builder = datasets.load_dataset_builder(name, subset or None, **more)
    if not hasattr(builder.config, "converters"):
        return builder
    as_texts = {"converters": dict.fromkeys(texts, str), "keep_default_na": False}
    return datasets.load_dataset_builder(name, subset or None, **as_texts, **more)


def is_here(builder: Any) -> bool:
    """Whether nothing has to be downloaded: it is in the cache, or a directory of this name is found before the Hub."""
    return Path(builder.cache_dir).is_dir() or Path(builder.base_path or "hf://").is_dir()


def check_size(builder: Any, name: str, bytes_max: int) -> None:
    """Raise DatasetRefused unless all that a builder would download is known and within the bound."""
    files = [file for listed in (builder.config.data_files or {}).values() for file in listed]
    if not files or len(files) > FILES_MAX:
        raise refusal(name, f"has {len(files)} files that can be counted, and between 1 and {FILES_MAX} are taken")
    known = sum(measure_files(name, files))
    claimed = max(builder.info.download_size or 0, builder.info.dataset_size or 0)
    if max(known, claimed) > bytes_max:
        size = f"has {known:,} bytes" if known >= claimed else f"has, by its own card, {claimed:,} bytes"
        raise refusal(name, f"{size}, and this node downloads {bytes_max:,} at most (swarm.options.download_bytes)")


def measure_files(name: str, files: list[str]) -> Iterator[int]:
    """Bytes of each file, as the Hub has them."""
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    revision, paths = split_addresses(name, files)
    remaining = iter(paths)
    while batch := list(islice(remaining, ASKED_AT_ONCE)):
        found = HfApi().get_paths_info(name, batch, revision=revision, repo_type="dataset")
        sizes = {each.path: each.size for each in found if isinstance(each, RepoFile)}
        unknown = [path for path in batch if not isinstance(sizes.get(path), int)]
        if unknown:
            raise refusal(name, f"does not say how large its file {unknown[0]} is")
        yield from (sizes[path] for path in batch)


def split_addresses(name: str, files: list[str]) -> tuple[str, list[str]]:
    """The commit that addresses as `datasets` writes them have in common, and the files' paths in it."""
    revisions, paths = set(), []
    for file in files:
        inside, _, address = file.partition(f"hf://datasets/{name}@")
        revision, _, path = address.partition("/")
        if inside or not path or "::" in file:
            raise refusal(name, f"has files from elsewhere, or in archives, such as {file}")
        if path.lower().endswith(PACKED):
            raise refusal(name, f"has packed files, such as {path}, and nothing says how large their contents are")
        revisions.add(revision)
        paths.append(path)
    if len(revisions) != 1:
        raise refusal(name, "has files of several commits")
    return revisions.pop(), paths


def refusal(name: str, what: str) -> DatasetRefused:
    return DatasetRefused(
        f"the data set {name} {what}; nothing of it was downloaded",
        "Get the file of questions from a node that has it and put it beside the manifest, or into the data directory. "
        "If you trust whoever named the data set, raise swarm.options.download_bytes, with `swarmd join` "
        "--download-bytes, or load it once yourself: datasets.load_dataset(...)",
    )


log = get_logger(__name__)
BUILDERS = {".parquet": "parquet", ".arrow": "arrow"}  # of single files; those of SUFFIXES are read here

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")
CELL_CHARACTERS = 80  # of a cell that an error shows
CAUSES_MAX = 5  # of an error that are told
_PLAIN = re.compile(r"string|large_string|bool|u?int\d+|float\d+|null")


def is_hub_id(name: str) -> bool:
    """Whether a data set's name is one of the Hub, and cannot lead anywhere on this machine but below a directory."""
    suffix = Path(name).suffix.lower()
    return bool(_HUB_ID.fullmatch(name)) and ".." not in name and suffix not in (*SUFFIXES, *BUILDERS)


def source_of(options: Mapping[str, Any]) -> DatasetSource:
    """The source in a kind's options. Raises SwarmError where it is not sound."""
    try:
        known = DatasetSource.__struct_fields__
        return msgspec.convert({key: options[key] for key in known if key in options}, DatasetSource)
    except msgspec.ValidationError as error:
        raise SwarmError(f"swarm.options: {error}", "docs/swarms/file.md has the keys of a data set") from error


def keep_dataset(home: Path, name: str, source: DatasetSource, digest: str = "") -> None:
    """Load a data set into the file of questions, unless the file is there or no data set is named.

    Args:
        digest: that its rows must have; empty where any will do.

    Raises:
        DatasetRefused: the data set is on the Hub and larger than `download_bytes`, or nothing says how large it is.
        SwarmError: it cannot be loaded, has no such column, is beyond the bounds of such files, holds a row
            without a question, or is not the swarm's. Nothing is kept then.
    """
    target = home / name
    if not source.dataset or target.exists():
        return
    if not name.endswith(jsonl.SUFFIX):
        raise SwarmError(f"swarm.options.data: a data set is kept as {name!r}", 'Name a file such as "questions.jsonl"')
    found = _load(home, source)
    size = len(found)
    if size > jsonl.ROWS_MAX:
        raise _beyond(source, f"has {size} rows, the limit is {jsonl.ROWS_MAX}")
    rows = tuple(_bounded(_rows(found, source), source))
    if not rows:
        raise SwarmError(f"the data set {source.dataset} has no rows", "Set swarm.options.split to another")
    check_digest(Path(source.dataset), rows, digest)
    _write(target, rows)


def _bounded(rows: Iterable[dict[str, Any]], source: DatasetSource) -> Iterator[dict[str, Any]]:
    """The rows, while their file keeps within its bounds: a small download may become more than memory holds."""
    size = 0
    for number, row in enumerate(rows, 1):
        line = _line(row)
        size += len(line)
        if len(line) > jsonl.LINE_BYTES_MAX or size > jsonl.FILE_BYTES_MAX:
            raise _beyond(source, f"is beyond the limits at row {number}")
        yield row


def _line(row: dict[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _write(target: Path, rows: Iterable[dict[str, Any]]) -> None:
    """All of it or nothing: several processes of a node may do so at a time."""
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_durably(target, b"".join(map(_line, rows)))
    except OSError as error:
        raise SwarmError(f"the questions cannot be kept in {target}: {error.strerror}") from error


def _beyond(source: DatasetSource, what: str) -> SwarmError:
    fix = 'Take a part of it, such as swarm.options.split = "train[:10000]", or fewer columns: swarm.options.keep'
    return SwarmError(f"the data set {source.dataset} {what}", fix)


def _load(home: Path, source: DatasetSource) -> Any:
    """The split. Whatever the many back-ends of `datasets` raise becomes one error."""
    try:
        path = home / Path(source.dataset).expanduser()
        if not path.exists() and not is_hub_id(source.dataset):
            raise FileNotFoundError(f"there is no {path}, and the Hub has no such names")
        _refuse_of_hub(path, source)
        return _read_dataset(path, source)
    except SwarmError:
        raise
    except Exception as error:
        elsewhere = (
            "Load it once with a network (HF_TOKEN where it is private), name a copy in swarm.options.dataset, or "
            "put the file that swarm.options.data names there, from a node that has it"
        )
        here = "Correct swarm.options by docs/swarms/file.md#from-a-data-set, or save the file again"
        fix = elsewhere if is_hub_id(source.dataset) and not (home / source.dataset).exists() else here
        raise SwarmError(f"the data set {source.dataset} cannot be loaded: {tell_causes(error)}", fix) from error


def _refuse_of_hub(path: Path, source: DatasetSource) -> None:
    """Raise SwarmError for options that would be left out of account of what lies here."""
    given = (source.revision and "revision") or (path.is_file() and source.subset and "subset")
    if given and path.exists():
        raise SwarmError(
            f"swarm.options.{given} is of data sets on the Hub, and {source.dataset} lies here",
            "Leave it out, or name the data set of the Hub",
        )


def tell_causes(error: BaseException) -> str:
    """The first line of an error and of what caused it: many an error of `datasets` says only that there was one."""
    told: list[str] = []
    while error is not None and len(told) < CAUSES_MAX:
        first = next(iter(str(error).strip().splitlines()), "")
        if f"{type(error).__name__}: {first}" not in told:
            told.append(f"{type(error).__name__}: {first}")
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return ", because of ".join(told)


def _read_dataset(path: Path, source: DatasetSource) -> Any:
    import datasets

    if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():  # of save_to_disk
        found = datasets.load_from_disk(str(path))
        return found[source.split] if isinstance(found, datasets.DatasetDict) else found
    if path.is_dir():
        builder = make_builder(str(path), source.subset, _texts(source))
        builder.download_and_prepare()
        return builder.as_dataset(split=source.split)
    suffix = path.suffix.lower()
    if suffix in SUFFIXES and path.exists():
        found = datasets.Dataset.from_dict(read_table(path, _texts(source)))
        parts = datasets.ReadInstruction.from_spec(source.split).to_absolute({"train": len(found)})
        return found.select([row for part in parts for row in range(len(found))[part.from_ : part.to]])
    if path.exists():
        if suffix not in BUILDERS:
            raise ValueError(f"{path.name} is none of {', '.join((*SUFFIXES, *BUILDERS))}")
        return datasets.load_dataset(BUILDERS[suffix], data_files={"train": str(path)}, split=source.split)
    return load_from_hub(source)


def _texts(source: DatasetSource) -> tuple[str, ...]:
    """The columns whose cells are texts."""
    columns = source.columns
    return tuple(name for name in (columns.prompt, columns.answer, columns.task) if name)


def _rows(found: Any, source: DatasetSource) -> Iterator[dict[str, Any]]:
    """Rows as the file has them: prompt, answer and task under these names, other plain columns under their own."""
    columns, named = source.columns, _texts(source)
    _need(found, [*named, *(source.keep or ())], source)
    mapped = {columns.prompt, columns.answer, columns.task, "prompt", "answer", "task"}
    others = [name for name in found.column_names if name not in mapped and _is_plain(found.features[name])]
    if source.keep is not None:
        others = [name for name in others if name in source.keep]
    if len(others) > COLUMNS_MAX:
        raise SwarmError(f"the data set {source.dataset} has {len(others)} columns", "Name those in swarm.options.keep")
    selected = found.select_columns(list(dict.fromkeys([*named, *others])))
    write = dict.fromkeys(others, _unchanged) | {name: _writer(found.features[name]) for name in named}
    for number, cells in enumerate(selected, 1):
        row = {name: write[name](cell) for name, cell in cells.items()}
        where = f"the data set {source.dataset}, row {number}: the column"
        kept = {"prompt": _text(_question(row[columns.prompt], f"{where} {columns.prompt!r}"), where, columns.prompt)}
        if columns.answer:
            kept["answer"] = _text(row[columns.answer], where, columns.answer)
        if columns.task:
            kept["task"] = _text(row[columns.task], where, columns.task)
        yield kept | {name: _finite(row[name]) for name in others}


def _unchanged(cell: Any) -> Any:
    return cell


def _writer(feature: Any) -> Callable[[Any], Any]:
    """What makes of a cell that is to be a text what it stands for: the name of a class, and a float of 32 bits as
    short as it can be told."""
    if hasattr(feature, "int2str"):
        return lambda cell: feature.int2str(cell) if cell is not None and cell >= 0 else None
    if getattr(feature, "dtype", "") in ("float16", "float32"):
        import numpy

        shorten = getattr(numpy, feature.dtype)
        return lambda cell: cell if cell is None else float(str(shorten(cell)))
    return _unchanged


def _need(found: Any, names: list[str], source: DatasetSource) -> None:
    missing = [name for name in names if name not in found.column_names]
    if missing:
        there = ", ".join(map(repr, found.column_names))
        raise SwarmError(
            f"the data set {source.dataset} has no column {missing[0]!r}; it has: {there}",
            'Name its columns, as in swarm.options.columns = {prompt = "question", answer = "solution"}',
        )


def _is_plain(feature: Any) -> bool:
    """Whether a column has what JSON has: texts, numbers and truth values, and lists and tables of them."""
    if isinstance(feature, dict):
        return all(map(_is_plain, feature.values()))
    inner = getattr(feature, "feature", None)
    if inner is not None:
        return _is_plain(inner)
    return bool(_PLAIN.fullmatch(str(getattr(feature, "dtype", ""))))


def _question(cell: Any, where: str) -> Any:
    """The text of a question; of a conversation, which TRL takes as well, the user's one message."""
    if not isinstance(cell, list) or not all(isinstance(each, dict) for each in cell):
        return cell
    if len(cell) == 1 and isinstance(cell[0], dict) and cell[0].get("role") == "user":
        return cell[0].get("content")
    raise SwarmError(
        f"{where} is a conversation of more than one message of the user",
        "Take the user's message alone, as in `data.map(...)`; a system prompt stands in swarm.options.system",
    )


def _text(cell: Any, where: str, column: str) -> str:
    missing = cell is None or (isinstance(cell, float) and math.isnan(cell))  # pandas writes NaN for what is not there
    if isinstance(cell, float) and cell.is_integer():
        raise SwarmError(
            f"{where} {column!r} is {cell!r}, in a column of numbers with fractions: whether {int(cell)} or "
            f"{cell!r} was written is lost",
            "Write the column as texts, or into CSV or JSON lines, whose cells are taken letter by letter",
        )
    if isinstance(cell, bool | int | float) and not missing:
        return str(cell)
    if not isinstance(cell, str) or not cell.strip():
        if not missing and not isinstance(cell, str):
            what = f"is no text: {type(cell).__name__} {str(cell)[:CELL_CHARACTERS]}"
            raise SwarmError(f"{where} {column!r} {what}", "Write the column as texts: `data.map(...)`")
        what = "is empty" if missing else "is blank"
        raise SwarmError(f"{where} {column!r} {what}", "Leave such rows out: `data.filter(...)`, and name the result")
    return cell


def _finite(cell: Any) -> Any:
    """The same with None for what is no number, which JSON has not."""
    if isinstance(cell, float):
        return cell if abs(cell) < float("inf") else None
    if isinstance(cell, list):
        return [_finite(each) for each in cell]
    if isinstance(cell, dict):
        return {str(name): _finite(each) for name, each in cell.items()}
    return cell


TASK = "questions"  # of rows that name none
TASKS_MAX = 64
SPLIT = "file"  # one question is on one side, whatever task it stands under

INSTRUCTIONS: dict[AnswerPlace, str] = {
    "tags": "Think step by step if it helps, then give the final answer alone between <answer> and </answer>.",
    "last-number": "Think step by step if it helps, and end with the answer, a number.",
    "last-line": "Think step by step if it helps, then give the final answer alone on the last line.",
    "boxed": "Think step by step if it helps, then give the final answer alone in \\boxed{}.",
    "whole": "Give the answer alone.",
}


PHRASES: dict[AnswerPlace, tuple[str, str]] = {"tags": (OPENING, CLOSING), "boxed": (BOXED, "}")}  # around an answer


class Row(NamedTuple):
    """One question of the file."""

    task: str
    prompt: str
    answer: str
    trained: bool  # on the training side of the split
    columns: Mapping[str, Any]  # all of the row, where there are reward functions


class FilePlan(SplitPlan):
    """One's own questions and answers from a JSONL file, with named rewards.

    Args:
        training: gives the weight of the form where no rewards are named.

    Raises:
        SwarmError: the options are wrong, or the file is not there, not sound, or not the swarm's, or it cannot be made
            of its data set, or a reward function cannot be imported.
    """

    def __init__(self, swarm: SwarmConfig, training: TrainingConfig | None = None, home: Path | None = None) -> None:
        if swarm.tasks:
            raise SwarmError(
                'swarm.tasks means nothing to the kind "file"', "Name the task of a question in the file: column `task`"
            )
        options = decode_options(swarm.options, FileOptions)
        home = home or Path()
        self._functions = RewardFunctions(options.reward_funcs, options.reward_weights, options.reward_inputs, home)
        self._rewards = _named(options, (training or TrainingConfig()).format_reward)
        self.unchecked = _why_unchecked(options, self._rewards)
        if not self._functions:  # what they give is theirs to say
            self.reward_max = sum(option.weight for option, _ in self._rewards)
        keep_dataset(home, options.data, options, options.digest)
        rows, digest = load_rows(home, options.data, options.digest, _needed(self._rewards))
        self._swarm = swarm.id
        self._digest = digest[:16]
        where = options.data
        takes = bool(self._functions)
        self._rows = tuple(_read(row, f"{where}, row {number}", takes) for number, row in enumerate(rows, 1))
        self._places = _distinct(self._rows, where)
        self._training = [place for place in self._places if self._rows[place].trained]
        self._drawn = frozenset(self._training)
        if not self._training:
            raise SwarmError(f"no question of {options.data} is on the training side of the split", "Add more rows")
        self._tasks = tuple(sorted({self._rows[place].task for place in self._places}))
        if len(self._tasks) > TASKS_MAX:
            raise SwarmError(f"{options.data} has {len(self._tasks)} tasks, the limit is {TASKS_MAX}", "Join some")
        system = INSTRUCTIONS[options.answer] if options.system is None else options.system
        self._before = (Message("system", system, trusted=True),) if system else ()
        self._place: AnswerPlace = options.answer
        self._inputs = options.reward_inputs
        self._names = {options.columns.prompt: "prompt", options.columns.answer: "answer", options.columns.task: "task"}

    @property
    def tasks(self) -> tuple[str, ...]:
        return self._tasks

    def begin(self, is_cancelled: Callable[[], bool]) -> None:
        self._functions.begin(is_cancelled)

    def draw(self, place: StageId, material: Material) -> Iterator[Question]:
        """See `Plan.draw`: every question of the training side once, in an order of this node's stage, then again."""
        seed = self._seed(place)
        for repetition in itertools.count():
            order = list(self._training)
            Random(hash_number("order", seed, repetition)).shuffle(order)
            yield from (self._pose(index, seed) for index in order)

    def select(self, task: str, side: Split, count: int) -> list[Question]:
        """Up to `count` questions of one side of the split, the same on every node."""
        of_task = (index for index in self._places if self._rows[index].task == task)
        chosen = [index for index in of_task if split_of(SPLIT, canonical_of(self._rows[index].prompt)) == side]
        chosen.sort(key=lambda index: hash_number(side, self._rows[index].prompt))
        return [self._pose(index, 0) for index in chosen[:count]]

    def regenerate(self, reference: Reference, place: StageId, material: Material) -> Question:
        """See `Plan.regenerate`.

        Raises:
            RecordRejected: `config-digest` (of another file), `source` (these questions are made of nothing), `seed`
                (of another place), `index` (no such row, or its prompt stands in an earlier one), `unknown-task` (not
                the row's), or `held-out`.
        """
        peer = place.peer
        if reference.config_digest != self._digest:
            raise RecordRejected("config-digest", f"{peer} has another file of questions")
        if reference != reference.base:
            raise RecordRejected("source", f"{peer} sent a question that is made of other texts")
        if reference.seed != self._seed(place):
            raise RecordRejected("seed", f"{peer} sent a question under a seed that is not of its stage")
        if reference.index >= len(self._rows):
            raise RecordRejected("index", f"{peer} sent row {reference.index} of {len(self._rows)}")
        row = self._rows[reference.index]
        if row.task != reference.task:
            raise RecordRejected("unknown-task", f"{peer} sent row {reference.index} as the task {reference.task!r}")
        if not row.trained:
            raise RecordRejected("held-out", f"{peer} sent row {reference.index}, which is held out")
        if reference.index not in self._drawn:
            raise RecordRejected("index", f"{peer} sent row {reference.index}, whose prompt stands in an earlier one")
        return self._pose(reference.index, reference.seed)

    def score(self, question: Question, completions: Sequence[str]) -> list[Score]:
        """The named rewards and what the reward functions give, added up by weight.

        Accuracy is the first of the named ones that compare with the answer; without one, the first reward there is.
        """
        if not self._functions:
            return [self._score(str(question.entry["answer"]), completion, {}) for completion in completions]
        given = self._functions.score(self._prompt(question), completions, self._columns(question))
        pairs = zip(completions, given, strict=True)
        return [self._score(str(question.entry["answer"]), completion, values) for completion, values in pairs]

    def _score(self, expected: str, completion: str, given: Mapping[str, float]) -> Score:
        answered = Answered(completion, find_answer(completion, self._place), expected)
        values: list[tuple[str, float, float]] = [
            (option.name, option.weight, reward(answered)) for option, reward in self._rewards
        ]
        compared = [value for name, _, value in values if name in COMPARING]
        values += [(name, self._functions.weights[name], value) for name, value in given.items()]
        total = sum(weight * value for _, weight, value in values)
        if not values or not math.isfinite(total):
            return Score(0.0, failed=True)
        parts: dict[str, float] = defaultdict(float)
        for name, weight, value in values:
            parts[name] += weight * value
        tagged = self._place == "tags"
        form = is_well_formed(completion) if tagged else answered.answer is not None
        accuracy = compared[0] if compared else min(max(values[0][2], 0.0), 1.0)
        found = answered.answer is not None if self._rewards else None
        plain = {name: value for name, _, value in values}
        return Score(total, accuracy, float(form), dict(parts), values=plain, answered=found)

    def true_spans(self, question: Question, text: str) -> Sequence[tuple[int, int]]:
        """See `Plan.true_spans`: the last pair of answer tags, where the row's own answer stands between them."""
        answer = str(question.entry["answer"])
        compares = any(option.name in COMPARING for option, _ in self._rewards)
        return span_answer(text, answer) if answer and compares and self._place == "tags" else ()

    def phrase_truth(self, question: Question) -> str:
        before, after = PHRASES.get(self._place, ("", ""))
        return f"{before}{question.entry['answer']}{after}"

    def explain_reading(self, question: Question, completion: str) -> tuple[str, str]:
        """See `SplitPlan.explain_reading`."""
        truth, found = str(question.entry["answer"]), find_answer(completion, self._place)
        how = f"With answer = {self._place!r}, " + (f"{found!r} is found in it" if found else "nothing is found in it")
        if any(option.name == "numeric" for option, _ in self._rewards):
            how += f"; as numbers, {_told(read_number(found or ''))} is compared with {_told(read_number(truth))}"
            if read_number(truth) is None:
                return how, (
                    "Let the column have one number and no formula, leave such rows out, or compare texts: "
                    'swarm.options.rewards = [{name = "exact"}]'
                )
        return how, (
            "Let the column have the answer alone, as the model is to write it, leave such rows out, or choose "
            "swarm.options.answer by where answers stand: docs/swarms/file.md#options"
        )

    def _prompt(self, question: Question) -> Any:
        """What TRL would give reward functions as this question's prompt."""
        if self._inputs == "text":
            return question.messages[-1].content
        return [{"role": message.role, "content": message.content} for message in question.messages]

    def _columns(self, question: Question) -> dict[str, Any]:
        """The row's columns, under the names that they have in the data set, too."""
        row = self._rows[question.reference.index].columns
        also = {theirs: row[ours] for theirs, ours in self._names.items() if theirs and ours in row}
        return {**row, **also}

    def _seed(self, place: StageId) -> int:
        return hash_number("questions", self._swarm, place.peer, place.round, place.stage, self._digest)

    def _pose(self, index: int, seed: int) -> Question:
        row = self._rows[index]
        reference = Reference(row.task, self._digest, seed, index)
        return Question(reference, (*self._before, Message("user", row.prompt)), {"answer": row.answer})


def _named(options: FileOptions, format_reward: float) -> list[tuple[RewardOption, Reward]]:
    """The rewards that are named; without any, and without functions, the exact answer, and the form where answers
    stand in tags."""
    named = options.rewards
    if not named and not options.reward_funcs:
        named = (RewardOption("exact"),)
        if options.answer == "tags" and format_reward:
            named = (*named, RewardOption("format-tags", format_reward))
    return [(option, make_reward(option)) for option in named]


def _why_unchecked(options: FileOptions, rewards: Sequence[tuple[RewardOption, Reward]]) -> str:
    """See `SplitPlan.unchecked`."""
    if options.reward_funcs:
        return f"the reward functions {', '.join(options.reward_funcs)} decide"
    if all(option.name not in COMPARING or option.name == "regex" for option, _ in rewards):
        return "no reward compares the answer with the truth as it stands"
    return ""


def _told(number: Fraction | None) -> str:
    return "no number" if number is None else str(number)


def _needed(rewards: Sequence[tuple[RewardOption, Reward]]) -> tuple[str, ...]:
    """Columns of the file without which there is nothing to ask, or nothing to compare with."""
    compares = any(option.name in COMPARING for option, _ in rewards)
    return ("prompt", "answer") if compares else ("prompt",)


def _read(row: dict[str, Any], where: str, takes_columns: bool) -> Row:
    prompt, answer, task = str(row["prompt"]), bare_answer(str(row.get("answer") or "")), row.get("task", TASK)
    if not isinstance(task, str) or not task.isprintable() or not 0 < len(task) <= NAME_CHARACTERS_MAX:
        raise SwarmError(f"{where}: 'task' is no name", f"Write a text of up to {NAME_CHARACTERS_MAX} characters")
    if len(prompt) > PROMPT_CHARACTERS_MAX:
        raise SwarmError(f"{where}: a prompt of {len(prompt)} characters", f"The limit is {PROMPT_CHARACTERS_MAX}")
    trained = split_of(SPLIT, canonical_of(prompt)) == "train"
    return Row(task, prompt, answer, trained, row if takes_columns else {})


def _distinct(rows: Sequence[Row], where: str) -> tuple[int, ...]:
    """Places of the rows whose prompt does not stand in an earlier one."""
    first: dict[str, int] = {}
    others: list[int] = []  # rows whose answer is another than that of the first with their prompt
    for place, row in enumerate(rows):
        if rows[first.setdefault(canonical_of(row.prompt), place)].answer != row.answer:
            others.append(place + 1)
    if others:
        log.warning("questions stand there again with another answer; the first counts", file=where, rows=others[:8])
    return tuple(first.values())
