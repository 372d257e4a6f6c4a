"""From groups of completions to batches: which of peers' groups, what counts of them, and what is set aside."""
