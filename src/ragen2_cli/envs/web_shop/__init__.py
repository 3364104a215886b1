"""WebShop's text interface over a catalogue: search, browse, choose options, buy."""
