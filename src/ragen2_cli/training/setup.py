"""What a process needs before it loads a model: threads, seeds, quiet libraries."""

import os
import random
import warnings

import numpy as np
import torch
from transformers import set_seed
from transformers.utils import logging as transformers_logging

from ragen2_cli.config import Config


def prepare(config: Config) -> None:
    """Set threads, seed every generator of this process, and quieten the libraries' chatter."""
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(transformers|trl|peft)\.")
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    transformers_logging.disable_progress_bar()
    if config.model.threads:
        torch.set_num_threads(config.model.threads)
    set_seed(config.seed)
    random.seed(config.seed)
    np.random.seed(config.seed)  # noqa: NPY002 - libraries draw from it
