"""Which plan wins where memory is short: simulated in numpy over velo's own placement and links."""
