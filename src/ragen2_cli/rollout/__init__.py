"""The multi-turn rollout engine: sessions and policies, joined by token ids.

engine.py      rollout(): sessions in, trajectories out; what was sampled is what is recorded
template.py    ChatTemplate: the ids around sampled turns; refuses templates that rewrite them
policy.py      Policy, the one call that every policy answers; SampledTurn, StopRule
sampling.py    a random stream per episode, inverse-CDF draws
policies/      scripted; transformers with a cache kept across turns, and its two runners
trl_fields.py  trajectories as TRL's rollout_func returns them

    template = ChatTemplate(tokenizer)
    played = rollout(
        TransformersPolicy(model), template, sessions,
        ids=ids, seeds_N=seeds, max_new_tokens=96, context_limit=2048,
    )
    fields = trl_fields(played)
"""
