"""Which boards train and which are held out, and the seeds that follow from a run's own seed.

Everything is a keyed hash of what it is about: no generator state, the same in any process. A
board belongs to one side by the hash of its text, whoever draws it, so that training, warm-start
and held-out boards can never overlap.
"""

from hashlib import blake2b
from typing import Literal

from ragen2_cli.envs.base import TextEnv
from ragen2_cli.errors import UserError

HELDOUT_SHARE = 0.2
_BARREN = 2_000  # draws without a new board before a search gives up


def stable_hash(*parts: object) -> int:
    """Return 63 bits of BLAKE2b over the parts' texts; equal in every process and platform."""
    data = "\x1f".join(str(part) for part in parts).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big") >> 1


def _fraction(*parts: object) -> float:
    """Return the stable hash as a number in [0, 1)."""
    return stable_hash(*parts) / 2**63


def split_of(key: str) -> Literal["train", "heldout"]:
    """Return the side of a board; a fifth of all keys is held out.

    Args:
        key: ``TextEnv.key()`` right after ``reset``.
    """
    return "heldout" if _fraction("split", key) < HELDOUT_SHARE else "train"


def train_seeds(env: TextEnv, run_seed: int, counter: int, count: int) -> tuple[list[int], int]:
    """Return the next ``count`` training seeds of a run and the cursor after them.

    Stateless: the seeds depend on ``run_seed`` and ``counter`` alone, so a resumed run goes on
    exactly where it stopped. Boards may repeat; every one is on the training side. Resets ``env``.

    Args:
        env: The environment whose boards are drawn.
        run_seed: The run's seed.
        counter: The cursor; 0 at the start of a run.
        count: How many seeds to return.

    Raises:
        UserError: When 2,000 draws in a row are all held out (an environment of very few boards).
    """
    seeds: list[int] = []
    last = counter
    while len(seeds) < count:
        seed = stable_hash("train", run_seed, counter)
        counter += 1
        env.reset(seed)
        if split_of(env.key()) == "train":
            seeds.append(seed)
            last = counter
        elif counter - last >= _BARREN:
            raise UserError(
                f"environment '{env.name}': no training board in {_BARREN:,} draws; "
                "let reset(seed) start from more different states"
            )
    return seeds, counter


def heldout_seeds(env: TextEnv, count: int = 512) -> list[int]:
    """Return ``count`` seeds of pairwise different held-out boards, the same for every run.

    Resets ``env``.

    Raises:
        UserError: When 2,000 draws in a row bring no new held-out board.
    """
    seeds: list[int] = []
    seen: set[str] = set()
    barren = counter = 0
    while len(seeds) < count:
        seed = stable_hash("heldout", counter)
        counter += 1
        env.reset(seed)
        key = env.key()
        if key not in seen and split_of(key) == "heldout":
            seen.add(key)
            seeds.append(seed)
            barren = 0
        elif (barren := barren + 1) >= _BARREN:
            raise UserError(
                f"environment '{env.name}' has only {len(seeds)} held-out boards of the {count} "
                f"asked for; evaluate on at most {len(seeds)} episodes or give it more starts"
            )
    return seeds


def noise_seed(run_seed: int, step: int, group: int, rollout: int) -> int:
    """Return the seed of one rollout's dynamics; its own, and the same when replayed."""
    return stable_hash("noise", run_seed, step, group, rollout)


def is_silent(seed: int, share: float) -> bool:
    """Return whether ``--dead-share`` silences the prompt of ``seed``.

    A prompt that is silent at one share is silent at every larger one.

    Args:
        seed: The prompt's environment seed.
        share: The share of prompts to silence, in [0, 1].
    """
    return _fraction("silent", seed) < share
