"""The pure core: `step` turns (state, event) into (state, commands). No I/O, clocks or randomness."""
