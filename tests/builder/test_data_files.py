"""Every shipped data file has a strict schema: what is missing, misspelt or of another type is
reported with file, line and key."""

from __future__ import annotations

import collections.abc
import copy
import dataclasses
import functools
import json
import random
import re
import types
import typing
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml

from builder import pipeline
from builder.documents import DATA, load_yaml
from builder.errors import BadFacts, ToolkitError
from builder.facts import data_file
from builder.lint import data_files
from builder.schema import Plain, fields_of, shape
from tests.conftest import Run
from tests.tables import by_table

ROWS = sorted((DATA / "measurements").glob("*.csv"))
FILES = [
    path for path in sorted(DATA.rglob("*")) if data_files.schema_of(path) and path not in ROWS
]
PRESETS = sorted((DATA / "presets").glob("*.yaml"))
PER_SCHEMA = 2  # files in which a kind of mutation is tried at a depth

Place = tuple[Any, ...]
Mutation = tuple[Literal["missing", "misspelt", "type", "enum"], Place]


def name_of(path: Path) -> str:
    return path.relative_to(DATA).as_posix()


def copy_of(name: str, folder: Path) -> Path:
    """Where a data file lies in a copy of the data folder."""
    for kind in ("engines", "hardware", "servers", Path(name).parent):
        (folder / "data" / kind).mkdir(parents=True, exist_ok=True)
    return folder / "data" / name


def test_every_data_file_has_a_schema() -> None:
    others = {path for path in DATA.rglob("*") if path.is_file()} - {*FILES, *PRESETS, *ROWS}
    assert {name_of(path) for path in others} == {"miniature/words.txt"}


@pytest.mark.parametrize("path", [*FILES, *ROWS], ids=name_of)
def test_a_shipped_file_is_valid(path: Path) -> None:
    assert data_files.data_file_faults(path) == []


@pytest.fixture
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder of a user."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data_file._cache_folder.cache_clear()
    monkeypatch.setattr(data_file, "_loaded", {})
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def own_cache_folder() -> Iterator[None]:
    yield
    data_file._cache_folder.cache_clear()


def fail(*_: object) -> None:
    raise AssertionError("validated")


