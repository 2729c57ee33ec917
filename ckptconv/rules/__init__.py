"""Rules: where a name goes and how its axes move. Nothing here reads a tensor."""
