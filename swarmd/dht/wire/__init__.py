"""What peers write: keys, signed records, addresses, invitations, bodies and their sizes, and evidence."""