def test_a_valid_file_is_validated_once(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = [data_file.read(path, data_files.schema_of(path)) for path in FILES]
    kept = [path for path in cache_folder.rglob("*") if path.is_file()]
    assert len(kept) == len(FILES)
    monkeypatch.setattr(data_file, "build", fail)
    assert [data_file.read(path, data_files.schema_of(path)) for path in FILES] == first


def test_what_is_kept_depends_on_the_text_and_on_the_code(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = DATA / "hardware" / "gb200.yaml"
    kind, text = data_files.schema_of(path), path.read_text()
    data_file.read(path, kind)
    monkeypatch.setattr(data_file, "build", fail)
    monkeypatch.setattr(data_file, "read_text", lambda *_: f"{text}# edited\n")
    with pytest.raises(AssertionError, match="validated"):
        data_file.read(path, kind)
    monkeypatch.setattr(data_file, "read_text", lambda *_: text)
    data_file.read(path, kind)
    monkeypatch.setattr(data_file, "_code_stamp", lambda: "after an edit")
    data_file._cache_folder.cache_clear()
    with pytest.raises(AssertionError, match="validated"):
        data_file.read(path, kind)


def test_data_is_kept_for_a_few_states_of_the_code(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = DATA / "hardware" / "gb200.yaml"
    for stamp in map(str, range(data_file.MOST_STATES + 3)):
        monkeypatch.setattr(data_file, "_code_stamp", lambda stamp=stamp: stamp)
        data_file._cache_folder.cache_clear()
        data_file.read(path, data_files.schema_of(path))
    (folder,) = cache_folder.iterdir()
    assert {each.name for each in folder.iterdir()} == set(map(str, range(3, 11)))


@pytest.mark.parametrize("base", ["/dev/null/cache", "a/relative/one"])
def test_a_user_without_a_cache_folder_reads_the_same(
    base: str, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = DATA / "hardware" / "gb200.yaml"
    found = data_file.read(path, data_files.schema_of(path))
    monkeypatch.setenv("XDG_CACHE_HOME", base)
    data_file._cache_folder.cache_clear()
    assert data_file.read(path, data_files.schema_of(path)) == found
    assert not Path(base).exists()


# Mutations, found by walking the schema and the data side by side.


def alternatives(kind: Any) -> list[Any]:
    """The kinds of a union, without what narrows them."""
    if isinstance(kind, Plain):
        return alternatives(kind.form)
    if hasattr(kind, "__metadata__"):
        return alternatives(typing.get_args(kind)[0])
    if isinstance(kind, tuple) or typing.get_origin(kind) in (typing.Union, types.UnionType):
        inner = kind if isinstance(kind, tuple) else typing.get_args(kind)
        return [each for one in inner for each in alternatives(one)]
    return [kind]


def items(kind: Any) -> Any:
    """The kind of the items of a list, or `None`."""
    if isinstance(kind, list):
        return kind[0]
    return typing.get_args(kind)[0] if typing.get_origin(kind) is tuple else None


def values(kind: Any) -> Any:
    """The kind of the values of a mapping with free keys, or `None`."""
    if isinstance(kind, dict):
        return kind.get("*")
    is_mapping = typing.get_origin(kind) in (dict, collections.abc.Mapping)
    return typing.get_args(kind)[1] if is_mapping else None


def fields(kind: Any) -> dict[str, tuple[Any, bool]]:
    """The keys of a kind of mapping with their kinds, and whether they are required."""
    if isinstance(kind, dict):
        return {key.rstrip("?"): (inner, key[-1:] != "?") for key, inner in kind.items()}
    origin, arguments = shape(kind)
    if origin in (dict, collections.abc.Mapping):
        names = typing.get_args(arguments[0]) if typing.get_origin(arguments[0]) is Literal else ()
        return dict.fromkeys(names, (arguments[1], origin is dict))
    return dict(fields_of(kind)) if dataclasses.is_dataclass(origin) else {}


def mutations(kind: Any, data: Any, place: Place = ()) -> Iterator[Mutation]:
    kinds = alternatives(kind)
    if isinstance(data, dict):
        known = next((each for each in map(fields, kinds) if set(data) <= set(each)), None)
        inner = next(filter(None, map(values, kinds)), None)
        for key, value in data.items():
            if known is not None and "*" not in known:
                if known[key][1]:
                    yield "missing", (*place, key)
                yield "misspelt", (*place, key)
                yield from mutations(known[key][0], value, (*place, key))
            elif inner is not None:
                yield from mutations(inner, value, (*place, key))
    elif isinstance(data, list):
        if (item := next(filter(None, map(items, kinds)), None)) is not None:
            for index, value in enumerate(data):
                yield from mutations(item, value, (*place, index))
    elif place and all(each in (str, int, float, bool, None, type(None)) for each in kinds):
        yield "type", place
    elif place and all(typing.get_origin(each) is Literal for each in kinds):
        yield "enum", place


def mutated(data: Any, mutation: Mutation) -> tuple[Any, str]:
    """The data after a mutation, and the dotted path to blame."""
    what, place = mutation
    changed = copy.deepcopy(data)
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    last = place[-1]
    if what == "missing":
        del inner[last]
    elif what == "misspelt":
        items = list(inner.items())
        inner.clear()
        inner.update((f"{key}x" if key == last else key, value) for key, value in items)
        last = f"{last}x"
    else:
        inner[last] = [{"x": []}] if what == "type" else "no-such-word"
    return changed, ".".join(map(str, (*place[:-1], last)))


def dumped(data: Any) -> str:
    return yaml.dump(data, Dumper=yaml.CSafeDumper)  # of the library in C: files are large


def content(path: Path) -> Any:
    text = path.read_text()
    return json.loads(text) if path.suffix == ".json" else load_yaml(text)


@functools.cache
def chosen() -> dict[Path, list[Mutation]]:
    """Some mutations: for each schema all kinds at all depths, in its small files."""
    found: dict[Path, list[Mutation]] = {}
    taken: Counter[tuple[str, str, int]] = Counter()
    for path in sorted(FILES, key=lambda path: path.stat().st_size):
        schema = data_files.schema_of(path)
        every = list(mutations(schema, content(path)))
        random.Random(name_of(path)).shuffle(every)
        groups = {(mutation[0], len(mutation[1])): mutation for mutation in reversed(every)}
        for (what, depth), mutation in groups.items():
            taken[str(schema), what, depth] += 1
            if taken[str(schema), what, depth] <= PER_SCHEMA:
                found.setdefault(path, []).append(mutation)
    return found


def test_there_are_mutations_of_every_kind_and_depth() -> None:
    every = [mutation for found in chosen().values() for mutation in found]
    assert len(every) >= 200
    assert {kind for kind, _ in every} == {"missing", "misspelt", "type", "enum"}
    assert {len(place) for _, place in every} >= {1, 2, 3, 4, 5}


@pytest.mark.parametrize("path", chosen(), ids=name_of)
def test_each_mutation_is_reported_with_file_line_and_key(path: Path, tmp_path: Path) -> None:
    target = copy_of(name_of(path), tmp_path)
    data = content(path)
    for mutation in chosen()[path]:
        changed, expected = mutated(data, mutation)
        is_json = path.suffix == ".json"
        target.write_text(json.dumps(changed, indent=1) if is_json else dumped(changed))
        found = data_files.data_file_faults(target)
        where = [each.where for each in found if each.path == expected]
        assert where, (mutation, expected, [str(each) for each in found][:5])
        assert re.fullmatch(rf"{re.escape(str(target))}:[1-9]\d*: {re.escape(expected)}", where[0])
    with pytest.raises(BadFacts):
        data_file.read(target, data_files.schema_of(target))


def test_each_mutation_of_a_preset_is_reported(tmp_path: Path) -> None:
    """Each key once, in the first preset that has it."""
    tried: set[Place] = set()
    for path in PRESETS:
        data = load_yaml(path.read_text())
        places: list[Place] = [(key,) for key in data]
        for key in data.keys() - {"engine_config", "environment", "targets"}:  # tested elsewhere
            if isinstance(data[key], dict):
                places += [(key, inner) for inner in data[key]]
        for place in set(places) - tried:
            tried.add(place)
            changed, expected = mutated(data, ("misspelt", place))
            target = tmp_path / "preset.yaml"
            target.write_text(dumped(changed))
            try:
                found = list(pipeline.deployment_diagnostics(target, []))
            except ToolkitError as error:
                found = error.diagnostics
            where = [each.where for each in found]
            known = re.compile(rf":[1-9]\d*: {re.escape(expected)}$")
            assert any(map(known.search, where)), (path, where)
    assert len(tried) > 20


@by_table
def test_a_slip_is_named_with_its_remedy(
    name: str, old: str, new: str, fault: str, tmp_path: Path
) -> None:
    text = (DATA / name).read_text()
    assert old in text
    target = copy_of(name, tmp_path)
    target.write_text(text.replace(old, new, 1))
    assert any(fault in str(each) for each in data_files.data_file_faults(target))


def test_check_reports_the_faults_of_a_data_file(builder: Run, tmp_path: Path) -> None:
    target = copy_of("hardware/gb200.yaml", tmp_path)
    target.write_text((DATA / "hardware" / "gb200.yaml").read_text().replace("tdp_w", "tpd_w"))
    done = builder("check", target)
    assert done.returncode == 2
    assert f"{target}:12:1: error[unknown-key] tpd_w: unknown key" in done.stdout
    assert "did you mean tdp_w?" in done.stdout
    assert builder("check", DATA / "hardware").returncode == 0
