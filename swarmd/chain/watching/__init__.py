"""From blocks and log entries to facts, in order, whatever branches replace each other."""
