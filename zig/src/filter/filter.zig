//! The filter room.
