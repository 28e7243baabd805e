"""A newcomer's program for velo and others, and what runs each in a process of its own."""
