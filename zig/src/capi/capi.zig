//! The capi room.
