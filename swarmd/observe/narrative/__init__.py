"""Events in words: log lines, and the stories that `swarmd explain` tells. Pure."""
