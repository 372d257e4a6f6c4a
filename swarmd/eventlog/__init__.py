"""The durable event log: commits in frames in segments, snapshots, replay, export; and the blobs that lie beside it.

`docs/LOG.md` describes the files byte by byte.
"""
