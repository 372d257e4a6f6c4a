"""Reading a log for people and checks: replay, export, verification, compaction, changes as text."""
