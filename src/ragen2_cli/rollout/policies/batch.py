"""Continuous batching of multi-turn conversations.

Rows of the cache hold live episodes. A row either decodes or waits, its observation not yet
encoded. Waiting rows are encoded together, in waves: when the decoding steps that they sat out
add up to the price of a wave (the rent that buys the skis). So turns of equal length stay in
step, and a long turn of one episode does not hold up the others. An environment that is still
busy with a turn is waited for when the wave comes, not before, so that which rows decode together
never depends on how long it took. Finished episodes leave and the
last row takes their place, so the live rows are always the first ones; queued episodes enter with
the next wave. A prompt that a live row already holds is copied, not computed.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import torch

from ragen2_cli.errors import UserError
from ragen2_cli.rollout.policies.runner import Chunk, Runner
from ragen2_cli.rollout.policy import Following, Reply, SampledTurn, StopRule, settled
from ragen2_cli.rollout.sampling import draw, stream

# A shared beginning shorter than this is not worth a copy.
SHORTEST_SHARED = 16


class Batch:
    """State of one ``converse`` call; arguments as there and in ``TransformersPolicy``."""

    def __init__(
        self,
        runner: Runner,
        prompts_N: Sequence[Sequence[int]],
        seeds_N: Sequence[int],
        reply: Reply,
        *,
        stop: StopRule,
        max_new_tokens: int,
        temperature: float,
        max_rows: int,
        patience: float,
    ) -> None:
        self._runner = runner
        self._prompts = [tuple(prompt) for prompt in prompts_N]
        self._streams = [stream(seed) for seed in seeds_N]
        self._reply = reply
        self._stop = stop
        self._suspects_V = stop.suspects_V(runner.vocabulary)
        self._limit = max_new_tokens
        self._temperature = temperature
        self._patience = patience
        self._idle = 0.0
        self._shared = _shared_length(set(self._prompts))
        self._queue = deque(range(len(self._prompts)))
        self._rows = rows = min(max_rows, len(self._prompts))
        self._episodes: list[int] = []
        self._waiting: dict[int, list[int]] = {}
        self._busy: dict[int, Callable[[], Following]] = {}
        self._lengths = np.zeros(rows, dtype=np.int64)
        self._counts = np.zeros(rows, dtype=np.int64)
        self._uniforms = np.zeros((rows, max_new_tokens))
        self._ids = np.zeros((rows, max_new_tokens), dtype=np.int64)
        self._stats = np.zeros((3, rows, max_new_tokens), dtype=np.float32)
        self._last = torch.zeros(rows, dtype=torch.int64, device=runner.device)
        longest = max(len(prompt) for prompt in self._prompts)
        runner.reserve(rows, longest + max_new_tokens)

    def run(self) -> None:
        """Advance all episodes until every one is over."""
        while self._queue or self._episodes:
            if not self._wave_is_due():
                self._sample(*self._decode())
                continue
            self._hear()
            if self._waiting or self._can_enter():
                self._sample(*self._encode())

    def _wave_is_due(self) -> bool:
        """Add up the share of the batch that sits out the next step; tell when it is enough."""
        live, waiting = len(self._episodes), len(self._waiting) + len(self._busy)
        entering = min(self._rows - live, len(self._queue))
        if waiting < live:
            self._idle += (waiting + entering) / (live + entering)
            if self._idle < self._patience or waiting + entering == 0:
                return False
        self._idle = 0.0
        return True

    def _decode(self) -> tuple[np.ndarray, torch.Tensor]:
        """Advance the decoding rows by one token; waiting rows ride along and are overwritten."""
        live = len(self._episodes)
        logits = self._runner.decode(self._lengths[:live], self._last[:live])
        if not (self._waiting or self._busy):
            self._lengths[:live] += 1
            return np.arange(live), logits
        still = self._waiting.keys() | self._busy.keys()
        rows = np.array([row for row in range(live) if row not in still])
        self._lengths[rows] += 1
        return rows, logits[torch.from_numpy(rows).to(logits.device)]

    def _encode(self) -> tuple[np.ndarray, torch.Tensor]:
        """Encode the observations of waiting rows and the prompts of entering episodes."""
        chunks = [Chunk(r, int(self._lengths[r]), ids) for r, ids in self._waiting.items()]
        self._waiting.clear()
        held = {self._prompts[episode]: row for row, episode in enumerate(self._episodes)}
        rows = [chunk.row for chunk in chunks]
        source = list(range(len(chunks)))
        copies: list[tuple[int, int]] = []
        entered: dict[tuple[int, ...], int] = {}
        for row, prompt in self._enter():
            rows.append(row)
            if prompt in entered:
                copies.append((chunks[entered[prompt]].row, row))
            else:
                entered[prompt] = len(chunks)
                chunks.append(self._prompt_chunk(row, prompt, held))
            source.append(entered[prompt])
        logits = self._runner.encode(chunks)
        for chunk in chunks:
            self._lengths[chunk.row] = chunk.start + len(chunk.ids)
        for origin, row in copies:
            self._lengths[row] = self._lengths[origin]
            self._runner.copy(origin, row, int(self._lengths[row]))
        if copies:
            logits = logits[torch.tensor(source, device=logits.device)]
        return np.array(rows), logits

    def _can_enter(self) -> bool:
        return bool(self._queue) and len(self._episodes) < self._rows

    def _enter(self) -> list[tuple[int, tuple[int, ...]]]:
        """Give free rows to queued episodes; return each row with its prompt."""
        entering = []
        while self._can_enter():
            row = len(self._episodes)
            self._episodes.append(self._queue.popleft())
            self._begin_turn(row)
            entering.append((row, self._prompts[self._episodes[row]]))
        return entering

    def _prompt_chunk(
        self, row: int, prompt: tuple[int, ...], held: dict[tuple[int, ...], int]
    ) -> Chunk:
        """Copy what a live row holds of a prompt; return the chunk that is left to encode."""
        start = 0
        if prompt in held:
            start = len(prompt) - 1
            self._runner.copy(held[prompt], row, start)
        elif self._shared:
            start = self._shared
            if row == 0:
                self._runner.encode([Chunk(0, 0, prompt[:start])])
            else:
                self._runner.copy(0, row, start)
        return Chunk(row, start, prompt[start:])

    def _sample(self, rows: np.ndarray, logits: torch.Tensor) -> None:
        """Draw the next token of each row and end the turns that stop with it."""
        at = self._counts[rows]
        uniforms = torch.from_numpy(self._uniforms[rows, at])
        ids_R, stats_3_R = draw(logits, uniforms, self._temperature)
        device = self._last.device
        self._last[torch.from_numpy(rows).to(device)] = ids_R.to(device)
        ids = ids_R.cpu().numpy()
        self._ids[rows, at] = ids
        self._stats[:, rows, at] = stats_3_R.cpu().numpy()
        self._counts[rows] = at + 1
        suspects = rows[self._suspects_V[ids] | (at + 1 == self._limit)]
        # Highest row first: the row that fills a gap has then had its turn already.
        for row in sorted(suspects.tolist(), reverse=True):
            ids_turn = self._ids[row, : self._counts[row]].tolist()
            stopped = self._stop.reached(ids_turn)
            if stopped or len(ids_turn) == self._limit:
                self._end_turn(row, ids_turn, truncated=not stopped)

    def _end_turn(self, row: int, ids: list[int], *, truncated: bool) -> None:
        logprobs, sampling, entropies = (tuple(s) for s in self._stats[:, row, : len(ids)].tolist())
        if math.isnan(math.fsum(logprobs)):
            raise UserError(
                "the policy's logits are not numbers (training diverged, or the weights are "
                "broken): lower the learning rate and start from an earlier checkpoint"
            )
        turn = SampledTurn(tuple(ids), logprobs, sampling, entropies, truncated)
        answer = self._reply(self._episodes[row], turn)
        if callable(answer):
            self._busy[row] = answer
        else:
            self._go_on(row, answer)

    def _hear(self) -> None:
        """Wait for the environments that are busy; highest row first, as in ``_sample``."""
        for row in sorted(self._busy, reverse=True):
            self._go_on(row, settled(self._busy.pop(row)))

    def _go_on(self, row: int, following: Following) -> None:
        """Queue the observation of a row whose turn has ended, or drop its episode."""
        if following is None:
            self._leave(row)
        else:
            self._waiting[row] = [int(self._ids[row, self._counts[row] - 1]), *following]
            self._begin_turn(row)

    def _begin_turn(self, row: int) -> None:
        self._counts[row] = 0
        self._uniforms[row] = self._streams[self._episodes[row]].random(self._limit)

    def _leave(self, row: int) -> None:
        """Drop a finished episode; the last live row moves into its place."""
        last = len(self._episodes) - 1
        episode = self._episodes.pop()
        if row == last:
            return
        self._episodes[row] = episode
        self._runner.copy(last, row, int(self._lengths[last]))
        for state in (self._lengths, self._counts, self._uniforms, self._ids, self._last):
            state[row] = state[last]
        self._stats[:, row] = self._stats[:, last]
        if last in self._waiting:
            self._waiting[row] = self._waiting.pop(last)
        if last in self._busy:
            self._busy[row] = self._busy.pop(last)


def _shared_length(prompts: set[tuple[int, ...]]) -> int:
    """Return how many first tokens different prompts share; 0 where a copy does not pay."""
    if len(prompts) < 2:
        return 0
    low, high = min(prompts), max(prompts)
    most = min(len(prompt) for prompt in prompts) - 1
    pairs = zip(low[:most], high[:most], strict=False)
    same = next((at for at, (a, b) in enumerate(pairs) if a != b), most)
    return same if same >= SHORTEST_SHARED else 0
