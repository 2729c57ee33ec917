"""Where results go: staged beside the destination, or uploaded, and published whole or not at all."""
