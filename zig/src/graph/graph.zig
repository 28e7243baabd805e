//! The graph room.
