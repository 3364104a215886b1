"""Figures: ``draw(records) -> Figure``; the only place that imports matplotlib."""
