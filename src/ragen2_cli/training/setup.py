"""What a process needs before it loads a model: threads, seeds, quiet libraries."""

import ctypes
import os
import platform
import random
import warnings

import numpy as np
import torch
from transformers import set_seed
from transformers.utils import logging as transformers_logging

from ragen2_cli.config import Config
from ragen2_cli.training.gpus import show_one


def prepare(config: Config) -> None:
    """Choose the GPU, set threads, seed every generator, and quieten the libraries' chatter."""
    show_one(config.model.device)
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(transformers|trl|peft)\.")
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    transformers_logging.disable_progress_bar()
    _keep_freed_memory()
    if config.model.threads:
        torch.set_num_threads(config.model.threads)
    set_seed(config.seed)
    random.seed(config.seed)
    np.random.seed(config.seed)  # noqa: NPY002 - libraries draw from it


def _keep_freed_memory() -> None:
    """Stop glibc from giving large buffers back to the system after every operation.

    A small model on a CPU otherwise spends half of its forward and backward passes on page faults.
    Only with glibc; elsewhere nothing happens.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    trim_threshold, mmap_threshold = -1, -3  # malloc.h: M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
    libc = ctypes.CDLL(None)
    libc.mallopt(mmap_threshold, 1 << 30)
    libc.mallopt(trim_threshold, 2**31 - 1)
