"""The protocol of all packages: requests, hits, answers, errors, clocks, limits, threads with a loop."""
