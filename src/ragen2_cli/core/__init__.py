"""Pure mathematics over numpy arrays: no I/O, clock, log or global generator."""
