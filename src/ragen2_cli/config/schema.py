"""Every setting of a run, declared and documented once."""

from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

if TYPE_CHECKING:
    from ragen2_cli.core.filters import GroupFilter

CONFIG_SCHEMA = 1

PART_ROLLOUTS = 8
"""Rollouts in a micro-batch, at most, unless ``optimizer.micro_batches`` says otherwise."""

Strategy = Literal["top-p", "top-k", "top-k-abs", "min-p", "resample", "none"]


class Section(BaseModel):
    """A frozen group of settings; an unknown key and a value of another type are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)


class EnvConfig(Section):
    """What the agent plays."""

    name: str = Field("frozenlake", description="registered name or path/to/file.py:Class")
    options: dict[str, Any] = Field(default_factory=dict, description="arguments of its class")
    stochasticity: float = Field(0.0, ge=0, le=100, description="percent of noise")
    kind: Literal["slip", "action", "reward"] = Field("slip", description="what the noise changes")
    dead_share: float = Field(
        0.0, ge=0, le=1, description="share of training prompts on which every rollout scores 0"
    )
    max_turns: int | None = Field(None, ge=1, description="turn cap; unset: its own")
    max_actions: int | None = Field(None, ge=1, description="action budget of an episode")
    actions_per_turn: int | None = Field(None, ge=1, description="actions that run of one answer")
    format_penalty: float = Field(-0.1, le=0, description="added per turn without a valid answer")


class ModelConfig(Section):
    """Who plays: the policy, its adapter and where it runs."""

    name: str = Field("embedded", description="embedded, a hub id, a local folder or a .gguf file")
    adapter: str | None = Field(None, description="start from this trained PEFT adapter")
    full: bool = Field(False, description="train every weight instead of a LoRA adapter")
    lora_rank: int = Field(16, ge=1)
    lora_alpha: int = Field(32, ge=1)
    lora_dropout: float = Field(0.0, ge=0, lt=1)
    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?|mps)$",
        description="auto, cpu, cuda, cuda:N or mps",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="of the arithmetic and a frozen base; auto: bfloat16 on a GPU that has it, else"
        " float32. Trained weights are float32",
    )
    gradient_checkpointing: bool = False
    threads: int = Field(1, ge=0, description="CPU threads; 0 leaves torch's own choice")


class RolloutConfig(Section):
    """How episodes are collected."""

    backend: Literal["transformers", "vllm"] = Field(
        "transformers", description="who samples; vllm through TRL, its own settings in [trl]"
    )
    prompts: int = Field(8, ge=1, le=2**20, description="prompt groups P in a batch")
    group_size: int = Field(8, ge=1, le=2**20, description="rollouts G of each prompt")
    temperature: float = Field(1.0, gt=0, description="sampling temperature of training rollouts")
    max_new_tokens: int = Field(0, ge=0, description="sampled per turn; 0: by prompt style")
    context_limit: int = Field(0, ge=0, description="tokens of an episode; 0: the model's")
    max_rows: int = Field(
        0,
        ge=0,
        description="episodes that are sampled at once, held-out ones too; 0: 64 on a CPU, on a GPU"
        " as many as in a batch, 64 to 256",
    )


class FilterConfig(Section):
    """Which prompt groups stay in the update (``GroupFilter``)."""

    strategy: Strategy = "top-p"
    value: float = Field(0.9, description="p, fraction, count or ratio, by strategy")
    rounds: int = Field(
        10, ge=1, description="most rounds of fresh prompts of resample (DAPO's dynamic sampling)"
    )
    mass: Literal["linear", "softmax", "samples"] = "linear"
    score: Literal[
        "reward_var",
        "reward_std",
        "reward_mean",
        "reward_sum",
        "entropy",
        "entropy_var",
        "length",
    ] = "reward_var"
    keep: Literal["largest", "smallest"] = "largest"
    include_zero: bool = Field(False, description="let groups with a zero score be candidates")
    eps: float = Field(0.0, ge=0, description="absolute slack of the top-p target")
    eps_rel: float = Field(0.0, ge=0, lt=1, description="relative slack of the top-p target")
    spread_of: Literal["return", "outcome"] = Field(
        "return", description="outcome leaves the format penalty out of the spread"
    )
    loss_scaling: Literal["none", "linear", "sqrt"] = Field(
        "none", description="scale advantages by the kept ratio"
    )
    soft: bool = Field(False, description="weight advantages by spread / largest spread")

    @model_validator(mode="after")
    def _in_range(self) -> "FilterConfig":
        self.group_filter()
        return self

    def group_filter(self) -> "GroupFilter":
        """Build the filter that these settings describe.

        ``resample`` keeps every live group: what is dead was replaced while it was rolled out.

        Raises:
            UserError: A value out of its range.
        """
        from ragen2_cli.core.filters import GroupFilter

        if self.strategy == "resample":
            return GroupFilter(strategy="top-p", value=1.0)
        return GroupFilter(
            strategy=self.strategy,
            value=self.value,
            mass=self.mass,
            score=self.score,
            keep=self.keep,
            include_zero=self.include_zero,
            eps=self.eps,
            eps_rel=self.eps_rel,
        )


class AlgorithmConfig(Section):
    """The loss. ``name`` is a preset of the others; what is set here wins over it."""

    name: Literal["grpo", "dapo", "dr-grpo", "ppo"] = "dapo"
    loss_type: Literal["grpo", "dapo", "bnpo", "dr_grpo", "cispo", "sapo", "luspo", "vespo"] = (
        "grpo"
    )
    scale_rewards: Literal["group", "batch", "none"] = "group"
    clip_low: float = Field(0.2, gt=0, description="lower clip range of the probability ratio")
    clip_high: float = Field(0.28, gt=0, description="upper clip range of the probability ratio")
    kl: float = Field(0.0, ge=0, description="coefficient of the KL to the start policy")
    entropy: float = Field(0.0, ge=0, description="coefficient of the entropy bonus")
    entropy_target: float | None = Field(
        None, ge=0, description="turn on TRL's adaptive coefficient with this target, in nats"
    )
    length_norm: int = Field(
        0,
        ge=0,
        description="tokens that dr-grpo divides a row by; 0: 2048, or max_turns x max_new_tokens"
        " if that is more, within the context",
    )
    iterations: int = Field(1, ge=1, description="updates on each batch of rollouts")
    advantage: Literal["group", "gae"] = Field(
        "group", description="relative to the group, or token by token against a critic"
    )
    credit: Literal["episode", "turn", "bi-level"] = Field(
        "episode",
        description="who is credited: the whole episode, each turn, or turns, then tokens",
    )
    gamma: float = Field(1.0, gt=0, le=1, description="discount from token to token, of gae")
    lam: float = Field(1.0, ge=0, le=1, description="lambda of gae")
    turn_gamma: float = Field(0.95, gt=0, le=1, description="discount between turns, of bi-level")
    whiten: bool = Field(
        True, description="gae advantages of a batch get mean 0 and standard deviation 1"
    )


class CriticConfig(Section):
    """Who judges states when ``algorithm.advantage`` is ``gae``."""

    model: str | None = Field(
        None, description="stands on this model; unset: on the policy's own base, shared in memory"
    )
    lr: float = Field(1e-3, gt=0, description="constant rate of its adapter and head")
    lora_rank: int = Field(16, ge=1)
    lora_alpha: int = Field(32, ge=1)
    lora_share: float = Field(
        0.5, gt=0, le=1, description="share of the layers, from the top, that its adapter is on"
    )
    clip: float = Field(
        0.5, ge=0, description="how far a value may move within one batch; 0: any distance"
    )
    epochs: int = Field(1, ge=1, description="passes over each batch, one step each")
    warmup_steps: int = Field(0, ge=0, description="first steps, in which it alone is trained")
    max_grad_norm: float = Field(1.0, ge=0, description="0 turns clipping off")


class SealConfig(Section):
    """SEAL: a head learns from the policy's hidden states which episodes went well."""

    coefficient: float = Field(0.0, ge=0, description="factor on its loss; 0 builds no head")
    layers: int = Field(3, ge=1, description="linear layers of the head")
    dropout: float = Field(0.1, ge=0, lt=1, description="in the head, with a stream of its own")
    separation: bool = Field(
        False, description="log how alike good and bad episodes' states are, also without SEAL"
    )


