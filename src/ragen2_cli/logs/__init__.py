"""Logs of rollouts that other programs wrote (and our own run folders), as rows of a diagnosis.

``files`` finds and streams rows of parquet, jsonl, CSV and table JSON; ``layout`` decides which
column is what; ``texts`` takes prompts and completions apart; ``grouping`` finds the groups;
``reader`` puts them together and counts what it left out; ``run_steps`` reads our own runs.
"""

from ragen2_cli.logs.layout import Choice
from ragen2_cli.logs.reader import LogData, RawText, read_log, texts_of_step
from ragen2_cli.logs.run_steps import read_run

__all__ = ["Choice", "LogData", "RawText", "read_log", "read_run", "texts_of_step"]
