"""What every room speaks in: requests, hits, answers, errors, clocks, bounds, threads with a loop."""
