"""What peers write: keys, signed records, bodies and their sizes, and evidence made of records."""
