"""Files, near and far: names, looking, positioned reads, checksums."""
