"""Record the completion logs that a TRL release writes itself: the fixtures of test_logs.py.

    python tests/record_trl_logs.py plain tests/data/logs/trl-1.16-plain
    python tests/record_trl_logs.py chat tests/data/logs/trl-1.16-chat

For another release put it first on PYTHONPATH. A tiny random model; nothing is downloaded.
"""

import shutil
import sys
from pathlib import Path

import torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM
from trl import GRPOConfig, GRPOTrainer

from planted import TOKENS, tokenizer


def has_up(completions, **kwargs):
    return [float("Up" in str(completion)) for completion in completions]


def length_reward(completions, **kwargs):
    return [None if i == 0 else len(str(c)) / 100 for i, c in enumerate(completions)]


def main() -> None:
    kind, target = sys.argv[1], Path(sys.argv[2])
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
            vocab_size=len(TOKENS), max_position_embeddings=64, eos_token_id=1, pad_token_id=0,
        )
    )  # fmt: skip
    prompts = [f"p{i % 8}" for i in range(16)]
    if kind == "chat":
        prompts = [[{"role": "user", "content": prompt}] for prompt in prompts]
    output = target.parent / f"{target.name}.tmp"
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=[has_up, length_reward],
        processing_class=tokenizer(),
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        args=GRPOConfig(
            output_dir=str(output), max_steps=3, per_device_train_batch_size=16, num_generations=4,
            max_completion_length=8, logging_steps=1, log_completions=True, report_to=[],
            use_cpu=True, save_strategy="no", seed=1, beta=0.0, num_completions_to_print=0,
        ),
    )  # fmt: skip
    trainer.train()
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(output / "completions", target)
    shutil.rmtree(output)


if __name__ == "__main__":
    main()
