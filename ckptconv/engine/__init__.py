"""Plans, jobs, and running them."""
