//! The base room.
