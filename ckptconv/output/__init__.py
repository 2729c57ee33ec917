"""Write outputs: stage them next to the destination, or upload them, and publish all files or none."""
