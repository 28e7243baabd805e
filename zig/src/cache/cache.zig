//! The cache room.
