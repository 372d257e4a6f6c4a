"""`python -m tests.quick`: style, types, layers, and the tests that a change reaches, within a minute.

changes    which files differ from main
imports    which modules import, start or name which others, and which tests so reach a change
choice     which of these tests fit into the seconds there are, nearest first
commands   runs all of it at once on a few processes
"""
