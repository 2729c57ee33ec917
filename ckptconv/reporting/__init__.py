"""What people look at: the outline of a checkpoint, statistics, and the HTML report."""
