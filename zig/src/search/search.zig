//! The search room.
