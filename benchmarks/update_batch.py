"""One synthetic batch in the shape of the default run, and timers around its update.

64 rows (8 prompts x 8 rollouts), prompts of about 60 tokens, completions of 60 to 300 tokens in
three turns with observations between them, a Llama of width 96 with 3 layers, and a LoRA adapter.
"""

import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    PrinterCallback,
    TrainerCallback,
)
from trl import GRPOConfig

PROMPTS, GROUP_SIZE, VOCABULARY = 8, 8, 330


def policy() -> LlamaForCausalLM:
    """Build a random model of the embedded policy's shape; the same weights on every call."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        initializer_range=0.08,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config)


def tokenizer() -> PreTrainedTokenizerFast:
    """Build one word per token id."""
    words = {"<pad>": 0, "<eos>": 1} | {f"w{index}": index for index in range(2, VOCABULARY)}
    built = Tokenizer(models.WordLevel(words, unk_token="w2"))
    built.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=built, pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )


class Rollouts:
    """Return the same rows whenever it is called, as TRL's ``rollout_func``.

    The success rate differs from prompt to prompt, and so do the lengths.
    """

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)

        def number(low: int, high: int) -> int:
            return int(torch.randint(low, high, (1,), generator=generator))

        def tokens(length: int) -> list[int]:
            return torch.randint(2, VOCABULARY, (length,), generator=generator).tolist()

        rates = [0.0, 0.0, 1.0, 0.1, 0.3, 0.5, 0.6, 1.0]
        self.rows: dict[str, Any] = {
            "prompt_ids": [],
            "completion_ids": [],
            "env_mask": [],
            "score": [],
        }
        for rate in rates:
            prompt = tokens(number(55, 65))
            scale = number(2, 5)
            for _ in range(GROUP_SIZE):
                completion, mask = [], []
                for turn in range(3):
                    said, heard = number(8 * scale, 20 * scale), number(15, 25)
                    completion += tokens(said)
                    mask += [1] * said
                    if turn < 2:
                        completion += tokens(heard)
                        mask += [0] * heard
                completion[-1] = 1
                self.rows["prompt_ids"].append(prompt)
                self.rows["completion_ids"].append(completion)
                self.rows["env_mask"].append(mask)
                self.rows["score"].append(float(torch.rand(1, generator=generator) < rate))

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """Return the rows, in new lists because TRL takes entries out."""
        return {key: list(values) for key, values in self.rows.items()} | {"logprobs": None}


def score(completions: list[Any], score: list[float], **_: Any) -> list[float]:
    """Return what the rollouts say."""
    return score


class Gradient(TrainerCallback):
    """Keep the newest gradient as one vector."""

    vector: torch.Tensor

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, model: Any = None, **_: Any
    ) -> None:
        """Copy it before clipping could matter (clipping is off)."""
        grads = [weight.grad for weight in model.parameters() if weight.requires_grad]
        self.vector = torch.cat([grad.flatten() for grad in grads])


class Arm:
    """A trainer over the batch whose updates are timed, in CPU seconds of one thread.

    An update is the whole optimizer step (filter, reference pass, forward, backward, step); the
    rollouts are ready-made.
    """

    def __init__(self, cls: type, folder: Path, *, loss_type: str, beta: float, **keywords: Any):
        self.gradient = Gradient()
        self.seconds: list[float] = []
        settings = {
            "output_dir": str(folder),
            "per_device_train_batch_size": PROMPTS * GROUP_SIZE // 4,
            "gradient_accumulation_steps": 4,
            "num_generations": GROUP_SIZE,
            "max_completion_length": 300,
            "max_steps": 2,
            "learning_rate": 0.0,
            "lr_scheduler_type": "constant",
            "max_grad_norm": 0.0,
            "loss_type": loss_type,
            "beta": beta,
            "report_to": [],
            "save_strategy": "no",
            "logging_strategy": "no",
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "disable_tqdm": True,
        }
        self.trainer = cls(
            model=policy(),
            reward_funcs=score,
            args=GRPOConfig(**settings),
            train_dataset=Dataset.from_dict({"prompt": ["w2"] * PROMPTS * 2}),
            processing_class=tokenizer(),
            callbacks=[self.gradient],
            rollout_func=Rollouts(),
            peft_config=LoraConfig(
                r=16, lora_alpha=32, target_modules="all-linear", exclude_modules=["lm_head"]
            ),
            **keywords,
        )
        self.trainer.remove_callback(PrinterCallback)  # the last line printed is the ratio
        for name, weight in self.trainer.model.named_parameters():
            if "lora_B" in name:  # a new adapter has half of its gradients at exactly 0
                weight.data = 0.02 * torch.randn(
                    weight.shape, generator=torch.Generator().manual_seed(len(name))
                )
        original = self.trainer.training_step

        def timed(*args: Any, **kwargs: Any) -> torch.Tensor:
            start = time.process_time()
            loss = original(*args, **kwargs)
            self._running += time.process_time() - start
            if self.trainer.accelerator.sync_gradients:
                self.seconds.append(self._running)
                self._running = 0.0
            return loss

        self._running = 0.0
        self.trainer.training_step = timed

    def run(self) -> None:
        """Train two steps."""
        self.trainer.train()
        self.trainer._buffered_inputs = None

    def kept_share_of_tokens(self) -> float:
        """Return the share of all tokens, prompts included, in rows that were trained on."""
        rows = self.trainer.rollout_func.rows
        lengths = [
            len(prompt) + len(completion)
            for prompt, completion in zip(rows["prompt_ids"], rows["completion_ids"], strict=True)
        ]
        kept = set(self.trainer.last_selection.kept.tolist())
        return sum(length for row, length in enumerate(lengths) if row // GROUP_SIZE in kept) / sum(
            lengths
        )

    def best(self) -> float:
        """Return the fastest update: what others do on the machine only adds to it."""
        return min(self.seconds)


def alternate(arms: list[Arm], rounds: int) -> None:
    """Run the arms in turn, so that a busy moment hits all of them; the first round warms up."""
    torch.set_num_threads(1)
    for index in range(rounds + 1):
        for arm in arms:
            arm.run()
            if index == 0:
                arm.seconds.clear()
