"""Events in words: `describe` for the log, the page and `swarmd explain`, which tells stories. Pure."""
