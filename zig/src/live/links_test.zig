//! The delta's graph: walks against plain arithmetic, whatever the data, and while it is made.
