"""The log that people and machines read: form, repeated lines, and no secrets in it."""