class OptimizerConfig(Section):
    """How the loss becomes a step."""

    lr: float = Field(1e-3, gt=0)
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    warmup_steps: int = Field(0, ge=0)
    weight_decay: float = Field(0.0, ge=0)
    beta2: float = Field(
        0.99,
        gt=0,
        lt=1,
        description="Adam's second-moment decay; 0.999 lags behind growing gradients in short runs",
    )
    max_grad_norm: float = Field(0.1, ge=0, description="0 turns clipping off")
    micro_batches: int | None = Field(
        None,
        ge=1,
        description="accumulation parts of one update; unset: as few as leave 8 rollouts or fewer"
        " in each",
    )


class EvaluationConfig(Section):
    """Held-out measurements."""

    episodes: int = Field(
        512, ge=0, le=2**16, description="different held-out prompts; 0 skips evaluation"
    )
    every: int = Field(50, ge=0, description="steps between sampled evaluations; 0: only the ends")
    temperature: float = Field(1.0, gt=0, description="temperature of the sampled evaluation")
    greedy: bool = Field(True, description="also measure greedy success at the start and end")
    matched_entropy: bool = Field(
        True,
        description="also measure the start policy at the temperature of equal entropy",
    )


class CheckpointConfig(Section):
    """What survives a crash."""

    every: int = Field(50, ge=1, description="steps between checkpoints")
    keep: int = Field(2, ge=1, description="complete checkpoints that stay")


