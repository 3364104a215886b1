"""Coding problems and their tests, read from the layouts of DeepCoder and LiveCodeBench.

Every layout is a row with ``problem`` (text) and ``tests`` (JSON text, or the value itself):

| layout | tests |
|---|---|
| primeintellect | list of ``{type, input, output}``, with ``fn_name`` for ``function_call`` |
| lcbv5 | list of ``{input, output, testtype}``; ``metadata.func_name`` for ``functional`` |
| taco | ``{inputs: [...], outputs: [...]}``, with ``fn_name`` for function tests |

The embedded problems are rows of the first layout with ``name``, ``difficulty`` and a reference
solution.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import as_file, files
from typing import Any

from ragen2_cli.envs.rows import Row, field, read_rows
from ragen2_cli.errors import UserError


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem.

    Attributes:
        where: File and row, for messages.
        statement: What the policy reads.
        starter: Code to start from; empty when there is none.
        tests: Pairs of input and expected output: texts, or an argument list and a value. Empty
            when the row has none: then nothing can be graded.
        function: Name of the function to call; None when the program reads standard input.
    """

    where: str
    statement: str
    starter: str
    tests: tuple[tuple[Any, Any], ...]
    function: str | None


@lru_cache(maxsize=2)
def load_rows(source: str) -> tuple[tuple[str, Row], ...]:
    """Return all rows with their places; the embedded problems when ``source`` is empty.

    Tests stay unparsed until ``parse`` reads one row, because real files hold gigabytes of them.

    Raises:
        UserError: When the source cannot be read or is empty.
    """
    if source:
        rows = tuple((f"{source} row {number}", row) for number, row in read_rows(source))
    else:
        with as_file(files("ragen2_cli") / "assets" / "deep_coder" / "problems.jsonl") as path:
            rows = tuple((f"embedded problem {n}", row) for n, row in read_rows(str(path)))
    if not rows:
        raise UserError(f"{source}: no problem in it")
    return rows


def parse(where: str, row: Row) -> Problem:
    """Turn a row of any layout into a problem.

    Raises:
        UserError: When a field is missing or malformed; the message names it and the row.
    """
    statement = field(row, "problem", str, where).strip()
    starter = row.get("starter_code") or ""
    tests = _decoded(field(row, "tests", (str, list, dict), where), "tests", where)
    metadata = _decoded(row.get("metadata") or {}, "metadata", where)
    if isinstance(tests, dict):
        pairs, function = _from_columns(tests, where)
    else:
        pairs, function = _from_list(tests, metadata, where)
    return Problem(where, statement, str(starter), tuple(pairs), function)


def _decoded(value: Any, name: str, where: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise UserError(f"{where}: field {name!r} is not JSON ({error})") from error


def _from_columns(tests: Mapping[str, Any], where: str) -> tuple[list[tuple[Any, Any]], str | None]:
    inputs = field(tests, "inputs", list, f"{where}, tests")
    outputs = field(tests, "outputs", list, f"{where}, tests")
    if len(inputs) != len(outputs):
        raise UserError(
            f"{where}: field 'tests' has {len(inputs)} inputs and {len(outputs)} outputs"
        )
    function = tests.get("fn_name")
    return [_pair(a, b, function, where) for a, b in zip(inputs, outputs, strict=True)], function


def _from_list(
    tests: list[Any], metadata: Any, where: str
) -> tuple[list[tuple[Any, Any]], str | None]:
    pairs, functions = [], set()
    for number, test in enumerate(tests):
        place = f"{where}, test {number}"
        if not isinstance(test, dict):
            raise UserError(f"{place}: expected an object, found {type(test).__name__}")
        given = field(test, "input", object, place)
        wanted = field(test, "output", object, place)
        kind = test.get("type") or test.get("testtype") or "stdin"
        function = None
        if kind in ("function_call", "functional"):
            own = test.get("metadata")
            inner = own if isinstance(own, dict) else metadata if isinstance(metadata, dict) else {}
            function = test.get("fn_name") or inner.get("func_name")
            if not function:
                raise UserError(f"{place}: a {kind} test without fn_name or metadata.func_name")
            if isinstance(given, str):  # LiveCodeBench: one JSON argument per line
                given = [_decoded(line, "input", place) for line in given.split("\n")]
                wanted = _decoded(wanted, "output", place)
        elif kind not in ("stdin", "stdin_stdout"):
            raise UserError(f"{place}: unknown type {kind!r}; known: stdin, function_call")
        functions.add(function)
        pairs.append(_pair(given, wanted, function, place))
    if len(functions) > 1:
        raise UserError(f"{where}: field 'tests' mixes functions and standard input")
    return pairs, functions.pop() if functions else None


def _pair(given: Any, wanted: Any, function: str | None, where: str) -> tuple[Any, Any]:
    if function is not None:
        if not isinstance(given, list):
            raise UserError(f"{where}: a function test's input is no list of arguments")
        return given, wanted
    return _text(given, "input", where), _text(wanted, "output", where)


def _text(value: Any, name: str, where: str) -> str:
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    if not isinstance(value, str):
        raise UserError(f"{where}: field {name!r} is {type(value).__name__}, expected text")
    return value
