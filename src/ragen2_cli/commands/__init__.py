"""The command line: options to config, one call, a table or JSON."""
