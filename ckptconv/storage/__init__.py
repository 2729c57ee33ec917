"""Local and remote files: paths, listings, positioned reads, checksums."""
