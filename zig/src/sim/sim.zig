//! The sim room.
