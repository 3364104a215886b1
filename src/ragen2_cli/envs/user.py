"""Environments from a user's own file: loading the class and checking what it returns."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from ragen2_cli.envs.base import StepResult, TextEnv
from ragen2_cli.envs.splits import stable_hash
from ragen2_cli.envs.wrapper import EnvWrapper
from ragen2_cli.errors import UserError, counted_from, did_you_mean

_LARGEST = 1e30  # of a reward: far beyond sense, and sums and squares of it stay finite
T = TypeVar("T")


def load_class(spec: str) -> type[TextEnv]:
    """Return the class named by ``path/to/file.py:Class``.

    The file's folder is importable while the file is loaded (for a neighbor module imported at
    its top), and not afterwards.

    Raises:
        UserError: When the file is missing, cannot be imported, or holds no such environment.
    """
    location, _, name = spec.rpartition(":")
    path = _file(spec)
    if not path.is_file():
        said = f"environment file '{location}' does not exist (from --env {spec})"
        raise UserError(said + counted_from(location))
    module = _load_module(path)
    classes = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, TextEnv) and value is not TextEnv
    }
    if name not in classes:
        raise UserError(
            f"{location} has no environment class '{name}'{did_you_mean(name, classes)}; "
            f"subclasses of TextEnv in it: {', '.join(classes) or 'none'}"
        )
    missing = sorted(classes[name].__abstractmethods__)
    if missing:
        raise UserError(f"{location}: {name} does not define {', '.join(missing)}")
    return classes[name]


def _file(spec: str) -> Path:
    """Return the absolute path in ``path/to/file.py:Class``."""
    return Path(spec.rpartition(":")[0]).expanduser().resolve()


def build(cls: type[TextEnv], spec: str, options: dict[str, object]) -> "UserEnv":
    """Return the checked environment.

    Raises:
        UserError: When the constructor raises or a class attribute makes no sense.
    """
    try:
        with redirect_stdout(sys.stderr):
            env = cls(**options)
    except (Exception, SystemExit) as error:
        raise UserError(
            f"environment {spec}: __init__() raised {_describe(error, _file(spec))}"
        ) from error
    return UserEnv(env, spec)


def _load_module(path: Path) -> ModuleType:
    """Import a file under a name of its own; a changed file is loaded anew."""
    module_name = f"ragen2_user_env_{stable_hash(path, path.stat().st_mtime_ns):x}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"environment file '{path}' is no Python file (.py)")
    module = module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and pickle look the module up by name
    sys.path.insert(0, str(path.parent))
    try:
        with redirect_stdout(sys.stderr):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        raise UserError(f"cannot import {path}: {_describe(error, path)}") from error
    finally:
        sys.path.remove(str(path.parent))
    return module


class UserEnv(EnvWrapper):
    """A user's environment with every answer checked: faults name it, the method and the seed.

    Args:
        env: The user's environment.
        spec: What the user wrote after ``--env``.
    """

    def __init__(self, env: TextEnv, spec: str) -> None:
        self._spec = spec
        self._seed: int | None = None
        super().__init__(env)
        self.name = env.name or spec.rpartition(":")[2]
        self._check_attributes()

    def _mirror(self) -> None:
        name = self.name
        super()._mirror()
        self.name = self.name or name

    def reset(self, seed: int, noise_seed: int = 0) -> str:
        """Reset; the observation must be a string."""
        self._seed = seed
        with self._blame("reset"):
            observation = self.env.reset(seed, noise_seed)
        self._mirror()
        return self._text("reset", observation)

    def step(self, action: str) -> StepResult:
        """Step; the result must be a StepResult with a finite reward or None."""
        with self._blame("step"):
            result = self.env.step(action)
        if not isinstance(result, StepResult):
            raise self._fault("step", f"returned {_kind(result)}, not a StepResult")
        if result.reward is not None and not _is_number(result.reward):
            raise self._fault(
                "step", f"returned the reward {result.reward!r}, not a finite number or None"
            )
        if not isinstance(result.done, bool):
            raise self._fault("step", f"returned done={result.done!r}, not True or False")
        return result

    def observe(self) -> str:
        """Observe; the observation must be a string."""
        return self._text("observe", self._call("observe", self.env.observe))

    def key(self) -> str:
        """Return the key, which must be a string."""
        return self._text("key", self._call("key", self.env.key))

    def optimal_actions(self) -> frozenset[str]:
        """Return the best actions, if the environment knows any."""
        return frozenset(self._call("optimal_actions", self.env.optimal_actions))

    def settle(self) -> float:
        """Settle; the value must be a finite number."""
        value = self._call("settle", self.env.settle)
        if not _is_number(value):
            raise self._fault("settle", f"returned {value!r}, not a finite number")
        return value

    def _call(self, method: str, function: Callable[[], T]) -> T:
        with self._blame(method):
            return function()

    @contextmanager
    def _blame(self, method: str) -> Iterator[None]:
        """Turn whatever the user's code raises into a user error that names the place.

        What it prints goes to stderr: stdout belongs to the command's own answer.
        """
        try:
            with redirect_stdout(sys.stderr):
                yield
        except (Exception, SystemExit) as error:
            raise self._fault(method, f"raised {_describe(error, _file(self._spec))}") from error

    def _fault(self, method: str, what: str) -> UserError:
        at = "" if self._seed is None else f" (seed {self._seed})"
        return UserError(f"environment {self._spec}: {method}() {what}{at}")

    def _text(self, method: str, value: object) -> str:
        if not isinstance(value, str):
            raise self._fault(method, f"returned {_kind(value)}, not a string")
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            raise self._fault(method, "returned text with half of a surrogate pair")
        return value

    def _check_attributes(self) -> None:
        """Refuse class attributes that the session cannot work with."""
        for name, value in (
            ("max_turns", self.max_turns),
            ("max_actions", self.max_actions),
            ("actions_per_turn", self.actions_per_turn),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UserError(
                    f"environment {self._spec}: {name} must be a whole number from 1, not {value!r}"
                )
        texts = (self.instruction, *(self.actions or ()))
        if isinstance(self.actions, str) or not all(isinstance(text, str) for text in texts):
            raise UserError(
                f"environment {self._spec}: instruction must be a string, and actions a tuple of "
                "strings or None"
            )


def _is_number(value: object) -> bool:
    """Return whether a value is an int or float whose sums stay finite (a bool is neither)."""
    import numbers

    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return False
    try:
        return abs(float(value)) <= _LARGEST  # false for NaN too
    except OverflowError:  # a whole number that no float can hold
        return False


def _kind(value: object) -> str:
    return "nothing" if value is None else f"a value of type {type(value).__name__}"


def _describe(error: Exception | SystemExit, path: Path) -> str:
    """Return type, message and the last line of the user's file that led to an exception."""
    frame = error.__traceback__
    line = ""
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == str(path):
            line = f" ({path.name} line {frame.tb_lineno})"
        frame = frame.tb_next
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}{line}"
