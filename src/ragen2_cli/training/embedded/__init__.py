"""The embedded policy: its tokenizer, its demonstrations and the warm start that builds it.

``narrators/`` say what a demonstrator thinks and does, one file per environment;
``demonstrations.py`` plays episodes with them; ``tokenizer.py`` and ``warm_start.py`` turn those
into the files under ``assets/embedded/``. docs/embedded-policy.md says what the result is.
"""
