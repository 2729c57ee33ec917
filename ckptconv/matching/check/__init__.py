"""Run the target with the proposed weights, compare its outputs, and try what is marked until they agree."""
