"""Tiny models, tokenizers and scripted rollouts for tests that run TRL trainers on a CPU."""

import gc
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    TrainerCallback,
)
from trl import GRPOConfig

gc.freeze()  # every train() collects garbage, most of its time over the imported libraries

WORDS = ["<pad>", "<eos>", "<unk>", *(f"w{index}" for index in range(45))]
TEMPLATE = (
    "{% for message in messages %}w1 {{ message['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}w2{% endif %}"
)


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Words ``w0``..``w44`` split at spaces, with pad and end tokens and a chat template."""
    tokenizer = Tokenizer(
        models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        chat_template=TEMPLATE,
    )


def tiny_model(seed: int = 0, vocab: int = len(WORDS), width: int = 16) -> LlamaForCausalLM:
    """A random two-layer Llama; the same weights for the same seed."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        initializer_range=0.3,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config)


def saved_model(folder: Path, seed: int = 0) -> str:
    """Save a tiny model with its tokenizer and return the folder."""
    tiny_model(seed).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return str(folder)


class Script:
    """Scripted rollouts: fixed completions of uneven length and fixed rewards, group by group.

    Usable as ``rollout_func`` (returns the next P * G rows) and, through ``reward``, as its reward
    function. Row r of group p has the same tokens whatever other groups are in the batch.
    """

    def __init__(self, rewards_P_G, *, ends=True, masks=False, groups=None):
        self.rewards = rewards_P_G
        self.ends = ends
        self.masks = masks
        self.groups = list(range(len(rewards_P_G))) if groups is None else groups
        self.cursor = 0

    def row(self, group: int, member: int):
        generator = torch.Generator().manual_seed(1000 * group + member)
        length = 3 + (5 * group + 3 * member) % 11
        ids = torch.randint(3, len(WORDS), (length,), generator=generator).tolist()
        if self.ends:
            ids[-1] = 1
        return ids

    def __call__(self, prompts, trainer):
        rows = [(group, member) for group in self.groups for member in range(len(self.rewards[0]))]
        start = self.cursor % len(rows)
        chosen = [rows[(start + offset) % len(rows)] for offset in range(len(prompts))]
        self.cursor += len(prompts)
        completions = [self.row(*row) for row in chosen]
        output = {
            "prompt_ids": [[3 + group, 4, 5][: 2 + group % 2] for group, _ in chosen],
            "completion_ids": completions,
            "logprobs": None,
            "scripted": [self.rewards[group][member] for group, member in chosen],
        }
        if self.masks:
            output["env_mask"] = [
                [int(position % 4 != 2) for position in range(len(ids))] for ids in completions
            ]
        return output


def scripted_reward(completions, scripted, **_):
    """Reward function that reads what the script says."""
    return scripted


class Gradients(TrainerCallback):
    """Copies all gradients right before every optimizer step; None stays None."""

    def __init__(self):
        self.steps = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        self.steps.append(
            {
                name: None if weight.grad is None else weight.grad.clone()
                for name, weight in model.named_parameters()
                if weight.requires_grad
            }
        )


def mean_gradient(steps):
    """Mean of several steps' gradients as one vector, a missing gradient counting as 0."""
    template = next(step for step in steps if all(g is not None for g in step.values()))
    vectors = [
        torch.cat(
            [
                (torch.zeros_like(template[name]) if grad is None else grad).flatten()
                for name, grad in step.items()
            ]
        )
        for step in steps
    ]
    return torch.stack(vectors).mean(0)


def config(folder: Path, rows: int, parts: int = 1, **changes) -> GRPOConfig:
    """A quiet CPU configuration of one generation batch of ``rows`` in ``parts`` micro-batches."""
    settings = {
        "output_dir": str(folder),
        "per_device_train_batch_size": rows // parts,
        "gradient_accumulation_steps": parts,
        "num_generations": 4,
        "max_completion_length": 16,
        "max_steps": 1,
        "learning_rate": 0.0,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "beta": 0.0,
        "shuffle_dataset": False,
        "report_to": [],
        "save_strategy": "no",
        "logging_steps": 1,
        "use_cpu": True,
        "disable_tqdm": True,
        "gradient_checkpointing": False,
        "bf16": False,
    }
    return GRPOConfig(**(settings | changes))


def trainer(cls, folder: Path, script, *, model=None, groups=None, args=None, **keywords):
    """Build a trainer of class ``cls`` over scripted rollouts; its ``gradients`` are recorded."""
    recorder = Gradients()
    built = cls(
        model=tiny_model() if model is None else model,
        reward_funcs=scripted_reward,
        args=args,
        train_dataset=Dataset.from_dict(
            {"prompt": [f"w{index}" for index in range(groups or len(script.groups))]}
        ),
        processing_class=tiny_tokenizer(),
        callbacks=[recorder],
        rollout_func=script,
        **keywords,
    )
    built.gradients = recorder.steps
    return built
