"""Sweeps: a grid of cells, each an ordinary run, trained by warm worker processes.

``axes`` reads what varies, ``grid`` crosses it into cells, ``folder`` keeps ``cells.jsonl``,
``workers`` runs cells in local processes (``worker`` is what runs inside one), ``engine`` deals
cells to workers, ``progress`` shows it, ``results`` reads finished cells, ``compare`` pairs arms.
"""