class DiagnosticsConfig(Section):
    """Reasoning diagnostics (cross-scoring and surface measures) during training."""

    every: int = Field(5, ge=0, description="steps between measurements; 0 turns them off")
    samples: int = Field(64, ge=2, description="reasonings that are cross-scored")
    sampling: Literal["first-turn", "trajectory"] = "first-turn"
    marginal: Literal["token-mean", "sequence"] = Field(
        "token-mean", description="mixture over prompts: per token, or of whole sequences"
    )
    gradients_every: int = Field(
        0, ge=0, description="steps between gradient analyses of the training batch; 0: off"
    )


class StopConfig(Section):
    """Rules that end a run early; all off unless chosen, except ``empty_steps``."""

    empty_steps: int = Field(5, ge=1, description="stop after this many steps with nothing kept")
    on_collapse: bool = Field(
        False, description="stop on low spread, lost success or a collapse verdict"
    )
    spread_share: float = Field(0.1, gt=0, lt=1, description="of the mean of the first 10 steps")
    spread_patience: int = Field(5, ge=1, description="consecutive steps (paper 5, code 10)")
    success_floor: float = Field(0.01, ge=0, le=1, description="evaluation success")
    success_patience: int = Field(5, ge=1, description="consecutive evaluations")


class Config(Section):
    """A whole run."""

    schema_version: int = CONFIG_SCHEMA
    seed: int = Field(0, ge=0, lt=2**32)
    steps: int = Field(100, ge=1, lt=2**31, description="optimizer steps")
    env: EnvConfig = EnvConfig()
    model: ModelConfig = ModelConfig()
    rollout: RolloutConfig = RolloutConfig()
    filter: FilterConfig = FilterConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    seal: SealConfig = SealConfig()
    critic: CriticConfig = CriticConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoints: CheckpointConfig = CheckpointConfig()
    diagnostics: DiagnosticsConfig = DiagnosticsConfig()
    stop: StopConfig = StopConfig()
    report_to: list[Literal["wandb", "tensorboard", "trackio"]] = Field(default_factory=list)
    trl: dict[str, Any] = Field(
        default_factory=dict, description="rare GRPOConfig arguments, passed on as they are"
    )

    @model_validator(mode="after")
    def _consistent(self) -> "Config":
        rows = self.rollout.prompts * self.rollout.group_size
        if self.rollout.group_size < 2:
            raise ValueError("rollout.group_size: TRL needs 2 or more rollouts per prompt")
        if self.algorithm.credit == "bi-level" and self.algorithm.advantage != "gae":
            raise ValueError("algorithm.credit: bi-level needs a critic; use --algorithm ppo")
        if self.model.full and self.model.adapter is not None:
            raise ValueError(
                "model.full: trains every weight, so model.adapter cannot be trained on; merge it "
                "with `ragen2 models export` and give the result as model, or leave one out"
            )
        if rows % self.micro_batches:
            raise ValueError(
                f"optimizer.micro_batches: {self.micro_batches} does not divide the "
                f"{rows} rollouts of a batch (rollout.prompts x rollout.group_size)"
            )
        return self

    @property
    def micro_batches(self) -> int:
        """Accumulation parts of one update; more parts need less memory.

        ``optimizer.micro_batches`` where it is set, else the smallest divisor d of the P x G
        rollouts of a batch with P x G / d at most ``PART_ROLLOUTS``.
        """
        if self.optimizer.micro_batches is not None:
            return self.optimizer.micro_batches
        rows = self.rollout.prompts * self.rollout.group_size
        return rows // next(part for part in range(PART_ROLLOUTS, 0, -1) if rows % part == 0)
